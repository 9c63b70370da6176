"""What to read from parquet files, and how it is batched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seqdenoise.data.filters import Where
from seqdenoise.data.hash_encoder import HashEncoder
from seqdenoise.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options that `read_batches` and `parquet_dataset` share.

    Attributes:
        columns: Scalar columns.
        sequences: For each type T the fields F of its list columns `T__F`, for instance
            `{"click": ["item"]}` for `click__item`.
        batch_size: B.
        max_length: L; longer lists keep their last L entries, the most recent ones.
        encoders: Vocabularies or hash encoders by column name (`click__item` for a list column):
            these columns become int32 ids. Others pass as numbers: integers and booleans int64,
            floats float32.
        fill: By column name without encoder, what nulls and NaN read as; without it they are
            refused. A float fill turns an integer column into float32.
        weight: One of `columns`: it becomes float32 and must be finite and at least 0.
        where: Which rows to read: an Arrow expression over any columns of the files, or for each
            column a value, a list of values, or a tuple of the least and the greatest (None for no
            bound). Where a condition is null the row is left out; in a list, None lets nulls pass.
            Row groups that cannot have such rows are skipped by their footers; of the others the
            condition's columns are read once more, at the start, to count the rows that pass: so
            the number of batches is exact, and shards and resuming work as without a condition.
        length_buckets: Increasing lengths, the last of which is L. Each batch is padded to the
            smallest that holds its longest list, of any type, instead of to L.
        ragged: Lists are not padded at all.
        shuffle_seed: At least 0: row groups come in a random order, and rows are permuted within a
            pool of row groups. None for the files' order.
        pool_row_groups: How many row groups are permuted together.
        shard: Index of this worker and number of workers. The rows, in the epoch's order of row
            groups, are cut into as many equal parts (the sizes differ by a row at most), so every
            row comes exactly once over all shards, and a row group at a cut is read by two. Every
            shard has the same number of batches, computed from the row counts alone: a shard whose
            rows fill a batch less than the largest shard's shares its last batch out over two.

    Raises:
        ValueError: The options contradict each other or are out of range.
    """

    columns: Sequence[str]
    sequences: Mapping[str, Sequence[str]]
    batch_size: int
    max_length: int
    encoders: Mapping[str, Vocabulary | HashEncoder] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    weight: str | None = None
    where: Where | None = None
    length_buckets: Sequence[int] = ()
    ragged: bool = False
    shuffle_seed: int | None = None
    pool_row_groups: int = 8
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.pool_row_groups < 1 or self.max_length < 1:
            raise ValueError(
                "expected batch_size, pool_row_groups and max_length of at least 1. "
                f"Received: {self.batch_size}, {self.pool_row_groups}, {self.max_length}"
            )
        outputs = [*self.names, *(f"{kind}__length" for kind in self.sequences)]
        if self.ragged:
            outputs += [f"{kind}__row_splits" for kind in self.sequences]
        if len(set(outputs)) < len(outputs):
            raise ValueError(f"expected distinct column names. Received: {outputs}")
        empty = sorted(kind for kind, fields in self.sequences.items() if not fields)
        stray = sorted((set(self.encoders) | set(self.fill)) - set(self.names))
        if empty or stray:
            raise ValueError(
                "expected at least one field for each sequence type, and encoders and fills "
                f"for columns that are read only. Received: types without fields {empty}, "
                f"encoders or fills without column {stray}"
            )
        if self.weight is not None and (
            self.weight not in self.columns or self.weight in self.encoders
        ):
            raise ValueError(
                "expected `weight` among the columns, without encoder. "
                f"Received: {self.weight!r}, columns {list(self.columns)}"
            )
        buckets = list(self.length_buckets)
        if buckets and (
            buckets != sorted(set(buckets)) or buckets[0] < 1 or buckets[-1] != self.max_length
        ):
            raise ValueError(
                f"expected increasing `length_buckets` up to max_length {self.max_length}. "
                f"Received: {buckets}"
            )
        if buckets and self.ragged:
            raise ValueError("expected `length_buckets` or `ragged`. Received: both")
        if self.shuffle_seed is not None and self.shuffle_seed < 0:
            raise ValueError(
                f"expected `shuffle_seed` of at least 0, or None. Received: {self.shuffle_seed}"
            )
        index, number = self.shard
        if not 0 <= index < number:
            raise ValueError(
                "expected `shard` to be an index from 0 and the number of shards. "
                f"Received: {self.shard}"
            )

    @property
    def names(self) -> list[str]:
        """The columns that are read, scalar ones first."""
        return [*self.columns, *(name for kind in self.sequences for name in self.fields(kind))]

    def fields(self, kind: str) -> list[str]:
        """The list columns of a sequence type."""
        return [f"{kind}__{name}" for name in self.sequences[kind]]
