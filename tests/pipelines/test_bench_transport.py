"""Every contender does the same work as ours; nothing here looks at how long it takes."""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tfrs

# Converged to float32's last digits, so that the order of the updates does not show.
EPSILON, ITERATIONS = 0.2, 300
SHAPES = {"one problem": (1, 12, 9), "many problems": (3, 8, 10)}


def problem_of(shape, iterations=ITERATIONS):
    from pipelines.bench_worker import make_problem

    return make_problem(*shape, 4, EPSILON, iterations)


def oracle(problem, iterations=2000, *, columns_first=False):
    """Cost, regularised minimum and gradients of each problem, float64, one at a time."""
    clouds = (problem.x, problem.y)
    if problem.x.ndim == 2:
        clouds = (problem.x[None], problem.y[None])
    parts = []
    for x, y in zip(*clouds, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        x_length = np.sqrt((x**2).sum(-1, keepdims=True))
        y_length = np.sqrt((y**2).sum(-1, keepdims=True))
        x_unit, y_unit = x / x_length, y / y_length
        cost = 1 - x_unit @ y_unit.T
        a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
        kernel = np.exp(-cost / EPSILON)
        u, v = np.ones(len(x)), np.ones(len(y))
        for _ in range(iterations):
            if columns_first:
                v = 1 / (kernel.T @ (a * u))
            u = 1 / (kernel @ (b * v))
            if not columns_first:
                v = 1 / (kernel.T @ (a * u))
        plan = np.outer(a * u, b * v) * kernel
        linear = (plan * cost).sum()
        regularised = linear + EPSILON * (plan * np.log(plan / np.outer(a, b))).sum()
        # d cos(x, y) / dx = (y_unit - cos x_unit) / |x|
        from_x = -(plan @ y_unit - (plan * (1 - cost)).sum(1, keepdims=True) * x_unit) / x_length
        from_y = -(plan.T @ x_unit - (plan * (1 - cost)).sum(0)[:, None] * y_unit) / y_length
        parts.append((linear, regularised, from_x, from_y))
    stacked = [np.stack(part) for part in zip(*parts, strict=True)]
    return [part[0] for part in stacked] if problem.x.ndim == 2 else stacked


def check(contender, problem, results):
    linear, regularised, from_x, from_y = oracle(problem)
    value, got_x, got_y = (np.asarray(part) for part in results)
    expected = regularised if contender.is_regularised else linear
    assert value.shape == expected.shape
    # Relative to the largest entry: what float32 leaves of sums of this length.
    wider = 300 if contender.name == "GeomLoss" else 1
    np.testing.assert_allclose(value, expected, rtol=0, atol=3e-6 * wider)
    for got, gradient in ((got_x, from_x), (got_y, from_y)):
        assert got.shape == gradient.shape
        atol = 3e-5 * wider * np.abs(gradient).max()
        np.testing.assert_allclose(got, gradient, rtol=0, atol=atol)


def named(name):
    from pipelines.transport_contenders import CONTENDERS

    return next(one for one in CONTENDERS if one.name == name)


@pytest.fixture(autouse=True)
def _pot_environment(monkeypatch):
    # Contenders choose POT's backends for their own process; here that ends with the test.
    for framework in ("TENSORFLOW", "PYTORCH", "JAX", "CUPY"):
        monkeypatch.setenv(f"POT_BACKEND_DISABLE_{framework}", "1")


IN_PROCESS = (
    "seqdenoise, XLA",
    "seqdenoise, tf.function",
    "TensorFlow, autodiff through the loop",
    "POT NumPy",
    "POT NumPy, log",
    "POT NumPy, ot.batch",
    "POT NumPy, ot.batch, log",
    "OTT-JAX, point cloud, kernel",
    "OTT-JAX, point cloud, log",
    "OTT-JAX, matrix, kernel",
    "OTT-JAX, matrix, log",
    "GeomLoss",
)


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_contender_computes_the_loss_and_gradient_that_ours_does(name, shape):
    contender = named(name)
    if contender.missing():
        pytest.skip(f"not installed: {contender.missing()}")
    if contender.for_batches and SHAPES[shape][0] == 1:
        pytest.skip("for many problems only")
    # GeomLoss comes down to epsilon all the way: it is as near as its last steps are short.
    problem = problem_of(SHAPES[shape], 1000 if name == "GeomLoss" else ITERATIONS)
    check(contender, problem, contender.make(problem)())


# Not those that differentiate through their iterations or change epsilon from one to the next.
COUNTED = (
    "seqdenoise, tf.function",
    "POT NumPy",
    "POT NumPy, log",
    "POT NumPy, ot.batch",
    "POT NumPy, ot.batch, log",
    "OTT-JAX, point cloud, kernel",
    "OTT-JAX, point cloud, log",
    "OTT-JAX, matrix, kernel",
    "OTT-JAX, matrix, log",
)


def check_count(problem, results):
    def worst(iterations, columns_first):
        *_, from_x, from_y = oracle(problem, iterations, columns_first=columns_first)
        errors = [np.abs(np.asarray(got) - want).max() for got, want in zip(
            results[1:], (from_x, from_y), strict=True
        )]  # fmt: skip
        return max(errors) / np.abs(from_x).max()

    count = problem.num_iterations
    # Some update the rows first, some the columns.
    assert min(worst(count, False), worst(count, True)) < 1e-4
    for other in (count - 1, count + 1):
        assert min(worst(other, False), worst(other, True)) > 1e-3


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("name", COUNTED)
def test_a_contender_makes_as_many_iterations_as_it_is_told(name):
    contender = named(name)
    if contender.missing():
        pytest.skip(f"not installed: {contender.missing()}")
    shape = "many problems" if contender.for_batches else "one problem"
    problem = problem_of(SHAPES[shape], 3)
    check_count(problem, contender.make(problem)())


OF_OWN_PROCESS = ("POT TensorFlow", "POT TensorFlow, log")


def test_so_do_contenders_that_need_a_process_of_their_own(tmp_path):
    from pipelines.bench_transport import _worker

    def solve(name, shape, iterations):
        worker.name = name
        sizes = zip(("num_problems", "num_rows", "num_columns"), SHAPES[shape], strict=True)
        details = {**dict(sizes), "dim": 4, "epsilon": EPSILON, "iterations": iterations}
        answer = worker.prepare(details, tmp_path / "results.npz")
        assert "error" not in answer, answer
        with np.load(tmp_path / "results.npz") as parts:
            return problem_of(SHAPES[shape], iterations), [parts[f"arr_{i}"] for i in range(3)]

    with _worker(named(OF_OWN_PROCESS[0])) as worker:
        for name in OF_OWN_PROCESS:
            for shape in SHAPES:
                check(named(name), *solve(name, shape, ITERATIONS))
                check_count(*solve(name, shape, 3))


def test_every_contender_is_compared_above():
    from pipelines.transport_contenders import CONTENDERS

    assert {*IN_PROCESS, *OF_OWN_PROCESS} == {one.name for one in CONTENDERS}


def test_geomloss_makes_as_many_passes_as_the_others():
    pytest.importorskip("geomloss")
    from geomloss._legacy import sinkhorn_samples

    problem = problem_of((1, 5, 6))
    calls = []
    original = sinkhorn_samples.softmin_tensorized

    def counted(*arguments):
        calls.append(arguments[0])
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinkhorn_samples, "softmin_tensorized", counted)
        named("GeomLoss").make(problem)()
    assert len(calls) == 2 * ITERATIONS
    assert calls[-1] == pytest.approx(EPSILON)


