"""The TFRS model that trains the reference ranker, with the plug-in or without."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from pipelines.ranker import Ranker
from seqdenoise import SequenceDenoiser, gradient_balance
from seqdenoise.numerics import Tensor
from seqdenoise.recording import recording
from seqdenoise.replicas import GlobalBatch
from seqdenoise.views import view_seed

# A batch looks up some 80,000 rows. To sort those out costs more than to update a table of as many.
_DENSE_ROWS = 100_000


class RankingModel(tfrs.Model):
    """A ranker and, optionally, the plug-in between its embeddings and its attention.

    Args:
        ranker: The ranker.
        label: Name of the label among a batch's features.
        denoiser: The plug-in, or None for the control.
        positives: Which labels the plug-in gets: `"views"` for none, `"same_label"`, or
            `"same_positive_label"`.
        seed: Seed of the ranker's dropout, whose draws depend on it and on the step alone.
        is_joint: Whether the side loss counts beside the ranking loss, or in a warm start alone.
        jit_compile: Whether XLA compiles loss and gradients.

    Attributes:
        is_warming: Whether steps are those of the warm start, by the side loss alone.
    """

    def __init__(
        self,
        ranker: Ranker,
        label: str,
        denoiser: SequenceDenoiser | None = None,
        positives: str = "views",
        seed: int = 0,
        *,
        is_joint: bool = True,
        jit_compile: bool = False,
    ) -> None:
        super().__init__()
        self.ranker = ranker
        self.seed = seed
        self.is_joint = is_joint
        self.is_warming = False
        steps: list[Any] = [self._ranking_step, self._warming_step]
        if jit_compile:
            steps = [tf.function(x, jit_compile=True, reduce_retracing=True) for x in steps]
        self._steps = tuple(steps)
        self.step = self.add_weight(
            name="step", shape=(), dtype="int64", initializer="zeros", trainable=False
        )
        self.label = label
        self.denoiser = denoiser
        self.positives = positives
        trusted = (denoiser and denoiser.trusted) or ()
        self._is_candidate_trusted = "candidate" in (
            [trusted] if isinstance(trusted, str) else trusted
        )
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
        )
        # TFRS logs the last batch's loss; a learning curve needs the epoch's mean.
        self.mean_loss = tf.keras.metrics.Mean(name="mean_loss")

    def call(self, features: Mapping[str, Tensor], training: bool = False) -> Tensor:
        """Logits `[B, 1]` of a batch of encoded features."""
        candidate, sequences, masks = self.ranker.embed(features)
        if self.denoiser is not None:
            sequences = self._denoise(
                self.denoiser, candidate, sequences, masks, features, training and self.is_joint
            )
        dropout_seed, batch = None, None
        if training:
            batch = GlobalBatch.around(features[self.label], is_global=True)
            dropout_seed = view_seed(self.seed, "dropout", tf.convert_to_tensor(self.step))
            self.step.assign_add(1)
        return self.ranker.score(
            candidate, sequences, masks, features, training, dropout_seed, batch
        )

    @tf.function(reduce_retracing=True)
    def probabilities(self, features: Mapping[str, Tensor]) -> Tensor:
        """Probabilities `[B]` of a batch of encoded features, as a graph that is made once."""
        return tf.sigmoid(self(features, training=False))[:, 0]

    def compute_loss(self, inputs: Mapping[str, Tensor], training: bool = False) -> Tensor:
        """Binary cross-entropy of the label, weighted by `weight` where the log has it.

        The mean over the rows of all replicas, of which each returns its part: those add up.
        """
        loss = self._ranking_loss(self(inputs, training=training), inputs)
        self.mean_loss.update_state(_num_replicas() * loss)
        return loss

    def train_step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step, whose gradients are on several replicas those of one device with all rows.

        TFRS adds up what the replicas' layers added. The ranker's penalties are parts that add up;
        the side loss is the whole one on every replica.
        """
        inputs = dict(inputs)
        if inputs["user"].dtype == tf.string:  # which XLA does not know; equal is all that matters
            inputs["user"] = tf.strings.to_hash_bucket_fast(inputs["user"], 2**62)
        ranking_step, warming_step = self._steps
        logs, gradients = (warming_step if self.is_warming else ranking_step)(inputs)
        pairs = zip(gradients, self.trainable_variables, strict=True)
        # What a step does not reach: the ranker in a warm start, encoders without joint training.
        self.optimizer.apply_gradients([(g, variable) for g, variable in pairs if g is not None])
        if _num_replicas() > 1:
            # A metric's result is one more collective for each of its variables.
            return logs
        return {**{metric.name: metric.result() for metric in self.metrics}, **logs}

    def _ranking_step(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Any]]:
        """Losses, and the gradients of their sum on all trainable variables."""
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, training=True)
            side = self.denoiser.losses if self.denoiser is not None and self.is_joint else []
            added = [*self.ranker.losses, *(x / _num_replicas() for x in side)]
            added = tf.add_n(added) if added else tf.constant(0.0)
            total = loss + added
        logs = {"loss": loss, "regularization_loss": added, "total_loss": total}
        return logs, self._gradients(tape, total)

    def _warming_step(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Any]]:
        """The side loss without its weight, as of `seqdenoise.warm_start`, and its gradients."""
        denoiser = self.denoiser
        if denoiser is None:
            raise ValueError("There is no side loss to train by. Received: a model without plug-in")
        with tf.GradientTape() as tape, recording() as calls:
            candidate, sequences, masks = self.ranker.embed(inputs)
            self._denoise(denoiser, candidate, sequences, masks, inputs, True)
            loss = tf.add_n([call.side_loss for call in calls]) / _num_replicas()
        self.mean_loss.update_state(_num_replicas() * loss)
        return {"loss": loss}, self._gradients(tape, loss)

    def _gradients(self, tape: tf.GradientTape, loss: Tensor) -> list[Any]:
        gradients = tape.gradient(loss, self.trainable_variables)
        return [
            tf.convert_to_tensor(gradient)
            if isinstance(gradient, tf.IndexedSlices) and variable.shape[0] <= _DENSE_ROWS
            else gradient
            for gradient, variable in zip(gradients, self.trainable_variables, strict=True)
        ]

    def gradient_balance(self, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Ratio and cosine of the side loss's gradient on the embeddings to the ranking loss's.

        Measured eagerly, without the ranker's dropout, and leaves the model and every random state
        as they were.

        Args:
            features: Encoded features of a batch.

        Returns:
            See `seqdenoise.gradient_balance`.

        Raises:
            ValueError: The model has no plug-in.
        """
        denoiser = self.denoiser
        if denoiser is None:
            raise ValueError("There is no side loss to measure. Received: a model without plug-in")
        measured = [variable for metric in denoiser.metrics for variable in metric.variables]
        kept = [(v, v.numpy()) for v in [*denoiser.non_trainable_variables, *measured]]
        strategy = self.distribute_strategy
        main, side = strategy.run(self._both_gradients, args=(denoiser, features))
        for variable, value in kept:
            variable.assign(value)
        first = tf.nest.map_structure(
            lambda x: None if x is None else strategy.experimental_local_results(x)[0], (main, side)
        )
        return gradient_balance(*first)

    def _both_gradients(
        self, denoiser: SequenceDenoiser, features: Mapping[str, Tensor]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients of the ranking loss and of the side loss on the embeddings.

        Of several replicas, each takes its rows of the batch, and the gradients are added up.
        """
        context = tf.distribute.get_replica_context()
        number, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
        if replicas > 1:
            rows = tf.shape(features[self.label])[0]
            bounds = [rows * i // replicas for i in (number, number + 1)]
            features = {name: x[bounds[0] : bounds[1]] for name, x in features.items()}
        tables = [table.embeddings for table in self.ranker.tables.values()]
        with tf.GradientTape(persistent=True) as tape:
            candidate, sequences, masks = self.ranker.embed(features)
            sequences = self._denoise(denoiser, candidate, sequences, masks, features, True)
            side = tf.add_n(denoiser.losses) / replicas
            logits = self.ranker.score(candidate, sequences, masks, features)
            main = self._ranking_loss(logits, features)
        gradients = tape.gradient(main, tables), tape.gradient(side, tables)
        if replicas == 1:
            return gradients
        summed = [
            [None if x is None else context.all_reduce("SUM", x) for x in some]
            for some in gradients
        ]
        return summed[0], summed[1]

    def _denoise(
        self,
        denoiser: SequenceDenoiser,
        candidate: Mapping[str, Tensor],
        sequences: Mapping[str, Any],
        masks: Mapping[str, Tensor],
        features: Mapping[str, Tensor],
        training: bool,
    ) -> Any:
        labels: Tensor = None
        if self.positives != "views":
            labels = tf.cast(features[self.label], tf.int64)
        if self.positives == "same_positive_label":
            labels = tf.where(labels > 0, labels, -1)
        return denoiser(
            sequences,
            mask=masks,
            sample_ids=features.get("user"),
            sample_weight=features.get("weight"),
            labels=labels,
            candidate=candidate if self._is_candidate_trusted else None,
            training=training,
        )

    def _ranking_loss(self, logits: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        total = self.task(
            labels=tf.cast(features[self.label], tf.float32)[:, tf.newaxis],
            predictions=logits,
            sample_weight=features.get("weight"),
        )
        rows = GlobalBatch.around(logits, is_global=True).count(logits)
        return total / tf.cast(rows, total.dtype)


def _num_replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)
