"""A log of any size for benchmarks, skewed as real ones are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.columns import IntArray

TYPES = ("view", "click", "cart")

_TYPE_SHARES = (0.7, 0.22, 0.08)
_EVENTS_PER_USER = 80
_ROWS_AT_A_TIME = 1_000_000
_START = 1_700_000_000_000
_MILLISECONDS = 30 * 86_400_000


def write_bench_log(folder: Path, *, events: int, impressions: int, seed: int = 0) -> None:
    """Writes `events.parquet` and `impressions.parquet`, sorted by time.

    Few users have most events, few items are in most. No two events share a millisecond, so what
    the last events are does not hang on the order of ties; but every other impression falls on an
    event of its user, which must then be left out.

    Args:
        folder: Where to write.
        events: How many, at least 1: views, clicks and carts over 30 days.
        impressions: How many, at least 1: each with a number `row`.
        seed: Of all draws.
    """
    rng = np.random.default_rng(seed)
    num_users = max(2, events // _EVENTS_PER_USER)
    parts = max(1, events // _ROWS_AT_A_TIME)
    edges = np.linspace(0, events, parts + 1).astype(np.int64)
    shown_edges = np.linspace(0, impressions, parts + 1).astype(np.int64)
    mean_gap = max(1.0, _MILLISECONDS / events)
    start = _START
    with atomic_folder(folder) as aside, _writers(aside) as (log, shown):
        for part in range(parts):
            count = int(edges[part + 1] - edges[part])
            times = start + np.cumsum(1 + rng.poisson(mean_gap - 1, count))
            users = _users(rng, num_users, count)
            kinds = rng.choice(len(TYPES), count, p=_TYPE_SHARES).astype(np.int8)
            types = pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(TYPES))
            columns = [users, _items(rng, count), types, times]
            log.write_table(pa.table(columns, schema=_EVENTS))
            count = int(shown_edges[part + 1] - shown_edges[part])
            chosen = rng.integers(0, len(times), count)
            with_event = rng.random(count) < 0.5
            at = np.where(with_event, times[chosen], rng.integers(start, times[-1] + 1, count))
            viewers = np.where(with_event, users[chosen], _users(rng, num_users, count))
            order = np.argsort(at, kind="stable")
            columns = [
                viewers[order],
                _items(rng, count),
                at[order],
                rng.integers(0, 2, count).astype(np.int8),
                np.arange(shown_edges[part], shown_edges[part + 1]),
            ]
            shown.write_table(pa.table(columns, schema=_IMPRESSIONS))
            start = int(times[-1])


_KEYS = [("user", pa.int64()), ("item", pa.int64())]
_EVENTS = pa.schema(
    [*_KEYS, ("type", pa.dictionary(pa.int8(), pa.string())), ("timestamp", pa.int64())]
)
_IMPRESSIONS = pa.schema(
    [*_KEYS, ("timestamp", pa.int64()), ("is_click", pa.int8()), ("row", pa.int64())]
)


@contextmanager
def _writers(folder: Path) -> Iterator[tuple[pq.ParquetWriter, pq.ParquetWriter]]:
    with (
        pq.ParquetWriter(folder / "events.parquet", _EVENTS, compression="zstd") as log,
        pq.ParquetWriter(folder / "impressions.parquet", _IMPRESSIONS, compression="zstd") as shown,
    ):
        yield log, shown


def _users(rng: np.random.Generator, num_users: int, count: int) -> IntArray:
    return (num_users * rng.beta(0.7, 2.5, count)).astype(np.int64)


def _items(rng: np.random.Generator, count: int) -> IntArray:
    return np.minimum(2000 * rng.pareto(1.1, count), 2_000_000).astype(np.int64)
