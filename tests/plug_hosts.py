"""Functional models to plug a denoiser into, each with something that makes plugging harder."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, L, ITEMS, USERS = 36, 6, 50, 12
layers = tf.keras.layers


def batch(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Ids of two sequences with 0 for padding, their lengths, and a user; no empty sequence."""
    rng = np.random.default_rng(seed)
    features = {}
    for name in ("click", "search"):
        lengths = rng.integers(1, L + 1, rows)
        ids = rng.integers(1, ITEMS, (rows, L)).astype(np.int32)
        ids[np.arange(L) >= lengths[:, None]] = 0
        features[name] = ids
        features[f"{name}_length"] = lengths.astype(np.int32)
    features["user"] = rng.integers(0, USERS, rows)
    return features


def labels(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(9).integers(0, 2, rows).astype(np.float32)


class Host:
    """A functional model, what to plug where, and which of the features it takes."""

    def __init__(
        self, model: Any, taps: dict[str, Any], *, as_list: bool = False, **call: Any
    ) -> None:
        self.model, self.taps, self.call = model, taps, call
        self.as_list = as_list

    def features(self, rows: int = ROWS) -> Any:
        """A batch, in the structure that the model takes."""
        known = batch(rows)
        given = {x.name: known[x.name] for x in self.model.inputs}
        if len(given) == 1:
            return next(iter(given.values()))
        return list(given.values()) if self.as_list else given


def _inputs(*names: str) -> dict[str, Any]:
    shapes = {"click": (L,), "search": (L,), "user": (), "click_length": ()}
    return {
        name: tf.keras.Input(shapes[name], dtype="int64" if name == "user" else "int32", name=name)
        for name in names
    }


def _pooled(inputs: dict[str, Any]) -> Any:
    """Two sequences through one embedding, averaged over their real events, and the user."""
    items = layers.Embedding(ITEMS, 8, mask_zero=True, name="items")
    pooled = [
        layers.GlobalAveragePooling1D(name=f"mean_{name}")(items(inputs[name]))
        for name in ("click", "search")
    ]
    user = layers.Embedding(USERS, 2, name="users")(inputs["user"])
    return layers.Concatenate(name="all")([*pooled, user])


_TWO = {"click": "items/click", "search": "items/search"}


def shared_embedding() -> Host:
    inputs = _inputs("click", "search", "user")
    x = layers.Dropout(0.3, name="dropout")(_pooled(inputs))
    x = layers.BatchNormalization(name="normal")(x)
    return Host(
        tf.keras.Model(inputs, layers.Dense(1, name="logit")(x), name="host"),
        _TWO, sample_ids="user",
    )  # fmt: skip


def two_tasks() -> Host:
    """ESMM: the click-through rate is an output, and a factor of the other one."""
    inputs = _inputs("click", "search", "user")
    x = _pooled(inputs)
    ctr = layers.Dense(1, "sigmoid", name="click_rate")(x)
    cvr = layers.Dense(1, "sigmoid", name="sale_after_click")(x)
    both = layers.Multiply(name="sale_rate")([ctr, cvr])
    return Host(tf.keras.Model(inputs, {"click_rate": ctr, "sale_rate": both}, name="host"), _TWO)


def operation_last() -> Host:
    """What makes the output is no layer: an operation of Keras 3, or one of TensorFlow's."""
    inputs = _inputs("click", "search", "user")
    logit = layers.Dense(1, name="logit")(_pooled(inputs))
    sigmoid = tf.keras.ops.sigmoid if hasattr(tf.keras, "ops") else tf.sigmoid
    model = tf.keras.Model(list(inputs.values()), sigmoid(logit), name="host")
    return Host(model, _TWO, as_list=True)


@tf.keras.utils.register_keras_serializable(package="test")
class Gap(layers.Layer):
    """Two outputs from two inputs, one of them by keyword, and an argument that is no tensor."""

    def call(self, x, other=None, scale=1.0):
        return {"sum": x + scale * other, "difference": x - scale * other}


def two_outputs_of_one_call() -> Host:
    inputs = _inputs("click", "search", "user")
    x = _pooled(inputs)
    one, two = layers.Dense(1, name="one")(x), layers.Dense(1, name="two")(x)
    out = Gap(name="gap")(one, other=two, scale=0.5)
    return Host(tf.keras.Model(inputs, [out["sum"], out["difference"]], name="host"), _TWO)


def attention_over_masked_events() -> Host:
    """A mask that must pass through to the last layer, which pools by it."""
    inputs = _inputs("click")
    events = layers.Embedding(ITEMS, 8, mask_zero=True, name="events")(inputs["click"])
    events = layers.Dense(4, name="projected")(events)
    out = layers.GlobalAveragePooling1D(name="score")(events)
    return Host(tf.keras.Model(inputs["click"], out, name="host"), {"click": "events"})


def sequential() -> Host:
    model = tf.keras.Sequential(
        [
            tf.keras.Input((L,), dtype="int32", name="click"),
            layers.Embedding(ITEMS, 8, mask_zero=True, name="events"),
            layers.GlobalAveragePooling1D(name="mean"),
            layers.Dense(1, name="score"),
        ],
        name="host",
    )
    return Host(model, {"click": "events"})


def nested() -> Host:
    """The tower that makes the output is a functional model of its own."""
    inside = tf.keras.Input((18,), name="vector")
    tower = tf.keras.Model(
        inside, layers.Dense(1, name="top")(layers.Dense(4, name="under")(inside)), name="tower"
    )
    inputs = _inputs("click", "search", "user")
    return Host(tf.keras.Model(inputs, tower(_pooled(inputs)), name="host"), _TWO)


def by_field() -> Host:
    """A sequence of two fields, and lengths in place of a mask."""
    inputs = _inputs("click", "click_length")
    fields = {
        name: layers.Embedding(ITEMS, 4, name=name)(inputs["click"]) for name in ("item", "brand")
    }
    events = layers.Concatenate(name="events")(list(fields.values()))
    flat = layers.Flatten(name="flat")(events)
    length = layers.Embedding(L + 1, 2, name="length")(inputs["click_length"])
    out = layers.Dense(1, name="score")(layers.Concatenate(name="all")([flat, length]))
    return Host(
        tf.keras.Model(inputs, out, name="host"), {"click": {"item": "item", "brand": "brand"}},
        mask={"click": "click_length"},
    )  # fmt: skip


def pooled_sequences() -> Host:
    inputs = _inputs("click", "search", "user")
    out = layers.Dense(1, name="score")(_pooled(inputs))
    return Host(
        tf.keras.Model(inputs, out, name="host"), {"click": "mean_click", "search": "mean_search"}
    )


def sequence_as_output() -> Host:
    """The only output is the tapped tensor itself."""
    inputs = _inputs("click", "search", "user")
    out = layers.Dense(5, name="profile")(_pooled(inputs))
    return Host(tf.keras.Model(inputs, out, name="host"), {"profile": "profile"})


HOSTS: dict[str, Callable[[], Host]] = {
    make.__name__: make
    for make in (
        shared_embedding, two_tasks, operation_last, two_outputs_of_one_call,
        attention_over_masked_events, sequential, nested, by_field, pooled_sequences,
        sequence_as_output,
    )
}  # fmt: skip


def made(name: str, seed: int = 7) -> Host:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    return HOSTS[name]()


def scores(model: Any, host: Host, *, training: bool = False) -> Any:
    """What a model makes of the host's batch."""
    return model(tf.nest.map_structure(tf.constant, host.features()), training=training)


def assert_same_bits(one: Any, other: Any) -> None:
    tf.nest.assert_same_structure(one, other)
    for x, y in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
