"""Models exported twice: never plugged, and plugged, trained and stripped."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.bench_step import ranking_model, step_batch
from pipelines.export import write_saved_model
from pipelines.features import Features
from pipelines.ranker import RankerSpec
from pipelines.ranking_model import RankingModel
from seqdenoise import denoise, strip_for_serving
from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.numerics import Tensor

BARE, STRIPPED = "bare", "stripped"
CHECKED_ROWS = 64
_STEPS = 2

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Pair:
    """Two exports with the same weights.

    Attributes:
        folders: By `BARE` and `STRIPPED` the SavedModel.
        inputs: Makes a request of so many rows.
        scores: What the model scored `inputs(CHECKED_ROWS)` while it was plugged, `[B]`.
    """

    folders: Mapping[str, Path]
    inputs: Callable[[int], Inputs]
    scores: np.ndarray[Any, Any]


def reference_ranker(folder: Path) -> Pair:
    """The ranker of the jobs, subclassed and from TFRS, exported as `pipelines export` does it.

    Args:
        folder: Where to write.

    Returns:
        The pair.
    """
    batch = step_batch(CHECKED_ROWS)
    plugged, bare, stripped = (ranking_model(plugged=one) for one in (True, False, False))
    for model in (plugged, bare, stripped):
        for _ in range(_STEPS):
            model.train_step(batch)
    scores = plugged.probabilities(batch).numpy()
    stripped = strip_for_serving(plugged, bare=stripped)
    # So that scores can be compared too; what was trained is the host's whole history.
    bare.set_weights(stripped.get_weights())
    folders = {BARE: folder / BARE, STRIPPED: folder / STRIPPED}
    for name, model in ((BARE, bare), (STRIPPED, stripped)):
        spec = model.ranker.spec
        write_saved_model(model, _features(spec), spec.max_length, folders[name])
    return Pair(folders, lambda rows: _raw(bare, step_batch(rows)), scores)


def _features(spec: RankerSpec) -> Features:
    """Raw ids 0, 1, ... in the place of those that a log would have."""
    vocabularies = {
        name: Vocabulary(np.arange(size - Vocabulary.FIRST)) for name, size in spec.sizes.items()
    }
    return Features(spec.sequence_types, spec.event_fields, vocabularies, scales={})


def _raw(model: RankingModel, batch: Mapping[str, Tensor]) -> Inputs:
    """An encoded batch as a client would send it, by the vocabularies of `_features`."""
    return {
        name: x if name.endswith("__length") else tf.cast(x, tf.int64) - Vocabulary.FIRST
        for name, x in batch.items()
        if name != model.label
    }


def functional_model(folder: Path) -> Pair:
    """A functional Keras model, plugged by `denoise` and stripped by `strip_for_serving`.

    Args:
        folder: Where to write.

    Returns:
        The pair.
    """
    spec = ranking_model(plugged=False).ranker.spec
    bare, host = (_functional(spec) for _ in range(2))
    taps = {kind: f"items/{kind}" for kind in spec.sequence_types}
    plugged = denoise(host, taps, sample_ids="user")
    # Two steps are sooner done than a graph of one is made.
    plugged.compile("adam", "binary_crossentropy", run_eagerly=True)
    inputs = _functional_inputs(spec, CHECKED_ROWS)
    labels = step_batch(CHECKED_ROWS)["is_click"]
    for _ in range(_STEPS):
        plugged.train_on_batch(inputs, labels)
    # As a graph, which an export is too: TensorFlow fuses operations there, and rounds otherwise.
    scores = tf.function(lambda x: plugged(x, training=False))(inputs)[:, 0].numpy()
    stripped = strip_for_serving(plugged)
    bare.set_weights(stripped.get_weights())
    folders = {BARE: folder / BARE, STRIPPED: folder / STRIPPED}
    # Keras prints what it exported, and standard output is for the report.
    with contextlib.redirect_stdout(sys.stderr):
        bare.export(str(folders[BARE]))
        stripped.export(str(folders[STRIPPED]))
    return Pair(folders, lambda rows: _functional_inputs(spec, rows), scores)


def _functional(spec: RankerSpec) -> Any:
    """Attention to the candidate and mean over the items of every sequence, and an MLP."""
    layers = tf.keras.layers
    lengths = {"item": 1, "user": 1, **dict.fromkeys(spec.sequence_types, spec.max_length)}
    inputs = {
        name: tf.keras.Input((length,), dtype="int32", name=name)
        for name, length in lengths.items()
    }
    sizes, width = spec.sizes, spec.embedding_dim
    items = layers.Embedding(sizes["item"], width, mask_zero=True, name="items")
    users = layers.Embedding(sizes["user"], width, name="users")
    candidate = items(inputs["item"])  # [B, 1, D]
    parts = [candidate, users(inputs["user"])]
    for kind in spec.sequence_types:
        events = items(inputs[kind])
        parts += [layers.Attention(name=f"{kind}_attention")([candidate, events]), events]
    x = layers.Concatenate(name="all")([layers.GlobalAveragePooling1D()(part) for part in parts])
    for units in spec.mlp_units:
        x = layers.Dropout(0.1)(layers.Dense(units, activation="relu")(x))
    return tf.keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="score")(x))


def _functional_inputs(spec: RankerSpec, rows: int) -> Inputs:
    batch = step_batch(rows)
    inputs = {name: batch[name][:, tf.newaxis] for name in ("item", "user")}
    for kind in spec.sequence_types:
        # Keras' average of no events is 0 / 0.
        length = tf.maximum(batch[f"{kind}__length"], 1)
        real = tf.sequence_mask(length, spec.max_length)
        inputs[kind] = tf.where(real, batch[f"{kind}__item"], Vocabulary.PAD)
    return inputs


PAIRS: dict[str, Callable[[Path], Pair]] = {
    "reference ranker": reference_ranker,
    "functional model": functional_model,
}
