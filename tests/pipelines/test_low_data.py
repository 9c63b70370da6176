"""Prepared folders of fewer training rows, against plain loops over the rows."""

import json
import logging
import os
import shutil
from collections import Counter
from itertools import combinations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import low_data
from pipelines.config import ConfigError
from pipelines.low_data import with_train_fraction
from seqdenoise.errors import DataError

KINDS = ("click", "cart", "search")


@pytest.fixture
def run(config, tmp_path):
    """The small run with prepared files of its own."""
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    return config.model_copy(update={"folder": tmp_path})


def rows_of(run, split="train"):
    return pq.read_table(run.prepared_folder / f"{split}.parquet")


def json_of(run, name):
    return json.loads((run.prepared_folder / f"{name}.json").read_text())


def mixed(word):
    """SplitMix64, of whole numbers."""
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def expected_rows(rows, number, seed):
    """The rows of the smallest hashes, in their order."""
    hashes = []
    for row in rows.select(["user", "item", "timestamp"]).to_pylist():
        word = mixed(seed)
        for value in row.values():
            word = mixed(word ^ value % 2**64)
        hashes.append(word)
    drawn = sorted(range(len(hashes)), key=lambda place: (hashes[place], place))[:number]
    return rows.take(sorted(drawn))


@pytest.mark.parametrize(("fraction", "seed"), [(0.05, 0), (0.2, 0), (0.2, 7), (0.999, 0)])
def test_so_many_rows_as_they_were(fraction, seed, run):
    rows = rows_of(run)
    small = with_train_fraction(run, fraction, seed=seed)
    got = rows_of(small)
    assert len(got) == round(fraction * len(rows))
    assert got.equals(expected_rows(rows, len(got), seed))


def test_small_shares_are_parts_of_large_ones_and_seeds_differ(run):
    keys = ["user", "item", "timestamp", "is_click"]

    def counted(**options):
        frame = rows_of(with_train_fraction(run, **options)).select(keys).to_pandas()
        return Counter(frame.itertuples(index=False, name=None))

    few, more, other = (
        counted(fraction=0.05), counted(fraction=0.2), counted(fraction=0.2, seed=1)
    )  # fmt: skip
    assert few < more < Counter(rows_of(run).select(keys).to_pandas().itertuples(False, None))
    assert other != more


def test_how_the_files_are_cut_changes_no_draw(run, monkeypatch):
    rows = rows_of(run)
    expected = rows_of(with_train_fraction(run, 0.3))
    path = run.prepared_folder / "train.parquet"
    shutil.rmtree(path)
    path.mkdir()
    for part, start in enumerate(range(0, len(rows), 150)):
        piece = rows.slice(start, 150)
        pq.write_table(piece, path / f"part-{part:05d}.parquet", row_group_size=37)
    monkeypatch.setattr(low_data, "_ROW_GROUP_ROWS", 40)
    small = with_train_fraction(run, 0.3)
    assert rows_of(small).equals(expected)
    # Row groups are as large as ever, not a share of those that were.
    written = pq.ParquetFile(small.prepared_folder / "train.parquet" / "part-00000.parquet")
    sizes = [written.metadata.row_group(i).num_rows for i in range(written.num_row_groups)]
    full, rest = divmod(len(expected), 40)
    assert sizes == [40] * full + ([rest] if rest else [])
    assert full > 2


def shared(rows, kind):
    """Of all pairs of rows with a sequence: those of one user or one sequence, and so on."""
    pairs = list(combinations([row for row in rows if row[f"{kind}__item"]], 2))
    same = [(a["user"] == b["user"], a[f"{kind}__item"] == b[f"{kind}__item"]) for a, b in pairs]
    others = [sequence for user, sequence in same if not user]
    return {
        "same_user_or_sequence": sum(map(any, same)) / len(same),
        "same_sequence_of_other_user": sum(others) / len(others),
    }


