"""The reference ranker: a DIN-style network, and the TFRS model that trains it with the plug-in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from pipelines.cl4ctr import Cl4ctr
from pipelines.run_sections import Cl4ctrConfig
from seqdenoise import SequenceDenoiser, gradient_balance
from seqdenoise.numerics import Tensor
from seqdenoise.recording import recording
from seqdenoise.replicas import GlobalBatch
from seqdenoise.views import feature_dropout, fold_in, view_seed

# A batch looks up some 80,000 rows. To sort those out costs more than to update a table of as many.
_DENSE_ROWS = 100_000


@dataclass(frozen=True)
class RankerSpec:
    """Shape of the ranker.

    Attributes:
        sequence_types: Names of the behaviour sequences.
        event_fields: Fields of an event and of the candidate; the first is `item`.
        categorical: Further columns that are embedded.
        numeric: Further columns that are numbers, each with the mean and the standard deviation of
            its signed `log1p` over the training rows.
        sizes: Number of ids of each embedded field or column, the reserved ones included.
        max_length: Slots `L` of a sequence.
        embedding_dim: Length of one embedding.
        attention_units: Hidden layers of the attention network.
        mlp_units: Hidden layers of the final network.
        dropout: Dropout rate in the final network.
        embedding_l2: L2 penalty on the embeddings looked up in a batch.
        cl4ctr: CL4CTR's penalties, or None for none.
    """

    sequence_types: tuple[str, ...]
    event_fields: tuple[str, ...]
    categorical: tuple[str, ...]
    numeric: Mapping[str, tuple[float, float]]
    sizes: Mapping[str, int]
    max_length: int
    embedding_dim: int
    attention_units: tuple[int, ...]
    mlp_units: tuple[int, ...]
    dropout: float
    embedding_l2: float
    cl4ctr: Cl4ctrConfig | None = None


def _mlp(units: Sequence[int], name: str) -> Any:
    layers = [tf.keras.layers.Dense(width, activation="relu") for width in units]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)], name=name)


class TargetAttention(tf.keras.layers.Layer):
    """Relevance of each event to the candidate.

    An MLP on candidate `q`, event `k`, `q - k` and `q * k`. Its first layer is linear in these and,
    for a given candidate, linear in `k`: `q A + k (B + diag(q) C) + bias` is the same family of
    functions as one layer on the four parts side by side, without making them for every event.

    Args:
        units: Hidden layers, at least one.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, units: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first, *rest = units
        self.units = first
        self.candidate = tf.keras.layers.Dense(first, name="candidate")
        self.rest = _mlp(rest, "rest")

    def build(self, candidate_shape: Any) -> None:
        """Creates the event's matrices."""
        shape = (candidate_shape[-1], self.units)
        self.event = self.add_weight(name="event", shape=shape, initializer="glorot_uniform")
        self.product = self.add_weight(name="product", shape=shape, initializer="glorot_uniform")
        super().build(candidate_shape)

    def call(self, candidate: Tensor, events: Tensor) -> Tensor:
        """Relevance `[B, L]` of events `[B, L, D]` to a candidate `[B, D]`."""
        per_row = self.event + candidate[:, :, tf.newaxis] * self.product  # [B, D, units]
        hidden = tf.matmul(events, per_row) + self.candidate(candidate)[:, tf.newaxis]
        return self.rest(tf.nn.relu(hidden))[:, :, 0]


