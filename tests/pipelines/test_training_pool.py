import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.tfrs


@pytest.fixture
def pools(monkeypatch):
    """Stand-ins for the processes, which would take seconds to start: all that were made."""
    from pipelines import training_pool

    made = []

    class OneThread(ThreadPoolExecutor):
        def __init__(self, number, *, initargs, **options):
            super().__init__(number)
            self.threads = initargs[0]
            self.runs = 0
            self.ended = False
            made.append(self)

        def submit(self, fn, /, *args, **kwargs):
            assert not self.ended
            self.runs += 1
            return super().submit(fn, *args, **kwargs)

        def shutdown(self, **options):
            self.ended = True
            super().shutdown(**options)

    monkeypatch.setattr(training_pool, "ProcessPoolExecutor", OneThread)
    return made


def test_one_process_is_this_one_and_raises_at_once(pools):
    from pipelines.training_pool import training_pool

    with training_pool(1) as pool:
        assert pool.submit(os.getpid).result() == os.getpid()
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0)
    assert pools == []


def test_a_process_is_replaced_after_eight_runs_and_at_most_so_many_run(pools, monkeypatch):
    from pipelines import training_pool

    monkeypatch.setattr(training_pool.os, "sched_getaffinity", lambda _: set(range(7)))
    with training_pool.training_pool(3) as pool:
        futures = [pool.submit(divmod, number, 10) for number in range(50)]
        assert [future.result() for future in futures] == [divmod(n, 10) for n in range(50)]
        assert len([one for one in pools if not one.ended]) <= 3
    assert sum(one.runs for one in pools) == 50
    assert max(one.runs for one in pools) == 8
    assert {one.threads for one in pools} == {2}
    assert all(one.ended for one in pools)


def test_what_is_not_begun_when_the_block_raises_never_is(pools):
    from pipelines.training_pool import training_pool

    late = []

    def block():
        with training_pool(2) as pool:
            late.extend(pool.submit(time.sleep, 0.1) for _ in range(20))
            late[0].result()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()
    assert sum(future.cancelled() for future in late) >= 14
    assert all(future.done() for future in late)
    assert all(one.ended for one in pools)