def test_statistics_are_of_the_rows_that_are_left(run):
    # Rows of several files are in no order of time.
    rows = rows_of(run)
    backwards = rows.take(pa.array(range(len(rows))[::-1]))
    pq.write_table(backwards, run.prepared_folder / "train.parquet" / "part-00000.parquet")
    small = with_train_fraction(run, 0.25)
    rows = rows_of(small).to_pylist()
    before, after = json_of(run, "statistics"), json_of(small, "statistics")
    assert list(after) == list(before)
    for kind in KINDS:
        # Of events, which are all still there.
        assert after[kind]["mutual_information"] == before[kind]["mutual_information"]
        assert after[kind]["tau_plus"] == pytest.approx(shared(rows, kind), rel=1e-12)
    assert after["search"]["tau_plus"] != before["search"]["tau_plus"]

    before, after = json_of(run, "prepare"), json_of(small, "prepare")
    train = after["splits"].pop("train")
    assert set(train) == set(before["splits"].pop("train"))
    assert after == before
    times = [row["timestamp"] for row in rows]
    assert train["rows"] == len(rows)
    assert train["users"] == len({row["user"] for row in rows})
    assert (train["first_timestamp"], train["last_timestamp"]) == (min(times), max(times))
    clicks = sum(row["is_click"] for row in rows)
    assert train["label_rates"] == {"is_click": pytest.approx(clicks / len(rows), rel=1e-12)}
    for kind in KINDS:
        lengths = sorted(len(row[f"{kind}__item"]) for row in rows)
        assert train["sequences"][kind] == {
            "mean_length": pytest.approx(sum(lengths) / len(lengths), rel=1e-12),
            "median_length": lengths[(len(lengths) - 1) // 2],
            "empty_rate": pytest.approx(lengths.count(0) / len(lengths), rel=1e-12),
            "full_rate": pytest.approx(lengths.count(8) / len(lengths), rel=1e-12),
        }


@pytest.mark.parametrize("links", [True, False])
def test_the_other_splits_are_the_same_files(run, links, monkeypatch):
    if not links:

        def refuse(*_):
            raise OSError("a file system without hard links")

        monkeypatch.setattr(os, "link", refuse)
    small = with_train_fraction(run, 0.2)
    for split in ("valid", "test"):
        name = f"{split}.parquet/part-00000.parquet"
        mine, theirs = small.prepared_folder / name, run.prepared_folder / name
        assert mine.samefile(theirs) == links
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_folder_is_kept_until_what_it_is_made_of_changes(run, caplog):
    caplog.set_level(logging.INFO)
    assert with_train_fraction(run, 1) is run
    assert caplog.messages == []
    small = with_train_fraction(run, 0.2)
    assert small.folder == run.folder / "train-fraction" / "0.2-seed0"
    assert small == with_train_fraction(run, 0.2)
    with_train_fraction(run, 0.1)
    with_train_fraction(run, 0.2, seed=1)
    with_train_fraction(run, 0.2)
    rows = rows_of(run)
    number = len(rows)
    assert caplog.messages == [
        f"train fraction {share:g}: {round(share * number)} of {number} rows"
        for share in (0.2, 0.1, 0.2)
    ]
    pq.write_table(rows.slice(0, 100), run.prepared_folder / "train.parquet" / "part-00000.parquet")
    with_train_fraction(run, 0.2)
    assert caplog.messages[3:] == ["train fraction 0.2: 20 of 100 rows"]
    assert len(rows_of(small)) == 20
    assert [path.name for path in (small.folder).iterdir()] == ["prepared"]


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5, float("nan")])
def test_a_share_out_of_bounds_is_named(fraction, config):
    with pytest.raises(ConfigError, match=rf"a share in \(0, 1\]. Received: {fraction}"):
        with_train_fraction(config, fraction)


def test_a_share_of_no_row_is_named(run):
    with pytest.raises(ConfigError, match=r"at least one row .*train.parquet. Received: 0.0001"):
        with_train_fraction(run, 0.0001)
    assert not (run.folder / "train-fraction").exists()


@pytest.mark.parametrize("name", ["train.parquet", "prepare.json", "statistics.json"])
def test_what_is_missing_is_named_and_nothing_is_left(name, run):
    path = run.prepared_folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=rf"{path}: expected"):
        with_train_fraction(run, 0.2)
    assert not (run.folder / "train-fraction").exists()


def test_rows_of_one_key_are_drawn_by_their_place(run):
    rows = pa.concat_tables([rows_of(run)] * 3)
    places = pa.array(range(len(rows)), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("hour"), "hour", places)
    pq.write_table(rows, run.prepared_folder / "train.parquet" / "part-00000.parquet")
    got = rows_of(with_train_fraction(run, 0.5))
    assert got.equals(expected_rows(rows, len(got), 0))


@pytest.mark.tfrs
def test_vocabularies_are_fitted_on_the_rows_that_are_left(run):
    from pipelines.features import fit_features

    known = []
    for of in (run, with_train_fraction(run, 0.05)):
        rows = rows_of(of).to_pylist()
        shown = {row["item"] for row in rows}
        shown.update(item for row in rows for kind in KINDS for item in row[f"{kind}__item"])
        known.append((len(shown), fit_features(of).vocabularies["item"].size))
    (all_items, size), (few_items, small_size) = known
    assert size - small_size == all_items - few_items > 0
