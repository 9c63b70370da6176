"""A model made by `denoise`, saved whole in the middle of its training and loaded elsewhere."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

LEGACY_KERAS = not hasattr(tf.keras, "ops")

# In processes of their own, where every operation of both is deterministic.
COMMON = """
    import sys
    import numpy as np
    import tensorflow as tf
    import seqdenoise

    tf.config.experimental.enable_op_determinism()
    folder, tests = sys.argv[1:]
    LEGACY_KERAS = not hasattr(tf.keras, "ops")
    FEATURES = ("click", "search", "user")
    # All that a denoiser remembers from step to step.
    OPTIONS = {
        "loss": "moco", "queue_size": 17, "head_units": 6, "learn_temperature": True,
        "warmup_steps": 8,
    }

    def fit(model, data):
        model.fit(
            {name: data[name] for name in FEATURES}, data["labels"], verbose=0,
            sample_weight=data["weights"], batch_size=12, shuffle=False,
        )

    def scores(model, data):
        return model.predict({name: data[name] for name in FEATURES}, verbose=0)

    def write_state(model, path):
        variables = model.optimizer.variables
        variables = variables() if callable(variables) else variables
        np.savez(path, *[x.numpy() for x in [*model.weights, *variables]])
"""

UNINTERRUPTED = """
    sys.path.append(tests)
    import plug_hosts

    host = plug_hosts.made("shared_embedding")
    host.model.get_layer("dropout").rate = 0.0  # Keras does not save where its generator stands
    model = seqdenoise.denoise(host.model, host.taps, **host.call, **OPTIONS)
    model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True))
    weights = np.random.default_rng(3).uniform(0, 2, plug_hosts.ROWS)
    data = {**host.features(), "labels": plug_hosts.labels(), "weights": weights}
    fit(model, data)
    np.savez(f"{folder}/data.npz", scores=scores(model, data), **data)
    model.save(f"{folder}/model.keras")
    if LEGACY_KERAS:
        model.save(f"{folder}/model.saved_model")
    fit(model, data)
    (denoiser,) = seqdenoise.denoisers_in(model)
    assert denoiser.step.numpy() == 6
    write_state(model, f"{folder}/uninterrupted.npz")
"""

RESUMED = """
    with np.load(f"{folder}/data.npz") as file:
        data = dict(file)
    for kind in ("keras", "saved_model") if LEGACY_KERAS else ("keras",):
        path = f"{folder}/model.{kind}"
        model = tf.keras.models.load_model(path)
        np.testing.assert_array_equal(scores(model, data), data["scores"])
        (denoiser,) = seqdenoise.denoisers_in(model)
        assert denoiser.step.numpy() == 3
        # Halves of the events are two views of rows with two events.
        with_views = np.sum(np.sum(data["click"] > 0, axis=1) >= 2)
        assert denoiser._queues["click"].inserted.numpy() == with_views < 36
        if kind == "saved_model":
            # Keras leaves the optimizer that lies there; TensorFlow reads it.
            model.optimizer.build(model.trainable_variables)
            tf.train.Checkpoint(optimizer=model.optimizer).read(
                path + "/variables/variables"
            ).assert_existing_objects_matched().expect_partial()
        assert model.optimizer.iterations.numpy() == 3
        fit(model, data)
        write_state(model, f"{folder}/{kind}.npz")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saving")
    tests = str(Path(__file__).parents[1])
    for script in (UNINTERRUPTED, RESUMED):
        code = textwrap.dedent(COMMON) + textwrap.dedent(script)
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(path), tests],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
    return path


@pytest.mark.slow
# Of Keras 3 a SavedModel is an export, without an optimizer: see test_strip.py.
@pytest.mark.parametrize("kind", ["keras", *(["saved_model"] if LEGACY_KERAS else [])])
def test_training_resumed_in_a_fresh_process_is_uninterrupted_training(folder, kind):
    with np.load(folder / "uninterrupted.npz") as whole, np.load(folder / f"{kind}.npz") as got:
        assert len(whole.files) == len(got.files)
        for key in whole.files:
            np.testing.assert_array_equal(got[key], whole[key], key)
