"""Where reading stands, to be saved with the model and taken up again."""

import json
from typing import Any

import tensorflow as tf

from seqdenoise.errors import DataError


class ReadPosition(tf.Module):
    """How many batches have been consumed, over all epochs.

    It counts what the training loop has used, not what the dataset has produced in advance, so
    saved beside the model's variables it tells where the model stands:

    ```
    position = ReadPosition()
    checkpoint = tf.train.Checkpoint(model=model, position=position)
    checkpoint.restore(tf.train.latest_checkpoint(folder))
    for batch in parquet_dataset(..., first_step=position.value).repeat():
        train_step(batch)
        position.advance()
    ```

    Under `fit`, `callback` advances it. The same files and options must be given again: the
    position is a number of batches, and other options make other batches.

    Args:
        value: At least 0.

    Example:
        >>> position = ReadPosition()
        >>> position.advance()
        >>> ReadPosition.from_json(position.to_json()).value
        1
    """

    def __init__(self, value: int = 0):
        super().__init__()
        if value < 0:
            raise ValueError(f"`value` must be at least 0. Received: {value}")
        self.steps = tf.Variable(value, trainable=False, dtype=tf.int64, name="steps")

    @property
    def value(self) -> int:
        """What `parquet_dataset` takes as `first_step`."""
        return int(self.steps)

    def advance(self, num_steps: int = 1) -> None:
        """Counts batches that have been consumed."""
        self.steps.assign_add(num_steps)

    def callback(self) -> tf.keras.callbacks.Callback:
        """A callback for `fit` that advances the position after each training batch.

        It comes before one that saves checkpoints during an epoch.
        """
        return _Advance(self)

    def to_json(self) -> str:
        """The position as JSON."""
        return json.dumps({"format": 1, "steps": self.value})

    @classmethod
    def from_json(cls, text: str) -> "ReadPosition":
        """The inverse of `to_json`.

        Raises:
            DataError: The text is something else.
        """
        try:
            content: Any = json.loads(text)
            steps = content["steps"]
            if content["format"] != 1 or type(steps) is not int:
                raise ValueError(f"format {content['format']!r}, steps {steps!r}")
            return cls(steps)
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"position: expected JSON with format 1 and steps. Received: {error}"
            ) from error


class _Advance(tf.keras.callbacks.Callback):
    def __init__(self, position: ReadPosition):
        super().__init__()
        self._position = position

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps an execution, only the last one's number is announced.
        self._position.advance(batch + 1 - self._seen)
        self._seen = batch + 1
