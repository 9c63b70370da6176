"""The class of a functional model with a side loss."""

from typing import Any

import tensorflow as tf

from seqdenoise.row_weighting import row_weights


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class PluggedModel(tf.keras.Model):
    """A functional model whose side loss counts the rows as `fit` does.

    The `sample_weight` of `fit` and `train_on_batch`, into which Keras multiplies `class_weight`,
    weights the anchors of the side loss too; with several outputs, the mean over those that have
    weights (see `row_weights`). In all else it is the functional model it is made as.
    """

    def train_step(self, data: Any) -> Any:
        """One step of training, with the batch's row weights laid out for the side loss."""
        _, _, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with row_weights(sample_weight):
            return super().train_step(data)
