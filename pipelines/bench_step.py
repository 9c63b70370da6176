"""The `bench step` job: a training step of the reference ranker, with the plug-in and without."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.bench_machine import described, machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from pipelines.ranker import Ranker, RankerSpec
from pipelines.ranking_model import RankingModel
from seqdenoise import SequenceDenoiser, ViewEncoder, info_nce_loss, view_seed
from seqdenoise.health import health_metrics, update_health
from seqdenoise.masking import Masking
from seqdenoise.numerics import Tensor

_logger = logging.getLogger(__name__)

BATCH_SIZES = (1024, 4096)
TYPES = ("click", "cart", "purchase")
_LENGTH = 50
_SIZES = {"item": 50_000, "category": 500, "user": 100_000}
_FIELDS = ("item", "category")
_EMBEDDING_DIM = 16
# Of the third kind of step, in batches with more rows: the cost of all pairs is beside it.
_FEW_NEGATIVES = 1023
# A turn is at least this long, so that a step of some milliseconds is made many times in it.
_TURN_SECONDS = 1.0


def type_names(number: int) -> tuple[str, ...]:
    """Names of so many sequence types, those of the benchmark first."""
    return (*TYPES, *(f"type_{index}" for index in range(len(TYPES), number)))[:number]


def field_names(number: int) -> tuple[str, ...]:
    """Names of so many fields of an event, those of the benchmark first."""
    return (*_FIELDS, *(f"field_{index}" for index in range(len(_FIELDS), number)))[:number]


def _size(field: str) -> int:
    return _SIZES.get(field, _SIZES["category"])


def step_batch(
    rows: int,
    seed: int = 0,
    *,
    length: int = _LENGTH,
    num_types: int = len(TYPES),
    num_fields: int = len(_FIELDS),
) -> dict[str, Tensor]:
    """A batch of impressions: popular items more often, histories of 0 to `length` events.

    Args:
        rows: `B`.
        seed: Of the draws.
        length: Slots `L` of a sequence.
        num_types: Number of sequence types.
        num_fields: Number of fields of an event; from the third on as many ids as a category has.

    Returns:
        What `ranking_model` takes.
    """
    rng = np.random.default_rng(seed)

    def ids(field: str, *shape: int) -> Tensor:
        popular = rng.zipf(1.2, shape) % (_size(field) - 3)
        return tf.constant(popular + 3, tf.int32)

    fields = field_names(num_fields)
    batch = {field: ids(field, rows) for field in (*fields, "user")}
    batch["is_click"] = tf.constant(rng.integers(0, 2, rows), tf.int32)
    for kind in type_names(num_types):
        batch[f"{kind}__length"] = tf.constant(rng.integers(0, length + 1, rows), tf.int32)
        batch |= {f"{kind}__{field}": ids(field, rows, length) for field in fields}
    return batch


def ranking_model(
    *,
    plugged: bool,
    length: int = _LENGTH,
    num_types: int = len(TYPES),
    num_fields: int = len(_FIELDS),
    max_negatives: int | None = None,
) -> RankingModel:
    """A new reference ranker for what `step_batch` makes of the same numbers, compiled."""
    fields = field_names(num_fields)
    spec = RankerSpec(
        sequence_types=type_names(num_types),
        event_fields=fields,
        categorical=("user",),
        numeric={},
        sizes={field: _size(field) for field in (*fields, "user")},
        max_length=length,
        embedding_dim=_EMBEDDING_DIM,
        attention_units=(32,),
        mlp_units=(128, 64),
        dropout=0.0,
        embedding_l2=0.0,
    )
    denoiser = None
    if plugged:
        options = {"max_negatives": max_negatives}
        denoiser = SequenceDenoiser(masking="dimension", loss_options=options)
    model = RankingModel(Ranker(spec), "is_click", denoiser)
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-3))
    return model


def training_step(
    batch: Mapping[str, Tensor], *, plugged: bool, **options: int
) -> Callable[[], dict[str, Tensor]]:
    """A call that trains a new `ranking_model` on a batch, and gives its losses."""
    step = tf.function(ranking_model(plugged=plugged, **options).train_step)
    return lambda: step(batch)


def _parts(rows: int) -> dict[str, Callable[[], Any]]:
    """What the plug-in does in a step, each alone, forward and backward, for all types."""
    rng = np.random.default_rng(0)
    width = _EMBEDDING_DIM * len(_FIELDS)

    def normal(*shape: int) -> Tensor:
        return tf.constant(rng.standard_normal(shape, np.float32))

    events = [normal(rows, _LENGTH, _EMBEDDING_DIM) for _ in TYPES for _ in _FIELDS]
    masks = [tf.sequence_mask(rng.integers(0, _LENGTH + 1, rows), _LENGTH) for _ in TYPES]
    seeds = [view_seed(0, kind, 0) for kind in TYPES]
    pooled = [normal(2 * rows, width) for _ in TYPES]
    vectors = [tf.math.l2_normalize(normal(rows, 32), -1) for _ in range(2 * len(TYPES))]
    encoders = [ViewEncoder(seed=number) for number, _ in enumerate(TYPES)]
    for encoder in encoders:
        encoder.build((None, width))
    health = [health_metrics(kind, 32) for kind in TYPES]
    valid = tf.ones([rows], tf.bool)
    ids = tf.constant(rng.integers(0, _SIZES["user"], rows))

    def views(*events: Tensor) -> list[Tensor]:
        masking, fields = Masking("dimension", None, None), iter(events)
        return [
            view
            for kind, mask, seed in zip(TYPES, masks, seeds, strict=True)
            for view in masking.views(kind, {f: next(fields) for f in _FIELDS}, mask, seed)[:2]
        ]

    def encoded(*pooled: Tensor) -> list[Tensor]:
        return [encoder(both) for encoder, both in zip(encoders, pooled, strict=True)]

    def losses(*vectors: Tensor) -> list[Tensor]:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        return [info_nce_loss(a, b, mask=valid, ids=ids) for a, b in pairs]

    @tf.function
    def watched(*vectors: Tensor) -> None:
        pairs = zip(health, vectors[::2], vectors[1::2], strict=True)
        for of_type, a, b in pairs:
            zero = tf.zeros([])
            update_health(of_type, a, b, mask=valid, ids=ids, max_similarity=None, loss=zero)

    def both_ways(fn: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Callable[[], Any]:
        trained = [v for encoder in encoders for v in encoder.trainable_variables]

        @tf.function
        def call(*inputs: Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = fn(*inputs)
            return tape.gradient(outputs, [*inputs, *trained])

        return lambda: call(*inputs)

    return {
        "views": both_ways(views, events),
        "encoders": both_ways(encoded, pooled),
        "loss": both_ways(losses, vectors),
        "health metrics": lambda: watched(*vectors),
    }


def _turn(call: Callable[[], Any]) -> float:
    """Median seconds of a call, over as many as fill a turn."""
    seconds: list[float] = []
    while sum(seconds) < _TURN_SECONDS:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def bench_step(
    batch_sizes: Sequence[int] = BATCH_SIZES, *, rounds: int = 7, output: Path | None = None
) -> dict[str, Any]:
    """Times training steps of the same ranker with and without the plug-in, in turns.

    The ranker is the reference one (DIN): three sequence types of at most 50 events of two fields,
    InfoNCE over all rows of the batch, the other defaults. All steps of a size are on one batch,
    so that reading is not in it. Beside them, in the same rounds, the parts of the plug-in alone,
    and in batches of more than 1,024 rows the plug-in with at most 1,023 negatives an anchor.

    Args:
        batch_sizes: Rows of the batch, each at least 2.
        rounds: Turns of each, at least 1.
        output: The JSON file of everything measured.

    Returns:
        `machine`, `versions`, `rounds`; and `results`, by batch size: `bare_seconds` and
        `plugged_seconds` (medians of the turns), `ratio` of these, `ratio_range` (lowest and
        highest of a round), `few_negatives_ratio` and its range (likewise, or None), `parts`
        (median seconds by part), and `turns` (seconds of all).

    Raises:
        ConfigError: A number is out of range.
    """
    if not batch_sizes or min(batch_sizes) < 2 or rounds < 1:
        raise ConfigError(
            "expected batches of at least 2 rows and one round. "
            f"Received: batch_sizes={list(batch_sizes)}, rounds={rounds}"
        )
    results = {}
    for rows in batch_sizes:
        _logger.info("bench: steps of %d rows, first calls", rows)
        batch = step_batch(rows)
        calls = {
            "bare": training_step(batch, plugged=False),
            "plugged": training_step(batch, plugged=True),
            **_parts(rows),
        }
        if rows > _FEW_NEGATIVES + 1:
            few = training_step(batch, plugged=True, max_negatives=_FEW_NEGATIVES)
            calls["few negatives"] = few
        for call in calls.values():
            call()
            call()  # an optimizer makes its slots in the first one
        turns: dict[str, list[float]] = {name: [] for name in calls}
        for index in range(rounds):
            _logger.info("bench: steps of %d rows, round %d of %d", rows, index + 1, rounds)
            for name, call in calls.items():
                turns[name].append(_turn(call))
        bare, plugged = np.array(turns["bare"]), np.array(turns["plugged"])
        ratios = plugged / bare
        results[str(rows)] = {
            "bare_seconds": float(np.median(bare)),
            "plugged_seconds": float(np.median(plugged)),
            "ratio": float(np.median(plugged) / np.median(bare)),
            "ratio_range": [float(ratios.min()), float(ratios.max())],
            "few_negatives_ratio": None,
            "few_negatives_ratio_range": None,
            "parts": {
                name: float(np.median(seconds))
                for name, seconds in turns.items()
                if name not in ("bare", "plugged", "few negatives")
            },
            "turns": turns,
        }
        if "few negatives" in turns:
            fewer = np.array(turns["few negatives"])
            results[str(rows)] |= {
                "few_negatives_ratio": float(np.median(fewer) / np.median(bare)),
                "few_negatives_ratio_range": [
                    float((fewer / bare).min()),
                    float((fewer / bare).max()),
                ],
            }
    report = {
        "machine": machine(),
        "versions": versions(("seqdenoise", "tensorflow", "tensorflow-recommenders")),
        "rounds": rounds,
        "results": results,
    }
    write_json_report(report, output)
    return report


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown table, ms, and a line about what it was measured on."""
    results = report["results"]
    parts = list(next(iter(results.values()))["parts"])
    lines = [
        f"| rows | bare, ms | plugged, ms | ratio | ratio, {_FEW_NEGATIVES:,} negatives | "
        + ", ms | ".join(parts)
        + ", ms |",
        "| ---: | ---: | ---: | ---: | ---: |" + " ---: |" * len(parts),
    ]
    for rows, result in results.items():
        cells = [
            f"{int(rows):,}",
            f"{1000 * result['bare_seconds']:.1f}",
            f"{1000 * result['plugged_seconds']:.1f}",
            *(_ratio_cell(result, name) for name in ("ratio", "few_negatives_ratio")),
            *(f"{1000 * result['parts'][name]:.1f}" for name in parts),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Medians of {report['rounds']} turns, with the lowest and highest ratio of a round; parts "
        "are timed alone, so they need not add up. "
        f"{described(report['machine'], report['versions'])}.",
    ]
    return "\n".join(lines) + "\n"


def _ratio_cell(result: Mapping[str, Any], name: str) -> str:
    if result[name] is None:
        return ""
    low, high = result[f"{name}_range"]
    return f"{result[name]:.2f} ({low:.2f} to {high:.2f})"
