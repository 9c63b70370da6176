"""MovieLens (ratings of films) as a log folder.

Harper and Konstan, "The MovieLens Datasets: History and Context", 2015. Two layouts are read:

- `ratings.csv` and `movies.csv` with header lines (20M, 25M, 32M, latest);
- `ratings.dat`, `movies.dat` and, in the 1M set, `users.dat`, values separated by `::`.

Times are in seconds: the run file says `log.time_unit: s`.

Nothing in the data was shown or clicked. Every rating is an impression of the film, whose label
`is_liked` says whether the rating is at least 4; and every rating is a `rated` event, a good one a
`liked` event as well, with the value `rating`. An event lies at the very moment of its impression,
so it is never an input of its own row as long as ties are excluded, as they are by default. Many
users rate dozens of films in one sitting, several in one second: those do not see each other. So
the task is whether a film the user chose to rate will be liked, which is not exposure; and the time
is that of the rating, not of watching.

Genres and the year (from the title) are taken to be known from the film's release on. In the 1M set
the fields of a user are those given at registration.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.columns import Kind
from pipelines.sources.conversions import EVENTS, KEYS
from pipelines.sources.streams import GrowingTable, csv_blocks, separated_blocks
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)

LIKED_FROM = 4.0

_NO_GENRE = "(no genres listed)"
_RATINGS: dict[str, Kind] = {
    "userId": "int",
    "movieId": "int",
    "rating": "float",
    "timestamp": "int",
}
_MOVIES: dict[str, Kind] = {"movieId": "int", "title": "string", "genres": "string"}
_USERS: dict[str, Kind] = {
    "user": "int",
    "gender": "string",
    "age": "int",
    "occupation": "int",
    "zip_code": "string",
}
_EVENTS = EVENTS.append(pa.field("rating", pa.float32()))
_IMPRESSIONS = pa.schema([*KEYS, ("timestamp", pa.int64()), ("is_liked", pa.int8())])

_Blocks = Iterator[tuple[int, pa.Table]]


def import_movielens(
    source: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> dict[str, int]:
    """Turns MovieLens ratings into a log folder, block by block.

    Args:
        source: The folder of the unpacked files of either layout.
        folder: The log folder to write; replaced whole if it exists.

    Returns:
        Rows by table name: `events`, `impressions`, `items` and, in the 1M set, `users`.

    Raises:
        DataError: A file or column is missing, broken, empty or holds something else; nothing is
            written.

    Example:
        >>> import_movielens("ml-25m", "build/movielens/log")  # doctest: +SKIP
    """
    home = Path(source)
    ratings, movies, users = _layout(home)
    # Small tables first: a defect there must not cost the reading of the ratings.
    sides = {"items": _unique(movies, _items(movies))}
    if users.exists():
        sides["users"] = _unique(users, _whole(separated_blocks(users, "::", _USERS)))
    with atomic_folder(folder) as aside:
        with (
            GrowingTable(aside / "events.parquet", _EVENTS) as events,
            GrowingTable(aside / "impressions.parquet", _IMPRESSIONS) as shown,
        ):
            for line, block in _blocks(ratings, _RATINGS):
                _check_ratings(ratings, line, block)
                rated, liked, impressions = _tables(block)
                events.add(rated)
                events.add(liked)
                shown.add(impressions)
        for name, table in sides.items():
            with GrowingTable(aside / f"{name}.parquet", table.schema) as file:
                file.add(table)
    counts = {"events": events.num_rows, "impressions": shown.num_rows}
    counts |= {name: len(table) for name, table in sides.items()}
    _logger.info("movielens: %s", ", ".join(f"{rows} {name}" for name, rows in counts.items()))
    return counts


def _layout(home: Path) -> tuple[Path, Path, Path]:
    for end in ("csv", "dat"):
        if (home / f"ratings.{end}").is_file():
            return home / f"ratings.{end}", home / f"movies.{end}", home / "users.dat"
    raise DataError(
        f"{home}: expected ratings.csv or ratings.dat. "
        f"Received: {'neither of them' if home.is_dir() else 'no such folder'}"
    )


def _blocks(path: Path, kinds: dict[str, Kind]) -> _Blocks:
    if path.suffix == ".csv":
        return csv_blocks(path, kinds)
    return separated_blocks(path, "::", kinds, encoding=_encoding(path))


def _encoding(path: Path) -> str:
    """UTF-8, or Latin-1 as in the 1M set, whose film titles are not UTF-8."""
    if not path.is_file() or path.name != "movies.dat":
        return "utf-8"
    try:
        path.read_text("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _whole(blocks: _Blocks) -> pa.Table:
    return pa.concat_tables([block for _, block in blocks])


def _items(path: Path) -> pa.Table:
    movies = _whole(_blocks(path, _MOVIES))
    genres = movies["genres"]
    genres = pc.if_else(pc.equal(genres, _NO_GENRE), pa.scalar(None, pa.string()), genres)
    year = pc.extract_regex(movies["title"], r"\((?P<year>\d{4})\)\s*$")
    return pa.table(
        {
            "item": movies["movieId"],
            "genre": pc.replace_substring_regex(genres, r"\|.*$", ""),
            "genres": genres,
            "year": pc.struct_field(year, "year").cast(pa.int64()),
        }
    )


def _unique(path: Path, table: pa.Table) -> pa.Table:
    """The table, whose first column must not repeat a value."""
    ids = table[0].to_numpy()
    _, first = np.unique(ids, return_index=True)
    if len(first) < len(ids):
        row = int(np.setdiff1d(np.arange(len(ids)), first)[0])
        raise DataError(f"{path}: expected each id once. Received: {ids[row]} again")
    return table


def _check_ratings(path: Path, line: int, block: pa.Table) -> None:
    rating, time = block["rating"].to_numpy(), block["timestamp"].to_numpy()
    steps = rating * 2
    for name, wrong, expected in (
        ("rating", ~((steps == np.floor(steps)) & (rating >= 0.5) & (rating <= 5)), "0.5 to 5"),
        ("timestamp", time < 0, "seconds since 1970"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"{path}, line {line + row}, column `{name}`: expected {expected}. "
                f"Received: {block[name][row].as_py()}"
            )


def _tables(block: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """`rated` events, `liked` events and impressions."""
    keys = {"user": block["userId"], "item": block["movieId"]}
    time = block["timestamp"]
    is_liked = pc.greater_equal(block["rating"], LIKED_FROM)
    rated, liked = (
        pa.table(
            {
                **keys,
                "type": pa.repeat(kind, len(block)),
                "timestamp": time,
                "rating": block["rating"],
            }
        )
        for kind in ("rated", "liked")
    )
    shown = pa.table({**keys, "timestamp": time, "is_liked": is_liked.cast(pa.int8())})
    return rated, liked.filter(is_liked), shown
