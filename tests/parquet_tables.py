"""Random rows of the tables that the jobs read, as Python values, and their schemas."""

import numpy as np
import pyarrow as pa

ITEMS, TIMES, PRICES = pa.list_(pa.int64()), pa.list_(pa.int64()), pa.list_(pa.float32())
PREPARED = pa.schema(
    [
        ("user", pa.int64()),
        ("item", pa.int64()),
        ("timestamp", pa.int64()),
        ("is_click", pa.int8()),
        ("price", pa.float32()),
        ("brand", pa.string()),
        ("click__item", ITEMS),
        ("click__timestamp", TIMES),
        ("click__price", PRICES),
        ("cart__item", ITEMS),
    ]
)
EVENTS = pa.schema(
    [
        ("user", pa.int64()),
        ("item", pa.int64()),
        ("type", pa.string()),
        ("timestamp", pa.int64()),
    ]
)
IMPRESSIONS = pa.schema(
    [
        ("user", pa.int64()),
        ("item", pa.int64()),
        ("timestamp", pa.int64()),
        ("is_click", pa.int8()),
        ("weight", pa.float64()),
    ]
)


def prepared_rows(random, num_rows=24):
    rows = []
    for row in range(num_rows):
        clicks, carts = random.integers(0, 8), random.integers(0, 4)
        untimed = random.integers(0, clicks + 1)
        times = sorted(random.integers(10, 1000 + row, clicks - untimed).tolist())
        rows.append(
            {
                "user": row + 1,
                "item": int(random.integers(1, 2**60)),
                "timestamp": 1000 + row,
                "is_click": int(random.integers(0, 2)),
                "price": float(random.integers(1, 90)) / 4,
                "brand": ["a", "b", "c", "unseen", ""][random.integers(0, 5)],
                "click__item": random.integers(1, 100, clicks).tolist(),
                "click__timestamp": [None] * int(untimed) + times,
                "click__price": (random.integers(0, 90, clicks) / 2).tolist(),
                "cart__item": random.integers(2**53, 2**60, carts).tolist(),
            }
        )
    return rows


def event_rows(random, num_rows=80):
    # Distinct times: the order of ties is another test's matter.
    times = random.permutation(np.arange(num_rows * 2))[:num_rows] * 1000
    return [
        {
            "user": int(random.integers(1, 6)),
            "item": int(random.integers(1, 2**60)),
            "type": ["click", "cart"][row % 2],
            "timestamp": int(time),
        }
        for row, time in enumerate(times)
    ]


def impression_rows(random, num_rows=24):
    return [
        {
            "user": int(random.integers(1, 7)),
            "item": row + 1,
            "timestamp": int(random.integers(0, 160)) * 1000,
            "is_click": row % 2,
            "weight": row / 4,
        }
        for row in range(num_rows)
    ]
