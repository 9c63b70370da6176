import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.sources import streams
from pipelines.sources.movielens import import_movielens
from seqdenoise.errors import DataError

RATINGS = [
    (1, 10, "5.0", 1_500_000_000),
    (1, 30, "4", 1_500_000_000),
    (1, 20, "3.5", 1_400_000_000),
    (2, 10, "0.5", 1_500_000_100),
]
MOVIES = [
    '10,"American President, The (1995)",Comedy|Drama|Romance',
    "20,Toy Story (1995) ,Animation",
    "30,Babylon 5,(no genres listed)",
    '40,"""Great"" 2001 (A) (2001)",Sci-Fi',
]
EVENTS = [
    (1, 10, "rated", 1_500_000_000, 5.0),
    (1, 30, "rated", 1_500_000_000, 4.0),
    (1, 20, "rated", 1_400_000_000, 3.5),
    (2, 10, "rated", 1_500_000_100, 0.5),
    (1, 10, "liked", 1_500_000_000, 5.0),
    (1, 30, "liked", 1_500_000_000, 4.0),
]
IMPRESSIONS = [
    (1, 10, 1_500_000_000, 1),
    (1, 30, 1_500_000_000, 1),
    (1, 20, 1_400_000_000, 0),
    (2, 10, 1_500_000_100, 0),
]
# item, genre, genres, year
ITEMS = [
    (10, "Comedy", "Comedy|Drama|Romance", 1995),
    (20, "Animation", "Animation", 1995),
    (30, None, None, None),
    (40, "Sci-Fi", "Sci-Fi", 2001),
]


def write_csv(home, ratings=RATINGS, movies=MOVIES):
    home.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, row)) for row in ratings]
    (home / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n")
    (home / "movies.csv").write_text("\n".join(["movieId,title,genres", *movies]) + "\n")
    return home


def write_dat(home, ratings=RATINGS):
    home.mkdir(parents=True)
    (home / "ratings.dat").write_text("".join("::".join(map(str, r)) + "\n" for r in ratings))
    movies = [
        "10::American President, The (1995)::Comedy|Drama|Romance",
        "20::Misérables, Les: part 1 (1995)::Animation",
        "30::Babylon 5::(no genres listed)",
        "40::2001 (2001)::Sci-Fi",
    ]
    (home / "movies.dat").write_bytes(("\n".join(movies) + "\n").encode("latin-1"))
    (home / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::02460-1\n")
    return home


def rows(path):
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


def test_the_tables(tmp_path):
    counts = import_movielens(write_csv(tmp_path / "raw"), tmp_path / "log")
    assert rows(tmp_path / "log" / "events.parquet") == EVENTS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS
    assert rows(tmp_path / "log" / "items.parquet") == ITEMS
    assert counts == {"events": 6, "impressions": 4, "items": 4}
    assert not (tmp_path / "log" / "users.parquet").exists()


def test_the_older_layout(tmp_path):
    counts = import_movielens(write_dat(tmp_path / "raw"), tmp_path / "log")
    assert rows(tmp_path / "log" / "events.parquet") == EVENTS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS
    assert rows(tmp_path / "log" / "items.parquet") == ITEMS
    users = pq.read_table(tmp_path / "log" / "users.parquet")
    assert users.column_names == ["user", "gender", "age", "occupation", "zip_code"]
    assert [tuple(row.values()) for row in users.to_pylist()] == [
        (1, "F", 1, 10, "48067"),
        (2, "M", 56, 16, "02460-1"),
    ]
    assert counts["users"] == 2


def test_column_types(tmp_path):
    import_movielens(write_csv(tmp_path / "raw"), tmp_path / "log")
    event_types = pq.read_schema(tmp_path / "log" / "events.parquet").types
    assert event_types == [pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.float32()]
    shown = pq.read_schema(tmp_path / "log" / "impressions.parquet")
    # Exactly these: the rating itself is the outcome.
    assert shown.names == ["user", "item", "timestamp", "is_liked"]
    assert shown.types == [pa.int64(), pa.int64(), pa.int64(), pa.int8()]


def test_many_blocks_give_the_same_impressions(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 40)
    monkeypatch.setattr(streams, "_BLOCK_LINES", 1)
    for home in (write_csv(tmp_path / "csv"), write_dat(tmp_path / "dat")):
        import_movielens(home, tmp_path / "log")
        assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS
        assert sorted(rows(tmp_path / "log" / "events.parquet")) == sorted(EVENTS)


DEFECTS = {
    "rating": ({"ratings": [*RATINGS, (3, 10, "5.5", 1)]}, "line 6, column `rating`: .* 5.5"),
    "third of a star": ({"ratings": [(3, 10, "0.3", 1)]}, "line 2, column `rating`: .* 0.5 to 5"),
    "no number": ({"ratings": [(3, 10, "nan", 1)]}, "line 2, column `rating`: .*: nan"),
    "no rating": ({"ratings": [(3, 10, "", 1)]}, "line 2, column `rating`: .* no value"),
    "date": ({"ratings": [(3, 10, 1, "2020-01-01")]}, "line 2, column `timestamp`: .*integer"),
    "before 1970": ({"ratings": [(3, 10, 1, -5)]}, "line 2, column `timestamp`: .*Received: -5"),
    "no ratings": ({"ratings": []}, "ratings.csv: expected at least one row"),
    "film": ({"movies": ["x,y,z"]}, "movies.csv, line 2, column `movieId`: expected an integer"),
    "film twice": ({"movies": [*MOVIES, MOVIES[1]]}, "movies.csv: .* once. Received: 20 again"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_clear_error_and_nothing_is_written(tmp_path, defect):
    replaced, message = DEFECTS[defect]
    home = write_csv(tmp_path / "raw", **replaced)
    with pytest.raises(DataError, match=message) as caught:
        import_movielens(home, tmp_path / "out" / "log")
    assert str(home) in str(caught.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_defects_of_the_older_layout(tmp_path):
    home = write_dat(tmp_path / "raw")
    (home / "ratings.dat").write_text("1::10::5::1500000000\n1::20::5\n")
    with pytest.raises(DataError, match=r"ratings.dat, line 2: expected 4 values, userId"):
        import_movielens(home, tmp_path / "log")
    (home / "movies.dat").unlink()
    with pytest.raises(DataError, match=r"movies.dat: expected a readable text file"):
        import_movielens(home, tmp_path / "log")
    with pytest.raises(DataError, match=r"expected ratings.csv or ratings.dat.*no such folder"):
        import_movielens(tmp_path / "nowhere", tmp_path / "log")
