"""Ways to change a table and how it is written, each a function of a mutant and a random state."""

from dataclasses import dataclass, field

import pyarrow as pa
from parquet_tables import ITEMS, PRICES


@dataclass
class Mutant:
    """A file to be written, and what to expect of it.

    Attributes:
        columns: Name and array, in order; a name may come twice.
        may_refuse: Whether an error is right although the rows can be read.
        clean: Whether the validator must find no error.
        damage: What happens to the bytes afterwards.
    """

    columns: list
    may_refuse: bool = False
    clean: bool = True
    damage: object = None
    row_group_size: int = 7
    options: dict = field(default_factory=dict)

    def position(self, name):
        return [n for n, _ in self.columns].index(name)

    def array(self, name):
        return self.columns[self.position(name)][1]

    def put(self, name, array):
        self.columns[self.position(name)] = (name, array)

    def values(self, name):
        return self.array(name).to_pylist()


def retyped(name, kind, *, convert=None, may_refuse=False, clean=True):
    def mutate(mutant, random):
        values = mutant.values(name)
        if convert is not None:
            values = [convert(value) for value in values]
        mutant.put(name, pa.array(values, kind))
        mutant.may_refuse |= may_refuse
        mutant.clean &= clean

    return mutate


def in_lists(convert):
    return lambda values: None if values is None else [convert(value) for value in values]


def with_values(name, *values, clean=False):
    """Some rows of a column get the given values."""

    def mutate(mutant, random):
        column = mutant.values(name)
        for value in values:
            column[random.integers(0, len(column))] = value
        mutant.put(name, pa.array(column, mutant.array(name).type))
        mutant.clean &= clean

    return mutate


def all_null(name, *, clean=False):
    def mutate(mutant, random):
        array = mutant.array(name)
        mutant.put(name, pa.nulls(len(array), array.type))
        mutant.clean &= clean

    return mutate


def null_type(name):
    def mutate(mutant, random):
        mutant.put(name, pa.nulls(len(mutant.array(name))))
        mutant.clean, mutant.may_refuse = False, True

    return mutate


def everything_null(mutant, random):
    mutant.columns = [(name, pa.nulls(len(array), array.type)) for name, array in mutant.columns]
    mutant.clean = False


def null_elements(name):
    def mutate(mutant, random):
        values = mutant.values(name)
        row = next(row for row, value in enumerate(values) if value)
        values[row][random.integers(0, len(values[row]))] = None
        mutant.put(name, pa.array(values, mutant.array(name).type))
        mutant.clean = False

    return mutate


def shorter_list(mutant, random):
    values = mutant.values("click__price")
    row = next(row for row, value in enumerate(values) if value)
    mutant.put(
        "click__price", pa.array([*values[:row], values[row][1:], *values[row + 1 :]], PRICES)
    )
    mutant.clean = False


def null_lists(mutant, random):
    hidden = random.random(len(mutant.array("user"))) < 0.4
    for name in ("click__item", "click__timestamp", "click__price"):
        values = [None if h else v for h, v in zip(hidden, mutant.values(name), strict=True)]
        mutant.put(name, pa.array(values, mutant.array(name).type))


def null_lists_over_values(mutant, random):
    """Null lists whose offsets still span values, which do not count."""
    array = mutant.array("cart__item")
    hidden = random.random(len(array)) < 0.5
    masked = pa.ListArray.from_arrays(array.offsets, array.values, mask=pa.array(hidden))
    mutant.put("cart__item", masked)


def fixed_size_lists(with_nulls):
    def mutate(mutant, random):
        rows = len(mutant.array("user"))
        for name, inner in (
            ("click__item", pa.int64()),
            ("click__timestamp", pa.int64()),
            ("click__price", pa.float32()),
        ):
            lists = [[7 + row, 8 + row, 9 + row] for row in range(rows)]
            if with_nulls:
                lists[3] = lists[11] = None
            mutant.put(name, pa.array(lists, pa.list_(inner, 3)))
        # Older pyarrow cannot read null ones.
        mutant.may_refuse |= with_nulls

    return mutate


def dropped(name, *, clean=False):
    def mutate(mutant, random):
        del mutant.columns[mutant.position(name)]
        mutant.clean &= clean

    return mutate


def renamed(name, other):
    def mutate(mutant, random):
        mutant.columns[mutant.position(name)] = (other, mutant.array(name))
        mutant.clean = False

    return mutate


def twice(name):
    def mutate(mutant, random):
        mutant.columns.append((name, mutant.array(name)))
        mutant.clean = False

    return mutate


def reordered(mutant, random):
    random.shuffle(mutant.columns)


def extra(*columns, clean=True):
    """Columns that nobody asked for, in front."""

    def mutate(mutant, random):
        rows = len(mutant.array("user"))
        mutant.columns[:0] = [
            (name, pa.array([value] * rows, kind)) for name, value, kind in columns
        ]
        mutant.clean &= clean

    return mutate


def as_struct(name):
    def mutate(mutant, random):
        array = mutant.array(name)
        mutant.put(name, pa.StructArray.from_arrays([array], [name]))
        mutant.clean = False

    return mutate


def in_parent_struct(mutant, random):
    """`click__item` moves into a struct, whose path a projection might match."""
    array = mutant.array("click__item")
    mutant.columns[mutant.position("click__item")] = (
        "click",
        pa.StructArray.from_arrays([array], ["click__item"]),
    )
    mutant.clean = False


def rows(count):
    def mutate(mutant, random):
        mutant.columns = [(name, array.slice(2, count)) for name, array in mutant.columns]
        mutant.clean &= count > 0

    return mutate


def changing_dictionaries(name):
    """Every row group has a dictionary of its own."""

    def mutate(mutant, random):
        values = mutant.values(name)
        chunks = [
            pa.array(values[start : start + 7]).dictionary_encode()
            for start in range(0, len(values), 7)
        ]
        mutant.put(name, pa.chunked_array(chunks))

    return mutate


def encoded(name, kind):
    """A dictionary of values of this type."""

    def mutate(mutant, random):
        mutant.put(name, pa.array(mutant.values(name), kind).dictionary_encode())

    return mutate


def dictionary_with_nulls(name):
    def mutate(mutant, random):
        values = mutant.values(name)
        values[3] = values[9] = None
        mutant.put(name, pa.array(values).dictionary_encode())
        mutant.clean &= name == "brand"

    return mutate


def long_list(mutant, random):
    values = mutant.values("cart__item")
    values[5] = list(range(1, 5000))
    mutant.put("cart__item", pa.array(values, ITEMS))


def as_is(mutant, random):
    pass


def damaged(change):
    def mutate(mutant, random):
        mutant.damage, mutant.may_refuse, mutant.clean = change, True, False

    return mutate


def another_value(mutant, random):
    """One bit of one plainly stored id flips: only the page's checksum can tell."""
    row = len(mutant.array("item")) // 2
    stored = mutant.array("item")[row].as_py().to_bytes(8, "little")

    def change(data, random):
        at = data.index(stored) + 1
        return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]

    mutant.options |= {"compression": "none", "use_dictionary": False, "write_statistics": False}
    damaged(change)(mutant, random)
