"""Every contender does the same work as ours; nothing here looks at how long it takes."""

import numpy as np
import pytest

pytestmark = pytest.mark.tfrs

# Converged to float32's last digits, so that the order of the updates does not show.
EPSILON, ITERATIONS = 0.2, 300
SHAPES = {"one problem": (1, 12, 9), "many problems": (3, 8, 10)}


def problem_of(shape, iterations=ITERATIONS):
    from pipelines.transport_contenders import make_problem

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
    from pipelines.contest import worker

    def solve(name, shape, iterations):
        process.name = name
        sizes = zip(("num_problems", "num_rows", "num_columns"), SHAPES[shape], strict=True)
        details = {**dict(sizes), "dim": 4, "epsilon": EPSILON, "iterations": iterations}
        answer = process.prepare(details, tmp_path / "results.npz")
        assert "error" not in answer, answer
        with np.load(tmp_path / "results.npz") as parts:
            return problem_of(SHAPES[shape], iterations), [parts[f"arr_{i}"] for i in range(3)]

    module = "pipelines.transport_contenders"
    with worker(module, named(OF_OWN_PROCESS[0])) as process:
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


def test_what_is_for_many_problems_is_given_no_single_one():
    from pipelines.bench_transport import parse_size

    of_batches = named("POT NumPy, ot.batch")
    assert not of_batches.takes(parse_size("6"))
    assert of_batches.takes(parse_size("2x5x4"))
    assert named("POT NumPy").takes(parse_size("6"))
