import pytest
import tensorflow as tf
from reader_cases import READ, assert_same_batches, numbered_table, write_table

from seqdenoise.data.parquet import parquet_dataset
from seqdenoise.data.position import ReadPosition
from seqdenoise.errors import DataError


@pytest.fixture
def path(tmp_path):
    return write_table(tmp_path / "a.parquet", numbered_table(50))


def test_a_checkpoint_takes_reading_up_where_the_model_stood(path, tmp_path):
    options = READ | {"shuffle_seed": 3, "where": {"number": (2, None)}}
    expected = []
    dataset = parquet_dataset(path, **options)
    for _ in range(3):
        expected += dataset.as_numpy_iterator()
    position = ReadPosition()
    seen = []
    for batch in parquet_dataset(path, **options).repeat().as_numpy_iterator():
        seen.append(batch)
        position.advance()
        if len(seen) == 9:
            break
    # Produced in advance is more than that.
    saved = tf.train.Checkpoint(position=position).save(str(tmp_path / "checkpoint"))

    restored = ReadPosition()
    tf.train.Checkpoint(position=restored).restore(saved).assert_consumed()
    assert restored.value == 9
    rest = parquet_dataset(path, first_step=restored.value, **options).repeat()
    rest = list(rest.take(len(expected) - 9).as_numpy_iterator())
    assert_same_batches(seen + rest, expected)


class Sum(tf.keras.Model):
    """Keeps the numbers it was trained on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def train_step(self, batch):
        self.seen += batch["number"].numpy().tolist()
        return {"loss": tf.constant(0.0)}


def test_the_callback_follows_fit(path):
    dataset = parquet_dataset(path, **READ, shuffle_seed=1)
    steps = int(dataset.cardinality())
    position, model = ReadPosition(), Sum()
    model.compile(run_eagerly=True)
    fit = {"epochs": 2, "verbose": 0, "shuffle": False}
    model.fit(dataset, callbacks=[position.callback()], **fit)
    assert position.value == 2 * steps
    # Resumed in the middle of an epoch.
    position = ReadPosition(3)
    model = Sum()
    model.compile(run_eagerly=True)
    resumed = parquet_dataset(path, **READ, shuffle_seed=1, first_step=3).repeat()
    model.fit(resumed, steps_per_epoch=steps, callbacks=[position.callback()], **fit)
    assert position.value == 3 + 2 * steps
    again = parquet_dataset(path, **READ, shuffle_seed=1)
    numbers = [int(n) for _ in range(3) for batch in again for n in batch["number"]]
    assert model.seen == numbers[24 : 24 + len(model.seen)]


def test_json():
    assert ReadPosition.from_json(ReadPosition(7).to_json()).value == 7
    for text in (
        "",
        "[]",
        '{"format": 1}',
        '{"format": 2, "steps": 1}',
        '{"format":1,"steps":1.5}',
    ):
        with pytest.raises(DataError, match="position: expected JSON"):
            ReadPosition.from_json(text)
    with pytest.raises(ValueError, match=r"at least 0. Received: -1"):
        ReadPosition(-1)
