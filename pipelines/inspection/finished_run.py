"""A finished training run, loaded to look at what it makes of the events."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tensorflow as tf

from pipelines.config import ConfigError, RunConfig
from pipelines.denoiser import build_denoiser
from pipelines.export import load_model
from pipelines.features import Features
from pipelines.ranker import Ranker
from seqdenoise import SequenceDenoiser
from seqdenoise.errors import DataError
from seqdenoise.numerics import Tensor

CANDIDATE = "candidate"
"""What `denoiser.trusted` calls the item that is ranked, which is no sequence."""


@dataclass(frozen=True)
class FinishedRun:
    """What a run's folder says, and the models made from it.

    Attributes:
        folder: What `train` wrote.
        config: The run's configuration.
        features: Its fitted features.
        seed: Its seed.
        ranker: The ranker at its best epoch.
        denoiser: The plug-in that judges by `denoiser.trusted`, built; keep scores come from the
            ranker's embeddings, so it has no trained weights that they depend on.
    """

    folder: Path
    config: RunConfig
    features: Features
    seed: int
    ranker: Ranker
    denoiser: SequenceDenoiser

    @property
    def trusted(self) -> tuple[str, ...]:
        """What events are judged by: types, and `CANDIDATE` for the item that is ranked."""
        trusted = self.config.denoiser.trusted or ()
        return (trusted,) if isinstance(trusted, str) else tuple(trusted)

    @property
    def trusted_types(self) -> tuple[str, ...]:
        """The types among `trusted`."""
        return tuple(kind for kind in self.trusted if kind != CANDIDATE)

    @property
    def noisy_types(self) -> tuple[str, ...]:
        """The types whose events are judged: denoised and not trusted, in the run file's order."""
        not_judged = {*self.config.denoiser.exclude, *self.trusted}
        return tuple(kind for kind in self.features.sequence_types if kind not in not_judged)

    def dataset(self, path: Path, batch_size: int) -> tf.data.Dataset:
        """The encoded rows of a prepared file, in its order."""
        return self.features.dataset(
            path,
            label=self.config.model.label,
            batch_size=batch_size,
            max_length=self.config.prepare.max_length,
        )

    @cached_property
    def keep_scores(self) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """From an encoded batch to float32 `[B, L]` by noisy type, as a graph that is made once."""

        @tf.function(reduce_retracing=True)
        def scores(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
            candidate, sequences, masks = self.ranker.embed(batch)
            return self.denoiser.keep_scores(
                sequences, mask=masks, candidate=candidate if CANDIDATE in self.trusted else None
            )

        return scores

    def untrained_ranker(self) -> Ranker:
        """The ranker as it was before the run's first step: the same seed, the same weights."""
        tf.keras.utils.set_random_seed(self.seed)
        return Ranker(self.features.ranker_spec(self.config))


def _seed(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: expected the seed of a finished training run. Received: {error!r}"
        ) from error


def load_finished_run(run_folder: Path) -> FinishedRun:
    """Loads a run whose configuration says which events to trust.

    A run with the plug-in off may say so too: its embeddings are those of ranking alone.

    Args:
        run_folder: What `train` wrote.

    Returns:
        The run at its best epoch.

    Raises:
        ConfigError: `denoiser.trusted` is not set, or does not go with the sequences.
        DataError: The folder is not that of a finished run.
    """
    config, features, model = load_model(run_folder)
    place = run_folder / "run.json"
    if config.denoiser.trusted is None:
        raise ConfigError(
            f"{place}, denoiser.trusted: expected the types whose events are trusted, or "
            f"{CANDIDATE!r}, to judge the others by. Received: null"
        )
    seed = _seed(run_folder / "metrics.json")
    denoiser = build_denoiser(config.without_side_loss(), seed=seed)
    spec = model.ranker.spec
    events = tf.TensorShape([None, spec.max_length, spec.embedding_dim])
    sequences = {kind: dict.fromkeys(spec.event_fields, events) for kind in spec.sequence_types}
    try:
        denoiser.build(sequences)
    except ValueError as error:
        raise ConfigError(f"{place}, denoiser: {error}") from error
    return FinishedRun(run_folder, config, features, seed, model.ranker, denoiser)
