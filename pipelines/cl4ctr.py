"""CL4CTR, a rival of the plug-in: three penalties on the embeddings of the ranked row's features.

It looks at the candidate and the side features, not at the sequences.

References:
    Wang et al. (2023), "CL4CTR: A Contrastive Learning Framework for CTR Prediction", WSDM. What
    the paper leaves open is as in the authors' published code: means where the paper has sums, over
    the features looked up in a batch in place of all there are, and the default coefficients.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from pipelines.run_sections import Cl4ctrConfig
from seqdenoise.numerics import Tensor, l2_normalize
from seqdenoise.replicas import GlobalBatch
from seqdenoise.seeded_dense import seeded_dense
from seqdenoise.views import feature_dropout, fold_in


def feature_alignment(features: Tensor) -> Tensor:
    """Mean squared distance of two features of one field, mean over fields.

    Over all pairs of rows, those of a row with itself included: twice the variance, so no pair is
    made.

    Args:
        features: float `[B, F, D]`, the embeddings of `F` fields in `B` rows.

    Returns:
        Scalar.

    Example:
        >>> float(feature_alignment(tf.constant([[[0.0]], [[2.0]]])))
        2.0
    """
    centred = features - tf.reduce_mean(features, axis=0)
    return 2 * tf.reduce_mean(tf.reduce_sum(centred * centred, axis=2))


def field_uniformity(features: Tensor) -> Tensor:
    """Mean cosine similarity of two features of different fields, over all pairs of rows.

    By the sum over fields of their mean unit vectors, so no pair is made.

    Args:
        features: float `[B, F, D]`, the embeddings of `F` fields in `B` rows. A zero vector has
            similarity 0 to all.

    Returns:
        Scalar, 0 where there is one field.

    Example:
        >>> float(field_uniformity(tf.constant([[[1.0, 0.0], [2.0, 0.0]]])))
        1.0
    """
    fields = features.shape[1]
    unit, _ = l2_normalize(features)
    mean = tf.reduce_mean(unit, axis=0)  # [F, D]
    total = tf.reduce_sum(mean, axis=0)
    across = tf.reduce_sum(total * total) - tf.reduce_sum(mean * mean)
    return across / max(fields * (fields - 1), 1)


def contrast(view_a: Tensor, view_b: Tensor) -> Tensor:
    """Squared distance of the two views of each row.

    Args:
        view_a: float `[B, d]`.
        view_b: float `[B, d]`.

    Returns:
        `[B]`.

    Example:
        >>> contrast(tf.constant([[1.0, 2.0]]), tf.constant([[1.0, 4.0]])).numpy().tolist()
        [4.0]
    """
    return tf.reduce_sum(tf.math.squared_difference(view_a, view_b), axis=1)


class Cl4ctr(tf.keras.layers.Layer):
    """The penalties, and the encoder that the contrast compares masked rows by.

    `contrast * L_cl + constraints * (L_a + L_u)`. For `L_cl` each entry of a row's embeddings is
    masked at random, twice; both go through one encoder of feature interactions, then each through
    a projection of its own. The encoder is an MLP of two layers where the authors mostly take a
    transformer. It serves this alone, and its initial weights come from `seed` alone, so the ranker
    starts with the weights that it would have without.

    Args:
        settings: Coefficients and sizes.
        num_fields: Number of fields `F`.
        embedding_dim: Length `D` of an embedding, and of a projection.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, settings: Cl4ctrConfig, num_fields: int, embedding_dim: int, seed: int
    ) -> None:
        super().__init__(name="cl4ctr")
        self.settings = settings
        self.num_fields = num_fields
        self.embedding_dim = embedding_dim
        self.seed = seed
        # Now: the optimiser has to know all weights before the first step of a training.
        self.build((None, num_fields * embedding_dim))

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        dense = partial(seeded_dense, seed=self.seed, scope=self.name)
        hidden, dim = self.settings.hidden_units, self.embedding_dim
        self.hidden = dense("hidden", input_shape[-1], hidden, "relu")
        self.interactions = dense("interactions", hidden, hidden, "relu")
        self.projections = [dense(f"projection_{name}", hidden, dim, None) for name in "ab"]
        super().build(input_shape)

    def penalty(self, features: Sequence[Tensor], *, seed: Tensor, batch: GlobalBatch) -> Tensor:
        """What this replica adds to the loss; the parts of all add up to that of all rows.

        Args:
            features: By field float `[B, D]`, this replica's rows.
            seed: int64 `[2]`, for the masks of this step.
            batch: The rows of all replicas.

        Returns:
            Scalar.
        """
        settings, rows = self.settings, tf.concat(features, axis=1)
        views = []
        for number, projection in enumerate(self.projections):
            masked = feature_dropout(
                rows,
                rate=settings.mask_rate,
                seed=fold_in(seed, number),
                first_row=batch.first_row,
            )
            views.append(projection(self.interactions(self.hidden(masked))))
        distance = tf.reduce_sum(contrast(*views)) / tf.cast(batch.count(rows), rows.dtype)
        # Of all rows on every replica, which counts one share of it: see `GlobalBatch.gather`.
        (everywhere,) = batch.gather([rows])
        fields = tf.reshape(everywhere, [-1, self.num_fields, self.embedding_dim])
        constraints = feature_alignment(fields) + field_uniformity(fields)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return settings.contrast * distance + settings.constraints * constraints / replicas
