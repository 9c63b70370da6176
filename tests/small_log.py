"""A small raw log and its run file, shared by the tests of the jobs that read one."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import RunConfig

TYPES = ["click", "cart", "seen"]
START = 1_650_000_000_000
MINUTE = 60_000


def tables(seed=0, num_users=30, num_items=40, num_events=2000, num_impressions=600):
    """The five raw tables; `seen` comes from histories alone, `other` is no sequence type."""
    random = np.random.default_rng(seed)
    # Whole minutes over ten hours: many ties, among events and with impressions.
    event_times = START + random.integers(0, 600, num_events) * MINUTE
    shown_times = START + random.integers(0, 600, num_impressions) * MINUTE
    return {
        "events": pa.table(
            {
                "user": random.integers(0, num_users, num_events),
                "item": random.integers(0, num_items, num_events),
                "type": pa.array(
                    random.choice(["click", "cart", "other"], num_events).tolist()
                ).dictionary_encode(),
                "timestamp": event_times,
            }
        ),
        "impressions": pa.table(
            {
                "user": random.integers(0, num_users + 3, num_impressions),
                "item": random.integers(0, num_items + 3, num_impressions),
                "timestamp": shown_times,
                "is_click": pa.array(random.integers(0, 2, num_impressions), pa.int8()),
                "tab": random.integers(0, 3, num_impressions),
                "weight": random.random(num_impressions),
            }
        ),
        "histories": pa.table(
            {
                "user": pa.array([1, 2, 1, 99]),
                "type": ["seen", "seen", "click", "seen"],
                "items": pa.array([[5, 6, 7], None, [9, 9, 8], [1]], pa.list_(pa.int64())),
            }
        ),
        "items": pa.table(
            {
                "item": random.permutation(num_items),
                "brand": pa.array([None if i % 5 == 0 else f"b{i % 4}" for i in range(num_items)]),
                "author": pa.array([2**53 + 1 + i for i in range(num_items)]),
            }
        ),
        "users": pa.table(
            {
                "user": random.permutation(num_users),
                "age": pa.array([i % 7 for i in range(num_users)]),
            }
        ),
    }


def settings(folder, **changes):
    """The run file's contents; `changes` replace keys of its `prepare` section."""
    prepare = {
        "sequence_types": TYPES,
        "max_length": 6,
        "item_fields": ["brand", "author"],
        "user_fields": ["age"],
        "context_fields": ["tab"],
        "labels": ["is_click"],
        "where": {"tab": [0, 1]},
        "split": {"valid_from": START + 360 * MINUTE, "test_from": START + 480 * MINUTE},
    }
    content = {"folder": folder, "prepare": prepare | changes, "model": {"label": "is_click"}}
    return RunConfig.model_validate(content)


def write_log(folder, raw):
    (folder / "log").mkdir(parents=True, exist_ok=True)
    for name, table in raw.items():
        pq.write_table(table, folder / "log" / f"{name}.parquet", row_group_size=500)