class ScriptedWorker:
    """Answers what it is told to."""

    def __init__(self, name, turns, gradient, megabytes=None):
        self.name, self._turns, self._gradient = name, iter(turns), gradient
        self._megabytes = megabytes

    def prepare(self, problem, results=None):
        if self._gradient is None:
            return {"error": "ImportError: too new"}
        if results is not None:
            gradients = [np.full((size, 2), self._gradient, np.float32) for size in (2, 3)]
            np.savez(results, np.zeros(1), *gradients)
        return {"seconds": 9.0}

    def ask(self, do):
        if do == "memory":
            return {"megabytes": self._megabytes}
        seconds = next(self._turns)
        return {"error": "MemoryError: too large"} if seconds is None else {"seconds": seconds}


def test_a_run_reports_every_contender_and_who_is_missing(tmp_path, monkeypatch):
    from pipelines import bench_transport as bench
    from pipelines.transport_contenders import Contender

    @contextmanager
    def worker(contender, **environment):
        # Blocks that stay with the allocator would hide a part of the next peak.
        is_for_memory = environment.get("MALLOC_MMAP_THRESHOLD_") == "65536"
        yield ScriptedWorker(contender.name, [1.0] * 4, 1.0, 64.0 if is_for_memory else None)

    monkeypatch.setattr(bench, "_worker", worker)
    absent = Contender(
        "Nobody's", lambda problem: None, packages=("nobodys-solver",), modules=("nobodys_solver",)
    )
    contenders = [named(bench.BASELINE), named("POT NumPy, ot.batch"), absent]
    path = tmp_path / "out" / "bench.json"
    report = bench.bench_transport(["6", "2x5x4"], rounds=2, output=path, contenders=contenders)
    assert json.loads(path.read_text()) == report
    assert report["not_installed"] == {"Nobody's": ["nobodys-solver"]}
    assert list(report["results"]["6"]) == [bench.BASELINE]
    assert list(report["results"]["2x5x4"]) == [bench.BASELINE, "POT NumPy, ot.batch"]
    for rows in report["results"].values():
        for row in rows.values():
            assert row["turns"] == [1.0, 1.0]
            assert row["ratio"] == 1
            assert row["gradient_difference"] == 0
            assert row["peak_megabytes"] == 64
    markdown = bench.to_markdown(report)
    assert "Nobody's: not installed (nobodys-solver)" in markdown
    assert "| POT NumPy, ot.batch |  | 1000 |" in markdown
    assert "| POT NumPy, ot.batch |  | 64 |" in markdown


