"""What turns prepared columns into model inputs: fitted on training rows, kept with the model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.config import RunConfig
from pipelines.ranker import RankerSpec
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import fit_vocabularies, parquet_dataset
from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.errors import DataError


@dataclass(frozen=True)
class NumericScale:
    """Mean and standard deviation of a column's signed `log1p` over the training rows."""

    mean: float
    deviation: float

    @property
    def fill(self) -> float:
        """The number that a missing value is read as: it becomes 0 once standardised."""
        return float(np.sign(self.mean) * np.expm1(abs(self.mean)))


@dataclass(frozen=True)
class Features:
    """Vocabularies and scales of a run's columns.

    Attributes:
        sequence_types: Names of the behaviour sequences.
        event_fields: Fields of an event and of the candidate; the first is `item`.
        vocabularies: By event field or categorical column.
        scales: By numeric column.
    """

    sequence_types: tuple[str, ...]
    event_fields: tuple[str, ...]
    vocabularies: Mapping[str, Vocabulary]
    scales: Mapping[str, NumericScale]

    @property
    def categorical(self) -> tuple[str, ...]:
        """Embedded columns that are no event fields."""
        return tuple(name for name in self.vocabularies if name not in self.event_fields)

    def columns_of(self, name: str) -> list[str]:
        """The prepared columns that share a vocabulary: the candidate's, and the events'."""
        lists = self.sequence_types if name in self.event_fields else ()
        return [name, *(f"{kind}__{name}" for kind in lists)]

    def dataset(
        self, path: Path, *, label: str, batch_size: int, max_length: int, **options: Any
    ) -> tf.data.Dataset:
        """Batches of model inputs, with `user` as it is in the log, the label, and any `weight`.

        Args:
            path: A prepared file.
            label: The label's column.
            batch_size: Rows a batch.
            max_length: Slots of a sequence.
            **options: Further options of `seqdenoise.data.parquet.parquet_dataset`.

        Returns:
            A dataset of dicts of tensors.
        """
        with ParquetSource(path) as source:
            weight = ["weight"] if "weight" in source.schema.names else []
        scalars = [*self.vocabularies, *self.scales]
        return parquet_dataset(
            path,
            columns=["user", label, *weight, *scalars],
            sequences={kind: list(self.event_fields) for kind in self.sequence_types},
            encoders={
                column: vocabulary
                for name, vocabulary in self.vocabularies.items()
                for column in self.columns_of(name)
            },
            fill={name: scale.fill for name, scale in self.scales.items()},
            batch_size=batch_size,
            max_length=max_length,
            **options,
        )

    def ranker_spec(self, config: RunConfig) -> RankerSpec:
        """The shape of the ranker for these features."""
        model = config.model
        return RankerSpec(
            sequence_types=self.sequence_types,
            event_fields=self.event_fields,
            categorical=self.categorical,
            numeric={name: (scale.mean, scale.deviation) for name, scale in self.scales.items()},
            sizes={name: vocabulary.size for name, vocabulary in self.vocabularies.items()},
            max_length=config.prepare.max_length,
            embedding_dim=model.embedding_dim,
            attention_units=tuple(model.attention_units),
            mlp_units=tuple(model.mlp_units),
            dropout=model.dropout,
            embedding_l2=model.embedding_l2,
            cl4ctr=model.cl4ctr,
        )

    def save(self, path: Path) -> None:
        """Writes a JSON file."""
        content = {
            "sequence_types": self.sequence_types,
            "event_fields": self.event_fields,
            "vocabularies": {n: json.loads(v.to_json()) for n, v in self.vocabularies.items()},
            "scales": {n: [s.mean, s.deviation] for n, s in self.scales.items()},
        }
        path.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Features":
        """Reads what `save` wrote.

        Raises:
            DataError: The file is missing or not such a file.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                sequence_types=tuple(content["sequence_types"]),
                event_fields=tuple(content["event_fields"]),
                vocabularies={
                    name: Vocabulary.from_json(json.dumps(value))
                    for name, value in content["vocabularies"].items()
                },
                scales={name: NumericScale(*value) for name, value in content["scales"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: expected the features file of a training run. Received: {error}"
            ) from error


def _numeric_parts(path: Path, columns: Sequence[str]) -> Iterator[np.ndarray[Any, Any]]:
    """Signed `log1p` of the columns, `[rows, columns]`, a row group at a time; missing is NaN."""
    with ParquetSource(path) as source:
        source.require(columns)
        for index in range(source.num_row_groups):
            frame = source.read_row_group(index, columns).to_pandas()
            try:
                x = frame[list(columns)].to_numpy(np.float64, na_value=np.nan)
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"{path}, row group {index}: expected numbers in {list(columns)}. "
                    f"Received: {error}"
                ) from error
            yield np.sign(x) * np.log1p(np.abs(x))


def _fit_scales(path: Path, columns: Sequence[str]) -> dict[str, NumericScale]:
    if not columns:
        return {}
    count, total, squares = (np.zeros(len(columns)) for _ in range(3))
    for x in _numeric_parts(path, columns):
        known = ~np.isnan(x)
        count += known.sum(axis=0)
        total += np.where(known, x, 0).sum(axis=0)
        squares += np.where(known, x * x, 0).sum(axis=0)
    mean = total / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
    # A constant column carries nothing; dividing by 1 leaves it at 0.
    deviation[deviation < 1e-6] = 1.0
    return {
        name: NumericScale(float(mean[i]), float(deviation[i])) for i, name in enumerate(columns)
    }


def fit_features(config: RunConfig) -> Features:
    """Fits vocabularies and scales on the prepared training rows, and on these alone.

    Args:
        config: The run.

    Returns:
        The features.

    Raises:
        DataError: The prepared training file is missing, damaged, or lacks a column.
    """
    path = config.prepared_folder / "train.parquet"
    empty = Features(
        sequence_types=tuple(config.prepare.sequence_types),
        event_fields=("item", *config.model.event_fields),
        vocabularies={},
        scales={},
    )
    names = [*empty.event_fields, *config.model.categorical]
    vocabularies = fit_vocabularies(
        path,
        {name: empty.columns_of(name) for name in names},
        min_count=config.model.min_count,
    )
    return Features(
        sequence_types=empty.sequence_types,
        event_fields=empty.event_fields,
        vocabularies=vocabularies,
        scales=_fit_scales(path, config.model.numeric),
    )
