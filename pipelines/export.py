"""A trained ranker as a SavedModel that takes raw ids; of the plug-in it has the gate, if any."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from pipelines.config import RunConfig
from pipelines.denoiser import build_denoiser
from pipelines.features import Features
from pipelines.ranker import Ranker
from pipelines.ranking_model import RankingModel
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.errors import DataError

logger = logging.getLogger(__name__)

SIGNATURE = "score"


def load_model(run_folder: Path) -> tuple[RunConfig, Features, RankingModel]:
    """Restores a training run at its best epoch, without its side loss.

    Args:
        run_folder: What `train` wrote.

    Returns:
        The run's configuration, its features, and its model. Of the plug-in the model has what
        scores events and gates them, where the run names `trusted` types, and else nothing; of
        CL4CTR it has nothing.

    Raises:
        DataError: The folder is not that of a finished run.
    """
    try:
        config = RunConfig.model_validate_json((run_folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{run_folder}: expected the folder of a finished training run. Received: {error}"
        ) from error
    features = Features.load(run_folder / "features.json")
    # Nor what trained the ranker alone.
    ranker = Ranker(replace(features.ranker_spec(config), cl4ctr=None))
    denoiser = None
    if config.denoiser.enabled and config.denoiser.trusted is not None:
        # Scores come from the ranker's embeddings: nothing of the plug-in was trained for them.
        denoiser = build_denoiser(config.without_side_loss(), seed=0)
    model = RankingModel(ranker, config.model.label, denoiser)
    model(_placeholders(features, config.prepare.max_length))  # creates the weights
    # The ranker alone: nothing of the plug-in is read, nor of the optimiser.
    weights = run_folder / "checkpoint" / "best"
    try:
        status = tf.train.Checkpoint(ranker=ranker).read(str(weights))
        status.assert_existing_objects_matched().expect_partial()
    except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
        # IndexError is what TensorFlow makes of a checkpoint that is cut off.
        raise DataError(f"{weights}: expected the run's weights. Received: {error}") from error
    return config, features, model


def _placeholders(features: Features, max_length: int) -> dict[str, tf.Tensor]:
    """One encoded row of padding."""
    row = {name: tf.zeros([1], tf.int32) for name in features.vocabularies}
    row |= {name: tf.zeros([1], tf.float32) for name in features.scales}
    for kind in features.sequence_types:
        row[f"{kind}__length"] = tf.zeros([1], tf.int32)
        for field in features.event_fields:
            row[f"{kind}__{field}"] = tf.zeros([1, max_length], tf.int32)
    return row


def _lookup_table(vocabulary: Vocabulary) -> tf.lookup.StaticHashTable:
    dtype = tf.string if vocabulary.is_text else tf.int64
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant(vocabulary.keys, dtype),
            tf.range(Vocabulary.FIRST, vocabulary.size, dtype=tf.int64),
        ),
        default_value=Vocabulary.OOV,
    )


class _Serving(tf.Module):
    """Raw columns to scores. Holds the ranker's variables, not the Keras model around them.

    Keras would add its own call functions to the export, those with dropout included.
    """

    def __init__(self, model: RankingModel, features: Features, max_length: int) -> None:
        super().__init__(name="serving")
        self.ranker_variables = list(model.ranker.variables)
        self.tables = {n: _lookup_table(v) for n, v in features.vocabularies.items()}

        def encode(name: str, values: tf.Tensor) -> tf.Tensor:
            return tf.cast(self.tables[name].lookup(values), tf.int32)

        def score(**raw: tf.Tensor) -> dict[str, tf.Tensor]:
            batch = {name: encode(name, raw[name]) for name in features.vocabularies}
            batch |= {name: raw[name] for name in features.scales}
            for kind in features.sequence_types:
                # What stands beyond the length may be anything: the ranker does not look at it.
                batch[f"{kind}__length"] = raw[f"{kind}__length"]
                for field in features.event_fields:
                    batch[f"{kind}__{field}"] = encode(field, raw[f"{kind}__{field}"])
            return {"score": model.probabilities(batch)}

        self.score = tf.function(score)
        self.signature = self._signature(features, max_length)

    def _signature(self, features: Features, max_length: int) -> dict[str, tf.TensorSpec]:
        kinds = {
            name: tf.string if vocabulary.is_text else tf.int64
            for name, vocabulary in features.vocabularies.items()
        }
        specs = {name: tf.TensorSpec([None], kind, name) for name, kind in kinds.items()}
        specs |= {name: tf.TensorSpec([None], tf.float32, name) for name in features.scales}
        for kind in features.sequence_types:
            name = f"{kind}__length"
            specs[name] = tf.TensorSpec([None], tf.int32, name)
            for field in features.event_fields:
                name = f"{kind}__{field}"
                specs[name] = tf.TensorSpec([None, max_length], kinds[field], name)
        return specs


def export(run_folder: Path, folder: Path) -> None:
    """Writes a SavedModel, whole or not at all.

    Its signature `score` (also the default one) takes the raw columns of a prepared row by name:
    ids `[B]`; numbers float32 `[B]`; for each type T the padded ids `T__item` and `T__field` `[B,
    L]`, oldest to newest from the left, and `T__length` int32 `[B]`. What stands beyond the length
    does not matter. It gives `score` float32 `[B]`, the probability. `inputs.json` beside it lists
    the inputs, with the number that stands for a missing value.

    Args:
        run_folder: What `train` wrote.
        folder: The output folder; replaced where it exists.

    Raises:
        DataError: `run_folder` is not that of a finished run.
    """
    config, features, model = load_model(run_folder)
    write_saved_model(model, features, config.prepare.max_length, folder)
    logger.info("exported %s to %s", run_folder, folder)


def write_saved_model(
    model: RankingModel, features: Features, max_length: int, folder: Path
) -> None:
    """Writes a model that is at hand as `export` does that of a run.

    Args:
        model: Built, without a side loss.
        features: What turns raw columns into its inputs.
        max_length: Slots of a sequence.
        folder: The output folder; replaced where it exists.
    """
    serving = _Serving(model, features, max_length)
    concrete = serving.score.get_concrete_function(**serving.signature)
    inputs = {
        name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
        for name, spec in serving.signature.items()
    }
    for name, scale in features.scales.items():
        inputs[name]["missing"] = scale.fill
    with atomic_folder(folder) as aside:
        tf.saved_model.save(
            serving, str(aside), signatures={SIGNATURE: concrete, "serving_default": concrete}
        )
        (aside / "inputs.json").write_text(json.dumps(inputs, indent=2), encoding="utf-8")
