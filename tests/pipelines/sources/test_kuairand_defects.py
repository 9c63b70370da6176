import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kuairand_layouts import (
    EARLY_LOG,
    HISTORY,
    HISTORY_FILE,
    LATE,
    LATE_LOG,
    LOG,
    USER_FILE,
    VIDEO_FILE,
    write_csv,
    write_history,
    write_log,
    write_official,
    write_subset,
)

from pipelines.sources.kuairand import import_kuairand
from seqdenoise.errors import DataError


@pytest.fixture
def subset(tmp_path):
    home = tmp_path / "subset"
    write_subset(home)
    return home


@pytest.fixture
def official(tmp_path):
    home = tmp_path / "official"
    write_official(home / "data")
    return home


def edit(name, change):
    """A defect: rewrites the text of a CSV file of the subset."""

    def apply(home):
        path = home / name
        text = path.read_text()
        assert change(text) != text
        path.write_text(change(text))

    return apply


def relog(change):
    """A defect: rewrites the subset's log rows."""

    def apply(home):
        write_log(home / LOG, [row for row in map(change, LATE) if row is not None])

    return apply


def without(name):
    return relog(lambda row: {key: value for key, value in row.items() if key != name})


def empty_log(home):
    pq.write_table(pq.read_table(home / LOG).slice(0, 0), home / LOG)


