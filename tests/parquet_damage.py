"""What can happen to the bytes of a parquet file: cut, flipped, overwritten, mixed up."""

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq


def _flip(count, region):
    """Some bits flip: anywhere, in the footer, or in the pages."""

    def change(data, random):
        data = bytearray(data)
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        start, stop = {"file": (0, len(data)), "footer": (footer, len(data)), "pages": (4, footer)}[
            region
        ]
        for at in random.integers(start, stop, count):
            data[at] ^= 1 << random.integers(0, 8)
        return bytes(data)

    return change


def _zeroed(data, random):
    start = random.integers(4, len(data) - 100)
    return data[:start] + bytes(90) + data[start + 90 :]


def _cut(data, random):
    return data[: random.integers(1, len(data))]


def _hole(data, random):
    start = random.integers(4, len(data) - 60)
    return data[:start] + data[start + 50 :]


def _not_utf8(data, random):
    """A column name that is no text; the footer has it once more, but in base64."""
    assert b"item" in data
    return data.replace(b"item", b"it\xf4m")


def _row_counts(data):
    file = pq.read_metadata(pa.BufferReader(data))
    return [file.row_group(index).num_rows for index in range(file.num_row_groups)]


def _another_row_count(data, random):
    """The footer says of a row group that it has more or fewer rows, or less than none."""
    intact = _row_counts(data)
    while True:
        flipped = _flip(1, "footer")(data, random)
        # Whatever else such a flip may break is another mutant.
        with suppress(Exception):
            counts = _row_counts(flipped)
            if len(counts) == len(intact) and counts != intact:
                return flipped


def _footer_length(length):
    return lambda data, random: data[:-8] + length.to_bytes(4, "little") + data[-4:]


DAMAGE = {
    "0 bytes": lambda data, random: b"",
    "cut": _cut,
    "cut again": _cut,
    "cut once more": _cut,
    "only magic": lambda data, random: b"PAR1PAR1",
    "text": lambda data, random: b"user,item\n1,2\n" * 20,
    "junk before": lambda data, random: random.bytes(64) + data,
    "junk after": lambda data, random: data + random.bytes(64),
    "swapped halves": lambda data, random: data[len(data) // 2 :] + data[: len(data) // 2],
    "twice": lambda data, random: data + data,
    "hole": _hole,
    "zeros": _zeroed,
    "name not utf-8": _not_utf8,
    "another row count": _another_row_count,
    "no footer length": _footer_length(0),
    "huge footer length": _footer_length(2**32 - 1),
    "short footer length": _footer_length(50),
    "flip": _flip(1, "file"),
    "flips": _flip(3, "file"),
    "flip in the pages": _flip(1, "pages"),
    "flips in the pages": _flip(4, "pages"),
    "flip in the footer": _flip(1, "footer"),
    "flips in the footer": _flip(3, "footer"),
}
UNREADABLE = {
    *("0 bytes", "cut", "cut again", "cut once more", "only magic", "text", "junk after"),
    *(
        "swapped halves",
        "name not utf-8",
        "another row count",
        "no footer length",
        "huge footer length",
    ),
}
"""Damage that leaves nothing to be read."""