class Ranker(tf.keras.Model):
    """Target attention over behaviour sequences, side features, and an MLP to one logit.

    The forward pass comes in two halves, `embed` and `score`, so that a plug-in can stand between
    them without being part of the ranker, and so never of its export.

    Args:
        spec: Its shape.
        seed: Seed of the encoder of `cl4ctr`; the other weights take the global one.

    References:
        Zhou et al. (2018), "Deep Interest Network for Click-Through Rate Prediction", section 4.
        The attention weights are not normalised, as there.
    """

    def __init__(self, spec: RankerSpec, seed: int = 0) -> None:
        super().__init__(name="ranker")
        self.spec = spec
        self.tables = {
            name: tf.keras.layers.Embedding(
                size,
                spec.embedding_dim,
                embeddings_initializer="glorot_normal",
                name=f"{name}_table",
            )
            for name, size in spec.sizes.items()
        }
        self.attention = {
            kind: TargetAttention(spec.attention_units, name=f"{kind}_attention")
            for kind in spec.sequence_types
        }
        self.mlp = _mlp(spec.mlp_units, "mlp")
        self.cl4ctr = None
        if spec.cl4ctr is not None:
            num_fields = len(spec.event_fields) + len(spec.categorical)
            self.cl4ctr = Cl4ctr(spec.cl4ctr, num_fields, spec.embedding_dim, seed)

    def embed(
        self, features: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Tensor]]:
        """Embeds the candidate and the events of every sequence.

        Args:
            features: Encoded features of a batch.

        Returns:
            Per field the candidate `[B, D_f]`; per type and field the events `[B, L, D_f]`; per
            type bool `[B, L]`, True for a real event.
        """
        fields = self.spec.event_fields
        candidate = {field: self.tables[field](features[field]) for field in fields}
        sequences, masks = {}, {}
        for kind in self.spec.sequence_types:
            sequences[kind] = {
                field: self.tables[field](features[f"{kind}__{field}"]) for field in fields
            }
            masks[kind] = tf.sequence_mask(features[f"{kind}__length"], self.spec.max_length)
        return candidate, sequences, masks

    def score(
        self,
        candidate: Mapping[str, Tensor],
        sequences: Mapping[str, Mapping[str, Tensor]],
        masks: Mapping[str, Tensor],
        features: Mapping[str, Tensor],
        training: bool = False,
        dropout_seed: Tensor = None,
        batch: GlobalBatch | None = None,
    ) -> Tensor:
        """Scores the candidate.

        Args:
            candidate: Per field float `[B, D_f]`.
            sequences: Per type and field float `[B, L, D_f]`.
            masks: Per type bool `[B, L]`.
            features: Encoded features of the batch, for the side features and lengths.
            training: Whether to add the penalties on the embeddings.
            dropout_seed: int64 `[2]`, the seed of this step's dropout and of CL4CTR's masks; None
                for no dropout, and where nothing is trained.
            batch: The rows of all replicas, of whose penalty this replica adds its part; None if
                there are no others.

        Returns:
            Logits `[B, 1]`.
        """
        fields, batch = self.spec.event_fields, batch or GlobalBatch()
        target = tf.concat([candidate[field] for field in fields], axis=-1)  # [B, D]
        parts = [target]
        penalised = [target]
        for kind in self.spec.sequence_types:
            by_field, real = sequences[kind], tf.cast(masks[kind], tf.float32)
            events = tf.concat([by_field[field] for field in fields], axis=-1)
            relevance = real * self.attention[kind](target, events)
            count = tf.reduce_sum(real, axis=1, keepdims=True)
            share = tf.math.divide_no_nan(real, count)
            # Padding is the embedding of PAD, a finite vector, so a weight of 0 removes it.
            pooled = tf.matmul(tf.stack([relevance, share], axis=1), events)  # [B, 2, D]
            attended, mean = pooled[:, 0], pooled[:, 1]
            # How much of the history matches is a feature of its own.
            matching = tf.reduce_sum(relevance, axis=1, keepdims=True)
            parts += [attended, mean, matching, tf.math.log1p(count)]
            penalised.append(mean)
        side = [self.tables[name](features[name]) for name in self.spec.categorical]
        parts += side
        for name, (mean, deviation) in self.spec.numeric.items():
            x = features[name][:, tf.newaxis]
            parts.append((tf.sign(x) * tf.math.log1p(tf.abs(x)) - mean) / deviation)
        if training and self.spec.embedding_l2:
            squares = tf.add_n([tf.reduce_sum(x * x) for x in penalised + side])
            rows = tf.cast(batch.count(target), squares.dtype)
            self.add_loss(self.spec.embedding_l2 * squares / rows)
        if training and self.cl4ctr is not None:
            # The hidden layers' dropout takes the numbers below.
            seed = fold_in(dropout_seed, len(self.mlp.layers))
            embedded = [*(candidate[field] for field in fields), *side]
            self.add_loss(self.cl4ctr.penalty(embedded, seed=seed, batch=batch))
        x = tf.concat(parts, axis=-1)
        if dropout_seed is None or not self.spec.dropout:
            return self.mlp(x)
        # Not Keras' dropout: how far its draws have come cannot be read, so a run that was killed
        # could not go on with the same ones.
        *hidden, last = self.mlp.layers
        for number, layer in enumerate(hidden):
            seed = fold_in(dropout_seed, number)
            x = feature_dropout(
                layer(x), rate=self.spec.dropout, seed=seed, first_row=batch.first_row
            )
        return last(x)

    def call(self, features: Mapping[str, Tensor]) -> Tensor:
        """Logits `[B, 1]` of a batch of encoded features, as in serving."""
        candidate, sequences, masks = self.embed(features)
        return self.score(candidate, sequences, masks, features)


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
