"""One device and two: the same loss, gradients and state, however the rows are spread.

What is compared comes from a process of its own; see tests/replica_steps.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from replica_steps import HERE, STEPS

from seqdenoise import SequenceDenoiser
from seqdenoise.replicas import GlobalBatch, own_losses

ROOT = Path(__file__).parents[2]
SECONDS = 300  # a collective that waits for a replica that never comes would wait for ever


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("replicas") / "results.npz"
    process = subprocess.run(
        [sys.executable, "-m", "replica_steps", str(output)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    # Keras and TensorFlow warn of variables that replicas cannot agree on.
    assert "WARNING:tensorflow" not in process.stderr, process.stderr[-3000:]
    with np.load(output) as saved:
        return {name: saved[name] for name in saved.files}


def of(results, prefix):
    return {
        name.removeprefix(prefix): value
        for name, value in results.items()
        if name.startswith(prefix)
    }


def compare(one, two, **tolerances):
    assert one.keys() == two.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(two[name], expected, **tolerances, err_msg=name)


def compare_ranks(one, two):
    # Of singular values, which are roots of what float32 has rounded.
    for name in [name for name in one if name.endswith("effective_rank")]:
        np.testing.assert_allclose(two.pop(name), one.pop(name), rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("system", HERE)
def test_two_replicas_train_as_one_device_does(system, results):
    one, two = of(results, f"{system}/one/"), of(results, f"{system}/two/")
    for number in range(STEPS):
        mine, theirs = one.pop(f"loss/{number}"), two.pop(f"loss/{number}")
        assert theirs.shape == (2,)
        np.testing.assert_allclose(theirs, [mine[0]] * 2, rtol=1e-5, err_msg=f"step {number}")
    compare_ranks(one, two)
    assert np.abs(one["gradient/19/0"]).max() > 1e-3
    compare(one, two, rtol=1e-5, atol=1e-5)
    assert two["step"] == STEPS


def test_fit_on_two_replicas_is_fit_on_one_device(results):
    one, two = of(results, "fit/one/"), of(results, "fit/two/")
    assert "history/denoiser/click/loss" in one
    compare_ranks(one, two)
    compare(one, two, rtol=1e-5, atol=1e-6)


def test_local_negatives_are_the_rows_of_one_replica_under_masks_of_its_own(results):
    one, two = results["local/one"], results["local/two"]
    np.testing.assert_allclose(two[0], one, rtol=1e-6)
    # The same rows on both replicas, but not the same masks.
    assert abs(two[1] - two[0]) > 1e-3
    # Those of the gradients alone: one collective on each replica.
    assert results["local/collectives"] == 2


def test_on_one_device_a_batch_is_its_own_and_nothing_is_gathered():
    graph = tf.Graph()
    with graph.as_default():
        rows = tf.ones([3, 2])
        made = len(graph.get_operations())
        batch = GlobalBatch.around(rows, is_global=True)
        with own_losses(tf.keras.layers.Layer()):
            (gathered,) = batch.gather([rows])
        assert gathered is rows
        assert batch.first_row == 0
        assert len(graph.get_operations()) == made


def test_negatives_are_global_or_local():
    with pytest.raises(ValueError, match=r"'global' or 'local'\. Received: everywhere"):
        SequenceDenoiser(negatives="everywhere")
    assert SequenceDenoiser(negatives="local").get_config()["negatives"] == "local"