def test_ratios_are_of_medians_and_ranges_of_rounds(monkeypatch):
    from pipelines import bench_transport as bench

    monkeypatch.setattr(bench, "_PAUSE_SECONDS", 0)
    workers = [
        ScriptedWorker(bench.BASELINE, [1, 2, 4], 2.0),
        ScriptedWorker("rival", [6, 4, 2], 2.5),
        ScriptedWorker("broken", [], None),
        ScriptedWorker("breaks", [1, None, 1], 2.0),
    ]
    rows = bench._time_size("7", {}, workers, rounds=3)
    assert rows["rival"]["seconds"] == 4
    assert rows["rival"]["ratio"] == 2  # medians 4 and 2
    assert rows["rival"]["ratio_range"] == [0.5, 6]  # 2 / 4 in the last round, 6 / 1 in the first
    assert rows["rival"]["fastest_ratio"] == 2  # 2 and 1
    assert rows["rival"]["gradient_difference"] == 0.25
    assert rows["rival"]["first_call_seconds"] == 9
    assert rows["broken"] == {"error": "ImportError: too new"}
    assert rows["breaks"] == {"error": "MemoryError: too large"}
    report = {
        "machine": {"cores": 2, "processor": "chip"}, "versions": {"pot": "1"},
        "not_installed": {}, "results": {"7": rows},
    }  # fmt: skip
    lines = bench.to_markdown(report).splitlines()
    assert "| rival | 4000 |" in lines
    assert "| rival | 2.00 (0.500 to 6.00) |" in lines
    assert "| broken | failed |" in lines
    assert "breaks at 7: MemoryError: too large" in lines
    assert lines[-1] == "2 cores of chip; pot 1."


def test_a_failure_of_our_own_is_no_line_of_the_report():
    from pipelines import bench_transport as bench

    workers = [ScriptedWorker(bench.BASELINE, [], None)]
    with pytest.raises(RuntimeError, match=r"seqdenoise, XLA failed at 7: ImportError: too new"):
        bench._time_size("7", {}, workers, rounds=1)


def test_a_process_times_and_measures_its_contender_until_it_dies():
    from pipelines.bench_transport import _worker

    problem = {"num_problems": 1, "num_rows": 300, "num_columns": 500, "dim": 4}
    with _worker(named("POT NumPy"), MALLOC_MMAP_THRESHOLD_="65536") as worker:
        assert worker.ask("time") == {"error": "RuntimeError: no problem was prepared"}
        assert worker.prepare({**problem, "epsilon": 0.1, "iterations": 2})["seconds"] > 0
        assert worker.ask("time")["seconds"] > 0
        if Path("/proc/self/clear_refs").exists():
            # Costs, kernel and plan, at least.
            assert worker.ask("memory")["megabytes"] > 2 * 300 * 500 * 4 / 1e6
        worker._process.kill()
        assert worker.ask("time") == {"error": "the process ended with status -9"}


def test_peak_memory_is_the_highest_mark_of_a_call():
    from pipelines.bench_worker import peak_megabytes

    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")

    def call():
        both = np.ones(80_000_000, np.uint8).copy()
        passing = both + both
        del passing
        return (both[:1].copy(), 0, 0)

    np.ones(400_000_000, np.uint8)  # higher, but before the call
    # 80 MB from `ones` are gone when the sum is made; with the copy it is 160 at any time.
    assert peak_megabytes(call) == pytest.approx(160, abs=8)


def test_sizes():
    from pipelines.bench_transport import bench_transport, parse_size
    from pipelines.config import ConfigError

    one = {"num_problems": 1, "num_rows": 64, "num_columns": 64}
    assert parse_size("64") == one
    assert parse_size("3x5x7") == {"num_problems": 3, "num_rows": 5, "num_columns": 7}
    for bad in ("", "0", "3x5", "3x5x0", "-4", "big"):
        with pytest.raises(ConfigError, match=f"sizes: expected .* Received: '{bad}'"):
            parse_size(bad)
    with pytest.raises(ConfigError, match=r"rounds: expected at least 1\. Received: 0"):
        bench_transport(["8"], rounds=0)
