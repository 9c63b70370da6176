"""Slices of the test rows against plain loops over the prepared rows."""

from collections import Counter
from datetime import datetime, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config import ConfigError
from pipelines.run_slices import popularity, quarters, run_slices, texts


def read(config, split):
    return pd.read_parquet(config.prepared_folder / f"{split}.parquet").to_dict("records")


def check_quarters(got, numbers):
    """Every text is the range that its rows span; ranges do not overlap, and none is too large."""
    by_text = {}
    for text, number in zip(got.tolist(), numbers, strict=True):
        by_text.setdefault(text, []).append(number)
    spans = []
    for text in sorted(by_text):
        of_text = sorted(by_text[text])
        low, high = of_text[0], of_text[-1]
        assert text.strip() == (str(low) if low == high else f"{low} to {high}")
        assert (low > 0) or high == 0
        spans += [low, high]
        # More than a quarter only because numbers are equal.
        above = sum(number > 0 for number in numbers)
        if low > 0:
            assert sum(number < high for number in of_text) <= 0.25 * above
    assert spans == sorted(spans)
    assert len(by_text) <= 5


def test_slices_are_those_of_the_rows(config):
    rows, train = read(config, "test"), read(config, "train")
    slices = run_slices(config, ["segment", "price"])
    assert list(slices)[:3] == ["click history", "cart history", "search history"]
    assert list(slices)[-5:] == [
        "popularity of the item",
        "rows of the user in training",
        "hour",
        "segment",
        "price",
    ]
    for values in slices.values():
        assert values.shape == (len(rows),)
        assert values.dtype.kind == "U"
    for kind in ("click", "cart", "search"):
        lengths = [len(row[f"{kind}__item"]) for row in rows]
        check_quarters(slices[f"{kind} history"], lengths)
        expected = ["yes" if length else "no" for length in lengths]
        assert (f"with {kind}" in slices) == (len(set(expected)) == 2)
        if f"with {kind}" in slices:
            assert slices[f"with {kind}"].tolist() == expected
    by_user = Counter(row["user"] for row in train)
    check_quarters(slices["rows of the user in training"], [by_user[row["user"]] for row in rows])
    assert [int(text) for text in slices["hour"]] == [row["hour"] for row in rows]
    assert slices["hour"][np.argmin([row["hour"] for row in rows])] == min(slices["hour"])
    assert slices["segment"].tolist() == [str(row["segment"]) for row in rows]
    for text, row in zip(slices["price"].tolist(), rows, strict=True):
        low, high = text.split(": ")[1].split(" to ")
        assert float(low) <= float(f"{row['price']:g}") <= float(high)
    sizes = Counter(slices["price"].tolist())
    assert sorted(sizes) == sorted(sizes, key=lambda text: float(text.split(" ")[2]))
    assert max(sizes.values()) < 0.4 * len(rows)


def test_days_are_those_of_the_clock(config, tmp_path):
    """The fixture's test rows are of one day, which is no slice; spread over three they are."""
    assert "day" not in run_slices(config)
    rows = pq.read_table(config.prepared_folder / "test.parquet")
    shift = pa.array(np.arange(len(rows)) % 3 * 86_400_000)
    times = pa.array(rows["timestamp"].to_numpy() + shift.to_numpy())
    rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", times)
    (tmp_path / "prepared").mkdir()
    pq.write_table(rows, tmp_path / "prepared" / "test.parquet")
    train = pq.read_table(config.prepared_folder / "train.parquet")
    pq.write_table(train, tmp_path / "prepared" / "train.parquet")
    moved = config.model_copy(update={"folder": tmp_path})
    expected = [
        datetime.fromtimestamp(time / 1000, timezone.utc).date().isoformat()
        for time in times.to_pylist()
    ]
    assert run_slices(moved)["day"].tolist() == expected
    assert len(set(expected)) > 1


def test_quarters_by_hand():
    assert quarters([5, 0, 100, 7, 6]).tolist() == ["  5", "  0", "100", "  7", "  6"]
    assert quarters([3, 3, 3, 9]).tolist() == ["3", "3", "3", "9"]
    assert quarters([0, 0]).tolist() == ["0", "0"]
    assert quarters([]).tolist() == []
    assert quarters(np.arange(1, 9)).tolist() == [
        text for text in ("1 to 2", "3 to 4", "5 to 6", "7 to 8") for _ in range(2)
    ]


def test_popularity_cuts_the_training_rows_in_ten():
    rng = np.random.default_rng(0)
    shown = rng.zipf(1.5, 3000) % 200
    items = np.concatenate([np.arange(200), [999, -1]])
    got = popularity(items, shown)
    counts = Counter(shown.tolist())
    ordered = sorted(counts[item] for item in shown.tolist())
    for item, text in zip(items.tolist(), got.tolist(), strict=True):
        if item not in counts:
            assert text == "cold"
            continue
        # Where the middle one of the rows of equally popular items lies.
        places = [place for place, count in enumerate(ordered) if count == counts[item]]
        middle = (places[0] + places[-1] + 1) / 2
        assert int(text.split(" (")[0]) == int(10 * middle / len(ordered)) + 1
    assert popularity(np.array([1, 2]), np.array([], np.int64)).tolist() == ["cold", "cold"]
    assert popularity(np.array([1]), np.array([1])).tolist() == [" 6"]
    many = popularity(np.arange(100), np.repeat(np.arange(100), np.arange(1, 101)))
    assert many[0] == " 1 (least shown)"
    assert many[99] == "10 (most shown)"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10, 9, None], ["10", " 9", "missing"]),
        (["a", None, "<b>"], ["a", "missing", "<b>"]),
        ([0.5, 2.0, 2.0], ["0.5", "  2", "  2"]),
        ([True, False], ["yes", "no"]),
    ],
)
def test_values_as_text(values, expected):
    assert texts(pd.Series(values)).tolist() == expected


def test_columns_that_cannot_be_sliced_are_named(config):
    with pytest.raises(ConfigError, match=r"one value a row in `click__item`\. Received: list"):
        run_slices(config, ["click__item"])
    from seqdenoise.errors import DataError

    with pytest.raises(DataError, match=r"expected one column `colour` \(slices\)"):
        run_slices(config, ["colour"])


def test_slices_are_what_a_comparison_takes(config):
    from seqdenoise.evaluation.compare import compare_arms

    rows = read(config, "test")
    labels, users = [row["is_click"] for row in rows], [row["user"] for row in rows]
    rng = np.random.default_rng(0)
    scores = {arm: rng.random((2, len(rows))) for arm in ("control", "treatment")}
    result = compare_arms(
        labels,
        users,
        scores,
        control="control",
        metrics=["GAUC"],
        num_resamples=20,
        slices=run_slices(config),
    )
    of_hours = result.slices["hour"]
    assert [int(str(part.value)) for part in of_hours] == sorted(
        int(str(part.value)) for part in of_hours
    )
