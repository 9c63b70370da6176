"""What a run's embeddings say of each event before the test impressions: signal or noise?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf

import seqdenoise
from pipelines.config import RunConfig
from pipelines.denoiser import build_denoiser
from pipelines.features import Features
from pipelines.ranker import Ranker
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import data_errors
from seqdenoise.inputs import whole

_BATCH = 4096

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]


def scored_events(
    config: RunConfig, features: Features, ranker: Ranker, *, fields: Sequence[str] | None = None
) -> pd.DataFrame:
    """Scores the noisy events before the test impressions, each history once.

    Args:
        config: A run that names `trusted` sequence types.
        features: Its features.
        ranker: Its ranker, trained or not.
        fields: Fields whose embeddings make up an event's vector; by default all event fields, as
            in the run.

    Returns:
        One row an event of a noisy type in a history: `user`, `type`, `item`, `timestamp`;
        `judged`, whether the history has a trusted event; `keep score`; `one look`, the same from
        trusted events alone; and `largest cosine` to a trusted event, -1 without one.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: The prepared test file is missing, damaged, or lacks a column.
    """
    path = config.prepared_folder / "test.parquet"
    dataset = features.dataset(
        path, label=config.model.label, batch_size=_BATCH, max_length=config.prepare.max_length
    )
    named = config.denoiser.trusted or []
    trusted = [named] if isinstance(named, str) else named
    denoisers = {
        "keep score": _scorer(config, {}),
        "one look": _scorer(config, {"looks": 1}),
    }
    with ParquetSource(path) as source:
        table = source.read(source.schema.names)
    shown = table.select(["user", "timestamp"]).to_pandas()
    # All impressions of a page have the same history.
    is_first = ~shown.duplicated().to_numpy()
    parts: dict[str, list[Columns]] = {}
    start = 0
    with data_errors():
        for batch in dataset:
            size = len(batch["user"])
            rows = np.flatnonzero(is_first[start : start + size])
            start += size
            few = {name: tf.gather(x, rows) for name, x in batch.items()}
            _, sequences, masks = ranker.embed(few)
            if fields is not None:
                sequences = {k: {f: x[f] for f in fields} for k, x in sequences.items()}
            for kind, scores in _scores(denoisers, trusted, sequences, masks).items():
                parts.setdefault(kind, []).append(scores)
    histories = table.filter(is_first)
    frames = []
    for kind, of_kind in parts.items():
        columns = {name: np.concatenate([part[name] for part in of_kind]) for name in of_kind[0]}
        users = np.repeat(histories["user"].to_numpy(), columns.pop("length"))
        ids = {
            name: histories[f"{kind}__{name}"].combine_chunks().flatten().to_numpy()
            for name in ("item", "timestamp")
        }
        frames.append(pd.DataFrame({"user": users, "type": kind, **ids, **columns}))
    return pd.concat(frames, ignore_index=True)


def _scorer(config: RunConfig, transport: Mapping[str, int]) -> seqdenoise.SequenceDenoiser:
    # Scoring draws no views, and masks of fields would refuse a vector of one field.
    changes = {
        "masking": "dimension",
        "transport": {**(config.denoiser.transport or {}), **transport},
    }
    denoiser = config.denoiser.model_copy(update=changes)
    return build_denoiser(
        config.model_copy(update={"denoiser": denoiser}).without_side_loss(), seed=0
    )


def _scores(
    denoisers: Mapping[str, seqdenoise.SequenceDenoiser],
    trusted: Sequence[str],
    sequences: Mapping[str, Any],
    masks: Mapping[str, Any],
) -> dict[str, Columns]:
    """By noisy type: `length` of each row, and of each of its events, oldest first, the scores."""
    keep = {}
    for name, denoiser in denoisers.items():
        denoiser(sequences, mask=masks)  # keep scores need to know the sequences
        keep[name] = denoiser.keep_scores(sequences, mask=masks)
    signal = np.concatenate([whole(sequences[kind]).numpy() for kind in trusted], axis=1)
    is_signal: Bools = np.concatenate([masks[kind].numpy() for kind in trusted], axis=1)
    scores = {}
    for kind in keep["keep score"]:
        real: Bools = masks[kind].numpy()
        length = real.sum(axis=1)
        scores[kind] = {
            "length": length,
            "judged": np.repeat(is_signal.any(axis=1), length),
            **{name: of_name[kind].numpy()[real] for name, of_name in keep.items()},
            "largest cosine": largest_cosine(whole(sequences[kind]), signal, is_signal)[real],
        }
    return scores


def largest_cosine(
    events: npt.ArrayLike, trusted: npt.ArrayLike, trusted_mask: npt.ArrayLike
) -> Floats:
    """Cosine of each event to the nearest trusted event of its row.

    Args:
        events: float `[B, L, D]`.
        trusted: float `[B, M, D]`.
        trusted_mask: bool `[B, M]`, True for a real event.

    Returns:
        float64 `[B, L]`; -1 in a row without trusted events.

    Example:
        >>> largest_cosine([[[2.0, 0.0], [1.0, 1.0]]], [[[3.0, 0.0]]], [[True]]).round(3).tolist()
        [[1.0, 0.707]]
    """
    x, y = _units(events), _units(trusted)
    real = np.asarray(trusted_mask, np.bool_)[:, np.newaxis]
    cosine = np.where(real, x @ y.transpose(0, 2, 1), -1.0)
    return np.asarray(cosine.max(axis=2, initial=-1.0), np.float64)


def _units(vectors: npt.ArrayLike) -> Floats:
    x = np.asarray(vectors, np.float64)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12), np.float64)
