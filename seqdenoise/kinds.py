"""Of which type each sequence is, and which types are denoised."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seqdenoise.inputs import num_dimensions


@dataclass(frozen=True)
class Kinds:
    """The types of sequences.

    Attributes:
        types: From a sequence's name to its type, where they differ.
        exclude: Types that are left alone.
    """

    types: Mapping[str, str]
    exclude: tuple[str, ...]

    def of(self, name: str) -> str:
        """The type of a sequence."""
        return str(self.types.get(name, name))

    def denoised(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the named sequences that are denoised, in the order of their names.

        Raises:
            ValueError: There is none.
        """
        names = sorted(names)
        denoised = tuple(name for name in names if self.of(name) not in self.exclude)
        if not denoised:
            raise ValueError(
                "Every sequence is of an excluded type, so nothing is left to denoise. "
                f"Received: sequences {names}, exclude {list(self.exclude)}"
            )
        return denoised

    def sizes(self, shapes: Mapping[str, Any]) -> dict[str, int]:
        """The number of dimensions of each type that is denoised.

        Args:
            shapes: By a sequence's name its shape, or a mapping from field to shape.

        Returns:
            `D` by type.

        Raises:
            ValueError: A shape does not fit, or two of one type do not fit each other.
        """
        sizes: dict[str, int] = {}
        for name in self.denoised(shapes):
            kind, size = self.of(name), num_dimensions(name, shapes[name])
            if sizes.setdefault(kind, size) != size:
                raise ValueError(
                    f"Sequences of type `{kind}` share an encoder and must have the same number "
                    f"of dimensions. Received: {sizes[kind]} and, for `{name}`, {size}"
                )
        return sizes
