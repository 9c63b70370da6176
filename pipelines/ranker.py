"""The reference ranker: a DIN-style network without a plug-in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pipelines.cl4ctr import Cl4ctr
from pipelines.run_sections import Cl4ctrConfig
from seqdenoise.numerics import Tensor
from seqdenoise.replicas import GlobalBatch
from seqdenoise.views import feature_dropout, fold_in


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
