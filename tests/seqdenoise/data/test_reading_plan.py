import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdenoise.data.plan import ReadingPlan
from seqdenoise.errors import DataError


def plan_of(counts, **changes):
    options = {"batch_size": 4, "pool_row_groups": 2, "shuffle_seed": 1, "shard": (0, 1)}
    return ReadingPlan(np.array(counts, np.int64), **(options | changes))


def batches_of(plan, counts, epoch=0, first_step=0):
    """The batches as row numbers, where row r of row group g has the number of rows before it."""
    bases = np.cumsum([0, *counts])
    result = []
    for pool in plan.pools(epoch, first_step):
        rows = list(pool.left)
        for piece in pool.pieces:
            rows += range(bases[piece.group] + piece.start, bases[piece.group] + piece.stop)
        bounds = [0, *pool.ends][pool.first :]
        for start, stop in itertools.pairwise(bounds):
            result.append([int(rows[i]) for i in pool.order[start:stop]])
    return result


COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda counts: sum(counts) > 2)
OPTIONS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(2, 7),
        "pool_row_groups": st.integers(1, 5),
        "shuffle_seed": st.sampled_from([None, 0, 7]),
    }
)


@given(COUNTS, OPTIONS, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_exactly_once_over_1_2_and_3_shards(counts, options, epoch):
    for shards in (1, 2, 3):
        plans = [plan_of(counts, **options, shard=(index, shards)) for index in range(shards)]
        batches = [batches_of(plan, counts, epoch) for plan in plans]
        rows = [row for shard in batches for batch in shard for row in batch]
        assert sorted(rows) == list(range(sum(counts)))
        # All take as many steps, agreed on beforehand, and none is empty or too large.
        assert {len(shard) for shard in batches} == {plan.num_steps for plan in plans}
        sizes = [len(batch) for shard in batches for batch in shard]
        assert 1 <= min(sizes) <= max(sizes) <= options["batch_size"]
        sizes = [sum(map(len, shard)) for shard in batches]
        assert max(sizes) - min(sizes) <= 1
        if options["shuffle_seed"] is None:
            assert rows == sorted(rows)


@given(COUNTS, OPTIONS, st.data())
@settings(max_examples=60, deadline=None)
def test_a_later_start_yields_the_remaining_batches(counts, options, data):
    shards = data.draw(st.integers(1, 3))
    plan = plan_of(counts, **options, shard=(data.draw(st.integers(0, shards - 1)), shards))
    step = data.draw(st.integers(0, plan.num_steps))
    assert batches_of(plan, counts, 2, step) == batches_of(plan, counts, 2)[step:]


def test_a_later_start_skips_pools():
    plan = plan_of([10] * 10)
    groups = [[piece.group for piece in pool.pieces] for pool in plan.pools(0)]
    later = [[piece.group for piece in pool.pieces] for pool in plan.pools(0, 16)]
    assert later == groups[3:]


def test_left_over_rows_are_located():
    counts = [3, 0, 2, 4]
    located = plan_of(counts).locate(np.array([8, 0, 4, 3, 2]))
    found = {}
    for group, rows, positions in located:
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            found[position] = (group, row)
    assert found == {0: (3, 3), 1: (0, 0), 2: (2, 1), 3: (2, 0), 4: (0, 2)}


def test_shards_that_cannot_come_out_even_are_refused():
    with pytest.raises(DataError, match=r"a row for each of 3 shards. Received: 2 rows"):
        plan_of([2], shard=(0, 3))
    with pytest.raises(DataError, match="batches of more than one row"):
        plan_of([3], shard=(0, 2), batch_size=1)
    assert plan_of([4], shard=(0, 2), batch_size=1).num_steps == 2


def test_a_short_shard_shares_its_last_batch_out():
    sizes = [
        [len(batch) for batch in batches_of(plan_of([9], shard=(index, 2)), [9])]
        for index in range(2)
    ]
    assert sizes == [[3, 1], [4, 1]]
