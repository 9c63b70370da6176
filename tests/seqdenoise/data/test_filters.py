import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from reader_cases import READ, numbers_of

from seqdenoise.data.files import ParquetSource
from seqdenoise.data.filters import RowFilter
from seqdenoise.data.parquet import read_batches
from seqdenoise.errors import DataError

NUMBERS = range(40)
DAY = datetime.datetime(2026, 1, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / "a.parquet"
    halves = [None if i % 4 == 3 else i / 2 for i in NUMBERS]
    texts = [None if i % 5 == 4 else "abc"[i % 3] for i in NUMBERS]
    table = pa.table(
        {
            "number": pa.array(NUMBERS, pa.int64()),
            "small": pa.array([i // 10 for i in NUMBERS], pa.int8()),
            "half": pa.array([np.nan if i == 6 else half for i, half in enumerate(halves)]),
            "text": texts,
            "coded": pa.array(texts).dictionary_encode(),
            "time": pa.array([DAY + datetime.timedelta(hours=i) for i in NUMBERS]),
            "click__item": [[i] for i in NUMBERS],
            "click__price": [[1.0] for _ in NUMBERS],
            "cart__item": [[i] for i in NUMBERS],
        }
    )
    pq.write_table(table, path, row_group_size=10)
    return path


def half(i):
    return None if i % 4 == 3 or i == 6 else i / 2


def text(i):
    return None if i % 5 == 4 else "abc"[i % 3]


CASES = {
    "value": ({"number": 7}, lambda i: i == 7),
    "list": ({"number": [7, 3, 99]}, lambda i: i in (3, 7)),
    "set": ({"text": {"a", "b"}}, lambda i: text(i) in ("a", "b")),
    "dictionary": ({"coded": ["a"]}, lambda i: text(i) == "a"),
    "narrow type": ({"small": [1, 3]}, lambda i: i // 10 in (1, 3)),
    "range": ({"number": (5, 14)}, lambda i: 5 <= i <= 14),
    "open below": ({"number": (None, 4)}, lambda i: i <= 4),
    "open above": ({"small": (2, None)}, lambda i: i >= 20),
    "null and NaN fail a range": (
        {"half": (2.0, 4.5)},
        lambda i: half(i) is not None and 2 <= half(i) <= 4.5,
    ),
    "null allowed": ({"text": ["a", None]}, lambda i: text(i) in ("a", None)),
    "only null": ({"text": None}, lambda i: text(i) is None),
    "times": ({"time": (DAY, DAY + datetime.timedelta(hours=3))}, lambda i: i <= 3),
    "two columns": ({"number": (5, None), "text": "c"}, lambda i: i >= 5 and text(i) == "c"),
    "expression": (
        (pc.field("number") + pc.field("small")) > 38,
        lambda i: i + i // 10 > 38,
    ),
    "null expression": (
        ~(pc.field("text") == "a"),
        lambda i: text(i) in ("b", "c"),
    ),
    "other columns": (pc.field("cart__item").is_valid(), lambda i: True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_that_pass_are_read(path, case):
    where, passes = CASES[case]
    expected = [i for i in NUMBERS if passes(i)]
    batches = list(read_batches(path, **READ, where=where))
    assert numbers_of(batches) == expected
    # The lists go along with their rows.
    assert [int(row[0]) for batch in batches for row in batch["click__item"]] == expected
    shuffled = list(read_batches(path, **READ, where=where, shuffle_seed=1))
    assert sorted(numbers_of(shuffled)) == expected
    assert [len(batch["number"]) for batch in shuffled] == [len(b["number"]) for b in batches]


def test_footers_decide_where_they_can(path, monkeypatch):
    read = []
    original = ParquetSource.read_row_group
    monkeypatch.setattr(
        ParquetSource,
        "read_row_group",
        lambda self, index, columns: (
            read.append((index, columns)) or original(self, index, columns)
        ),
    )
    list(read_batches(path, **READ, where={"number": (12, 15)}))
    # Once the condition's column alone, to count, and once what is asked for.
    assert read == [(1, ["number"]), (1, ["number", *READ_LISTS])]
    read.clear()
    list(read_batches(path, **READ, where={"small": 3}))
    assert read == [(3, ["small"]), (3, ["number", *READ_LISTS, "small"])]


READ_LISTS = ["click__item", "click__price", "cart__item"]


def test_a_condition_finds_its_columns(path):
    with ParquetSource(path) as source:
        where = (pc.field("text") == "a") | (pc.field("half") > pc.field("small"))
        assert RowFilter(source, where).columns == ["small", "half", "text"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"absent": 1}, "expected one column `absent` (`where`)"),
        (pc.field("absent") == 1, "expected a condition that fits its columns"),
        ({"number": "x"}, "expected values of the columns' types in `where`"),
        (pc.field("number").isin(["x"]), "expected a condition that fits its columns"),
        (pc.scalar(True), "expected a condition on its columns"),
        ({"click__item": (1, 2)}, "expected a condition that fits its columns"),
        (pc.field("number"), "true or false for each row. Received: number, which is int64"),
        ({"number": 99}, "expected at least one row that passes `where`. Received: none of 40"),
    ],
    ids=str,
)
def test_conditions_that_do_not_fit_the_file_are_refused(path, where, message):
    with pytest.raises(DataError) as caught:
        list(read_batches(path, **READ, where=where))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_condition_that_fails_on_a_value_names_the_row_group(path):
    where = pc.scalar(1) / (pc.field("number") - 25) > 0
    message = r"a.parquet, row group 2: expected a condition that fits its columns.*divide by zero"
    with pytest.raises(DataError, match=message):
        list(read_batches(path, **READ, where=where))


@pytest.mark.parametrize(
    "where", [{}, "number > 3", {"number": (1, 2, 3)}, {"number": (None, None)}], ids=str
)
def test_conditions_that_are_none_are_refused(path, where):
    with pytest.raises(ValueError, match=r"`where` must .*Received: "):
        list(read_batches(path, **READ, where=where))


def test_files_whose_types_differ_can_be_filtered(tmp_path):
    for name, kind in (("0", pa.int32()), ("1", pa.int64())):
        numbers = pa.array([int(name), 7], kind)
        pq.write_table(pa.table({"number": numbers, "x": [1, 2]}), tmp_path / f"{name}.parquet")
    batches = read_batches(
        tmp_path, columns=["x"], sequences={}, batch_size=8, max_length=1, where={"number": [1, 7]}
    )
    assert [batch["x"].tolist() for batch in batches] == [[2, 1, 2]]