def truncate(name):
    def apply(home):
        data = (home / name).read_bytes()
        (home / name).write_bytes(data[: len(data) // 2])

    return apply


def null_in_history(home):
    write_history(home / HISTORY_FILE, [HISTORY[0] | {"like_seq": [6, None]}])


def strings_in_history(home):
    table = pq.read_table(home / HISTORY_FILE)
    column = pa.array([["a"]] * table.num_rows)
    at = table.column_names.index("watch_seq")
    pq.write_table(table.set_column(at, "watch_seq", column), home / HISTORY_FILE)


DEFECTS = {
    "no log": (lambda home: (home / LOG).unlink(), f"{LOG}, or {EARLY_LOG} and .*none of them"),
    "no history": (lambda home: (home / HISTORY_FILE).unlink(), f"{HISTORY_FILE}: expected"),
    "no users": (lambda home: (home / USER_FILE).unlink(), f"{USER_FILE}: expected a readable"),
    "no videos": (lambda home: (home / VIDEO_FILE).unlink(), f"{VIDEO_FILE}: expected a readable"),
    "log column": (without("tab"), f"{LOG}: expected column `tab`. Received: user_id, video_id"),
    "user column": (
        edit(USER_FILE, lambda text: text.replace("onehot_feat7,", "other,")),
        f"{USER_FILE}: expected column `onehot_feat7`. Received: user_id",
    ),
    "video column": (
        edit(VIDEO_FILE, lambda text: text.replace(",tag", ",label")),
        f"{VIDEO_FILE}: expected column `tag`",
    ),
    "string user": (
        relog(lambda row: row | {"user_id": f"u{row['user_id']}"}),
        f"{LOG}, column `user_id`: expected integers. Received: string",
    ),
    "float video": (
        relog(lambda row: row | {"video_id": 0.5}),
        f"{LOG}, column `video_id`: expected integers. Received: double",
    ),
    "null time": (
        relog(lambda row: row | {"time_ms": None if row["is_click"] else 5}),
        f"{LOG}, column `time_ms`: expected integers without nulls. Received: 2 null, .* row 0",
    ),
    "strange flag": (
        relog(lambda row: row | {"is_like": 3 if row["is_like"] else 0}),
        rf"{LOG}, column `is_like`: expected 0 or 1. Received: \[3\]",
    ),
    "random rows": (
        relog(lambda row: row | {"is_rand": row["is_like"]}),
        "column `is_rand`: expected 0 .* Received: 1 rows with 1",
    ),
    "no impressions": (
        relog(lambda row: row | {"date": 20220424}),
        "column `date`: expected rows from 2022-04-25 on. Received: none, the last is 20220424",
    ),
    "empty log": (empty_log, f"{LOG}: expected at least one row. Received: none"),
    "truncated log": (truncate(LOG), f"{LOG}: expected a readable parquet file. Received: "),
    "empty log file": (
        lambda home: (home / LOG).write_bytes(b""),
        f"{LOG}: expected a readable parquet file. Received: ",
    ),
    "truncated history": (truncate(HISTORY_FILE), f"{HISTORY_FILE}: expected a readable parquet"),
    "null in history": (
        null_in_history,
        f"{HISTORY_FILE}, column `like_seq`: expected lists .* Received: a null inside a list",
    ),
    "strings in history": (
        strings_in_history,
        f"{HISTORY_FILE}, column `watch_seq`: expected lists of integers. Received: list<",
    ),
    "string in users": (
        edit(USER_FILE, lambda text: text.replace("\n9,", "\nnine,")),
        f"{USER_FILE}, column `user_id`: expected integers. Received: .*nine",
    ),
    "fraction in users": (
        edit(USER_FILE, lambda text: text.replace("949,1.0", "949,1.5")),
        f"{USER_FILE}, column `onehot_feat4`: expected integers. Received: .*1.5",
    ),
    "repeated user": (
        edit(USER_FILE, lambda text: text.replace("\n9,", "\n3,")),
        f"{USER_FILE}, column `user_id`: expected each id once. Received: 3 rows, 2 ids",
    ),
    "repeated video": (
        edit(VIDEO_FILE, lambda text: text.replace("\n7,", "\n6,")),
        f"{VIDEO_FILE}, column `video_id`: expected each id once",
    ),
    "strange tag": (
        edit(VIDEO_FILE, lambda text: text.replace('"20,43"', '"cats,43"')),
        f"{VIDEO_FILE}, column `tag`: expected comma-separated integers. Received: .*cats",
    ),
    "strange date": (
        edit(VIDEO_FILE, lambda text: text.replace("2022-04-11", "11/4/2022")),
        f"{VIDEO_FILE}, column `upload_dt`: expected dates .* Received: .*11/4/2022",
    ),
    "strange duration": (
        edit(VIDEO_FILE, lambda text: text.replace("87433.0", "long")),
        f"{VIDEO_FILE}, column `video_duration`: expected numbers. Received: .*long",
    ),
    "truncated videos": (
        edit(VIDEO_FILE, lambda text: text[: text.rindex("720.0")]),
        f"{VIDEO_FILE}: expected a readable CSV file. Received: ",
    ),
    "empty videos": (
        edit(VIDEO_FILE, lambda text: ""),
        f"{VIDEO_FILE}: expected columns .* Received: an empty file",
    ),
    "header only": (
        edit(VIDEO_FILE, lambda text: text.splitlines()[0] + "\n"),
        f"{VIDEO_FILE}: expected at least one row. Received: none",
    ),
    "binary users": (
        lambda home: (home / USER_FILE).write_bytes(b"\xff\xfe\x00user"),
        f"{USER_FILE}: expected a readable CSV file. Received: ",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_clear_error_and_nothing_is_written(subset, tmp_path, defect):
    spoil, message = DEFECTS[defect]
    spoil(subset)
    with pytest.raises(DataError, match=message) as caught:
        import_kuairand(subset, tmp_path / "out" / "log")
    assert str(subset) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_defects_of_the_official_layout(official, tmp_path):
    def fails(message):
        with pytest.raises(DataError, match=message):
            import_kuairand(official, tmp_path / "log")
        assert not (tmp_path / "log").exists()

    home = official / "data"
    write_csv(home / LATE_LOG, [LATE[0] | {"user_id": "anna"}])
    fails(f"{LATE_LOG}, column `user_id`: expected integers. Received: .*anna")
    write_csv(home / LATE_LOG, [LATE[0] | {"time_ms": ""}])
    fails(f"{LATE_LOG}, column `time_ms`: expected integers without nulls. Received: 1 null")
    write_csv(home / LATE_LOG, [])
    fails(f"{LATE_LOG}: expected at least one row")
    (home / LATE_LOG).unlink()
    fails(f"{LATE_LOG}: expected a readable CSV file")
    write_csv(home / LATE_LOG, LATE)
    (home / EARLY_LOG).unlink()
    fails(f"{EARLY_LOG}: expected a readable CSV file")


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: expected .* Received: no such folder"):
        import_kuairand(tmp_path / "nowhere", tmp_path / "log")
