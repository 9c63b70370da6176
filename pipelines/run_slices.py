"""Slices of the test rows: where a treatment may help or hurt, told from the prepared rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.config import ConfigError, RunConfig
from pipelines.run_sections import TimeUnit
from seqdenoise.data.columns import IntArray, flatten_lists, is_list
from seqdenoise.data.files import ParquetSource
from seqdenoise.evaluation.slices import MOST_VALUES

Texts = npt.NDArray[np.str_]
# More values than a person reads in one table.
_FEW = 24
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def run_slices(config: RunConfig, columns: Sequence[str] = ()) -> dict[str, Texts]:
    """Slices of the test rows by what is known of them before the answer.

    - `T history`, for each type T: its length, 0 or a quarter of the lengths above 0;
    - `with T`: whether there is any T, where some rows have one and some have none;
    - `popularity of the item`: the tenth of the training rows that show items as popular as the
      candidate, 1 the least and 10 the most popular; `cold` if none shows it;
    - `rows of the user in training`: 0, or a quarter of the numbers above 0;
    - each of the run's context fields that has 2 to 24 values;
    - `day`, in UTC; months where there are more than a hundred days.

    Items of equal popularity share a tenth, so tenths may be missing. Slices with one value are
    left out: they are all rows. Whole numbers are aligned by spaces in front, so that the order of
    the texts is that of the numbers, from 0 on.

    Args:
        config: The run; its prepared training and test rows are read.
        columns: Further columns of the prepared rows, such as user or item fields: numbers with
            more than 24 values by quarters, others must have at most 100.

    Returns:
        By name, the value of each test row in file order, as text `[N]`: what `compare_arms` takes
        as `slices`.

    Raises:
        ConfigError: A further column is a list, or has too many values.
        DataError: A prepared file is missing or damaged, or lacks a column.
    """
    slices: dict[str, Texts] = {}
    prepare = config.prepare
    with ParquetSource(config.prepared_folder / "test.parquet") as test:
        scalars = ["user", "item", "timestamp", *prepare.context_fields, *columns]
        test.require(list(dict.fromkeys(scalars)), "slices")
        _refuse_lists(test, columns)
        rows = test.read(list(dict.fromkeys(scalars)))
        lengths = {kind: _lengths(test, f"{kind}__item") for kind in prepare.sequence_types}
    for kind, of_kind in lengths.items():
        slices[f"{kind} history"] = quarters(of_kind)
    for kind, of_kind in lengths.items():
        slices[f"with {kind}"] = np.where(of_kind > 0, "yes", "no")
    with ParquetSource(config.prepared_folder / "train.parquet") as train:
        shown = train.read(["user", "item"])
    slices["popularity of the item"] = popularity(rows["item"].to_numpy(), shown["item"].to_numpy())
    slices["rows of the user in training"] = quarters(
        _counts(rows["user"].to_numpy(), shown["user"].to_numpy())
    )
    for name in prepare.context_fields:
        values = rows[name].to_pandas()
        if values.nunique(dropna=False) <= _FEW:
            slices[name] = texts(values)
    for name in columns:
        slices[name] = _asked_for(name, rows[name].to_pandas())
    slices["day"] = _days(rows["timestamp"].to_numpy(), config.log.time_unit)
    return {name: values for name, values in slices.items() if (values != values[:1]).any()}


def quarters(numbers: npt.ArrayLike) -> Texts:
    """Which quarter of the numbers above 0 each belongs to, by its smallest and largest number.

    Args:
        numbers: Integers `[N]`, at least 0.

    Returns:
        `[N]`: `0`, or a range such as `4 to 9`, or one number where a quarter has no other; equal
        numbers share a quarter, so there may be fewer than four.

    Example:
        >>> quarters([0, 1, 1, 1, 2, 3, 4, 12]).tolist()
        [' 0', ' 1', ' 1', ' 1', ' 2', ' 3 to 4', ' 3 to 4', '12']
    """
    values = np.asarray(numbers, np.int64)
    above = values > 0
    group = np.zeros(values.size, np.int64)
    group[above] = 1 + _quarter(values[above])
    # Sorted groups hold rising numbers, so their smallest and largest ones tell them apart.
    number, low, high = _ends(values, group)
    width = max((len(str(one)) for one in low), default=0)
    names = [
        str(one).rjust(width) + ("" if one == other else f" to {other}")
        for one, other in zip(low, high, strict=True)
    ]
    return np.array(names, np.str_)[number] if names else np.empty(0, np.str_)


def _quarter(values: npt.NDArray[Any]) -> IntArray:
    """The quarter of each value, 0 to 3, equal values in one."""
    if not values.size:
        return np.empty(0, np.int64)
    ends = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")
    return np.searchsorted(np.unique(ends), values)


def _ends(values: npt.NDArray[Any], group: IntArray) -> tuple[IntArray, list[Any], list[Any]]:
    """Groups numbered without gaps `[N]`, and the smallest and the largest value of each."""
    distinct, number = np.unique(group, return_inverse=True)
    parts = [values[number == one] for one in range(distinct.size)]
    return number, [part.min().item() for part in parts], [part.max().item() for part in parts]


def popularity(items: IntArray, shown: IntArray) -> Texts:
    """The tenth of the training rows that an item's popularity belongs to.

    Training rows are put in the order of how many rows show the same item, and cut into ten. Items
    of equal popularity belong where the middle one of their rows lies.

    Args:
        items: Candidates `[N]`.
        shown: Candidates of the training rows `[M]`.

    Returns:
        `[N]`: ` 1 (least shown)`, ` 2` and so on to `10 (most shown)`, or `cold`.

    Example:
        >>> popularity(np.array([7, 8, 9]), np.array([7, 8, 8, 8])).tolist()
        [' 2', ' 7', 'cold']
    """
    known, counts = np.unique(shown, return_counts=True)
    # Rows of items shown exactly so often, and rows of items shown more seldom.
    often, which = np.unique(counts, return_inverse=True)
    rows = np.bincount(which, counts, minlength=often.size)
    middle = (np.cumsum(rows) - rows / 2) / max(shown.size, 1)
    tenths = np.minimum(np.floor(10 * middle), 9).astype(np.int64)[which]
    names = np.array([f"{n:2d}" for n in range(1, 11)] + ["cold"], dtype="<U16")
    names[0] += " (least shown)"
    names[9] += " (most shown)"
    found = np.minimum(np.searchsorted(known, items), max(known.size - 1, 0))
    is_known = known[found] == items if known.size else np.zeros(items.size, np.bool_)
    return names[np.where(is_known, tenths[found] if known.size else 10, 10)]


def texts(values: pd.Series) -> Texts:
    """Values as text; whole numbers are aligned, and missing ones are `missing`."""
    missing = values.isna().to_numpy()
    known = values[~missing]
    if pd.api.types.is_bool_dtype(known.dtype):
        written = ["yes" if value else "no" for value in known]
    elif pd.api.types.is_numeric_dtype(known.dtype):
        # pandas reads integers beside nulls as floats.
        written = [f"{value:g}" if value % 1 else str(int(value)) for value in known.tolist()]
        width = max(map(len, written), default=0)
        written = [text.rjust(width) for text in written]
    else:
        written = [str(value) for value in known]
    result = np.full(len(values), "missing", object)
    result[~missing] = written
    return result.astype(np.str_)


def _asked_for(name: str, values: pd.Series) -> Texts:
    number = values.nunique(dropna=False)
    if number > _FEW and pd.api.types.is_numeric_dtype(values.dtype):
        missing = values.isna().to_numpy()
        known = values[~missing].to_numpy()
        quarter, low, high = _ends(known, _quarter(known))
        names = [
            f"quarter {position}: {one:g} to {other:g}"
            for position, (one, other) in enumerate(zip(low, high, strict=True), 1)
        ]
        result = np.full(len(values), "missing", object)
        result[~missing] = np.array(names, object)[quarter]
        return result.astype(np.str_)
    if number > MOST_VALUES:
        raise ConfigError(
            f"slices: expected at most {MOST_VALUES} values of `{name}`. Received: {number}"
        )
    return texts(values)


def _refuse_lists(source: ParquetSource, columns: Sequence[str]) -> None:
    for name in columns:
        kind = source.schema.field(name).type
        if is_list(kind):
            raise ConfigError(f"slices: expected one value a row in `{name}`. Received: {kind}")


def _lengths(source: ParquetSource, column: str) -> IntArray:
    groups = range(source.num_row_groups)
    parts = [flatten_lists(source.read_row_group(i, [column])[column])[1] for i in groups]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _counts(ids: IntArray, among: IntArray) -> IntArray:
    """How often each id occurs in `among`."""
    ordered = np.sort(among)
    return np.searchsorted(ordered, ids, "right") - np.searchsorted(ordered, ids, "left")


def _days(times: IntArray, unit: TimeUnit) -> Texts:
    days, which = np.unique(times // (86_400 * _PER_SECOND[unit]), return_inverse=True)
    names = np.datetime_as_string(days.astype("datetime64[D]"))
    if names.size > MOST_VALUES:
        names = np.array([name[: len("2024-01")] for name in names.tolist()])
    return names[which]
