"""Every contender computes the loss that ours does; nothing here looks at how long it takes."""

import numpy as np
import pytest

from pipelines.bench_losses import BASELINE, REFERENCE, bench_losses
from pipelines.config import ConfigError
from pipelines.loss_contenders import CONTENDERS, make_problem

pytestmark = pytest.mark.tfrs


def oracle(batch):
    """The loss and its gradients, in float64."""
    views = [batch.view_a.astype(np.float64), batch.view_b.astype(np.float64)]
    lengths = [np.linalg.norm(view, axis=1, keepdims=True) for view in views]
    a, b = (view / length for view, length in zip(views, lengths, strict=True))
    logits = a @ b.T / batch.temperature
    shares = np.exp(logits)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = len(a)
    slopes = (shares - np.eye(rows)) / rows / batch.temperature
    gradients = []
    for unit, length, slope in ((a, lengths[0], slopes @ b), (b, lengths[1], slopes.T @ a)):
        along = (slope * unit).sum(axis=1, keepdims=True)
        gradients.append((slope - along * unit) / length)
    return -np.mean(np.log(np.diag(shares))), *gradients


@pytest.mark.parametrize("name", [one.name for one in CONTENDERS if one.is_comparable])
def test_a_contender_computes_the_loss_and_gradient_that_ours_does(name):
    contender = next(one for one in CONTENDERS if one.name == name)
    if contender.missing():
        pytest.skip(f"not installed: {contender.missing()}")
    batch = make_problem(9, 4, 0.1)
    value, *gradients = (np.asarray(part) for part in contender.make(batch)())
    expected, *expected_gradients = oracle(batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_the_products_are_those_of_the_loss():
    (products,) = [one for one in CONTENDERS if not one.is_comparable]
    assert products.name == BASELINE
    batch = make_problem(5, 3, 0.1)
    value, from_a, from_b = (np.asarray(part) for part in products.make(batch)())
    product = batch.view_a @ batch.view_b.T
    np.testing.assert_allclose(value, product[0, 0], rtol=1e-6)
    np.testing.assert_allclose(from_a, product @ batch.view_b, rtol=1e-4)
    np.testing.assert_allclose(from_b, product.T @ batch.view_a, rtol=1e-4)


def test_a_run_in_processes_of_their_own(tmp_path):
    names = (BASELINE, REFERENCE)
    report = bench_losses(
        [40],
        rounds=1,
        memory=False,
        output=tmp_path / "losses.json",
        contenders=[one for one in CONTENDERS if one.name in names],
    )
    rows = report["results"]["40"]
    assert list(rows) == list(names)
    assert rows[BASELINE]["ratio"] == 1
    assert rows[REFERENCE]["gradient_difference"] == 0
    assert (tmp_path / "losses.json").is_file()


def test_bad_sizes_are_refused():
    for rows in ([], [1], [8, 0]):
        with pytest.raises(ConfigError, match="rows: expected batches of at least 2"):
            bench_losses(rows)
