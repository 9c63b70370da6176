"""What must hold once a recipe of docs/plugging_in.md has run; each gets the names it left."""

import importlib
import math
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exported_operations import exported, operations, signature

import seqdenoise


def assert_same(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def sorted_bytes(scores):
    """Outputs without their names, which an export may choose itself."""
    return sorted(x.numpy().tobytes() for x in tf.nest.flatten(scores))


def export_options(model, features):
    """What an export must be told: of a class, Keras 3 knows neither names nor dtypes."""
    if getattr(model, "inputs", None) or not hasattr(tf.keras, "ops"):
        return {}
    return {
        "input_signature": [
            {
                name: tf.TensorSpec((None, *x.shape[1:]), x.dtype, name)
                for name, x in features.items()
            }
        ]
    }


def check_stripped(serving, plugged, bare, features):
    """The stripped export has the plugged model's scores, and the bare one's graph."""
    assert seqdenoise.denoisers_in(plugged)
    assert not seqdenoise.denoisers_in(serving)
    assert_same(serving.predict(features, verbose=0), plugged.predict(features, verbose=0))
    with tempfile.TemporaryDirectory() as folder:
        stripped, plain = (
            exported(model, Path(folder) / name, **export_options(model, features))
            for name, model in (("stripped", serving), ("plain", bare))
        )
    assert signature(stripped) == signature(plain)
    assert Counter(operations(stripped)) == Counter(operations(plain))
    assert not [name for name in operations(stripped) if "Random" in name]
    # As a graph: TensorFlow rounds a fused product otherwise than the same one in `predict`.
    _, specs = stripped.structured_input_signature
    batch = {
        # `fit` and `predict` give a column to what takes one; an export does not.
        name: tf.cast(np.reshape(features[name], (-1, *spec.shape[1:])), spec.dtype)
        for name, spec in specs.items()
    }
    expected = tf.function(lambda batch: plugged(batch, training=False))(batch)
    assert sorted_bytes(stripped(**batch)) == sorted_bytes(expected)


def check_history(history, sequences=("cart", "click")):
    """The side loss was there, finite, and of about the size it begins with."""
    for name in sequences:
        assert 0.1 < history[f"denoiser/{name}/loss"][-1] < 10


def check_functional_model(names, host, features, sequences=("cart", "click")):
    plugged = names["model"]
    check_history(names["history"], sequences)
    # The plugged model has the host's very weights, so it scores as the host does, at any time.
    assert_same(plugged.predict(features, verbose=0), host.predict(features, verbose=0))
    check_stripped(names["serving"], plugged, host, features)


def check_functional(names):
    check_functional_model(names, names["ranker"], names["features"])


check_several_outputs = check_keras_rs = check_functional


def check_din(names):
    check_functional_model(names, names["din"], names["test"])


def check_bst(names):
    check_functional_model(names, names["bst"], names["train"], sequences=["click"])
    # The page says so; when this fails, DeepCTR can build DIEN again, and it deserves a recipe.
    models = importlib.import_module("deepctr.models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its cells are deprecated
        with pytest.raises(AttributeError, match="no attribute 'stack'"):
            models.DIEN(names["columns"], ["item", "category"])


def check_watching(names):
    assert names["check"].passed
    first, last = names["warmed_up"]
    assert last["side_loss"] < first["side_loss"]
    check_history(names["history"])
    assert [look["step"] for look in names["monitor"].history][-1] == 2 * 4  # epochs and batches
    for name in ("side_gradient_ratio", "side_loss_share"):
        assert 0 < names["history"][name][-1] < 10


def check_class(make, names):
    """`make(denoiser)` gives a model of a class that starts alike with and without a denoiser."""
    scores = []
    for denoiser in (None, seqdenoise.SequenceDenoiser(weight=0.1)):
        tf.keras.utils.set_random_seed(3)
        scores.append(make(denoiser).predict(names["features"], verbose=0))
    assert_same(*scores)
    assert np.ptp(scores[0]) > 0
    bare = make(None)
    bare.predict(names["features"], verbose=0)
    check_stripped(names["serving"], names["model"], bare, names["features"])


def check_subclassed(names):
    check_history(names["history"])
    check_class(names["Ranker"], names)


def check_tfrs(names):
    check_history(names["history"])
    assert names["history"]["regularization_loss"][-1] > 0
    check_class(names["RankingModel"], names)


def check_custom_loop(names):
    assert math.isfinite(float(names["loss"]))
    assert int(names["model"].denoiser.step) == 2 * 4  # epochs and batches
    check_history({name: [value] for name, value in names["health"].items()})


def check_distribute(names):
    assert names["strategy"].num_replicas_in_sync == 2
    check_history(names["history"])
    # The same rows, on one device and shared out between two, make the same step.
    rows = {name: x[:50] for name, x in names["features"].items()}
    label = names["label"][:50]
    several = names["model"]
    one = names["Ranker"](seqdenoise.SequenceDenoiser(weight=0.1))
    one(rows)
    one.compile("sgd", several.loss, run_eagerly=True)
    for variable, source in zip(one.variables, several.variables, strict=True):
        variable.assign(source.numpy())
    for model in (one, several):
        dataset = tf.data.Dataset.from_tensor_slices((rows, label)).batch(50)
        model.fit(dataset, shuffle=False, verbose=0)
    for variable, source in zip(one.trainable_variables, several.trainable_variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), source.numpy(), rtol=1e-5, atol=1e-7)
