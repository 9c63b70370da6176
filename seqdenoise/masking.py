"""Which kind of views the plug-in makes, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from seqdenoise.event_edits import crop_mask_reorder_views
from seqdenoise.inputs import whole
from seqdenoise.numerics import Tensor, masked_pool
from seqdenoise.views import (
    correlated_field_views,
    dimension_views,
    dropout_views,
    event_dimension_views,
    event_views,
    feature_dropout,
    field_views,
    fold_in,
)

MASKINGS: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {
    "dimension": dimension_views,
    "event_dimension": event_dimension_views,
    "event": event_views,
    "field": field_views,
    "correlated_field": correlated_field_views,
    "crop_mask_reorder": crop_mask_reorder_views,
    "dropout": dropout_views,
}
_OF_FIELDS = ("field", "correlated_field")
_OF_EVENTS = ("event", "event_dimension", "crop_mask_reorder")
_OF_POOLED = ("dimension", "dropout")


@dataclass(frozen=True)
class Masking:
    """A kind of views and its options.

    Attributes:
        name: A key of `MASKINGS`; None for `event`, and for `dimension` where there are no events.
        dropout: Rate of dropout on each view, after the mask. None is 0, and 0.1 with `dropout`.
        mutual_information: With `correlated_field`, by type, field and field.
    """

    name: str | None
    dropout: float | None
    mutual_information: Mapping[str, Mapping[str, Mapping[str, float]]] | None

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            ValueError: An option is out of range, missing or of no use.
        """
        if self.name is not None and self.name not in MASKINGS:
            raise ValueError(
                f"`masking` must be one of {sorted(MASKINGS)}. Received: {self.name!r}"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: {self.dropout}")
        if self.name == "dropout" and self.dropout == 0:
            raise ValueError(
                "`dropout` must be above 0 with masking 'dropout', or the views would be the same. "
                f"Received: {self.dropout}"
            )
        if (self.mutual_information is not None) != (self.name == "correlated_field"):
            raise ValueError(
                "`mutual_information` must be given with masking 'correlated_field', and only "
                f"then. Received: masking {self.name!r}, mutual_information "
                f"{self.mutual_information}"
            )

    def of_sequence(self, *, is_pooled: bool) -> "Masking":
        """This one with a name.

        Args:
            is_pooled: Whether the sequence comes already pooled.
        """
        by_default = "dimension" if is_pooled else "event"
        return self if self.name is not None else replace(self, name=by_default)

    def check(self, name: str, kind: str, shape: Any) -> None:
        """Checks that a sequence can be masked this way.

        Args:
            name: The sequence's name.
            kind: Its type.
            shape: Its shape, or a mapping from field to shape.

        Raises:
            ValueError: It cannot.
        """
        if self.name in _OF_FIELDS:
            fields = sorted(shape) if isinstance(shape, Mapping) else []
            if len(fields) < 2:
                raise ValueError(
                    f"Masking {self.name!r} needs sequence `{name}` as a mapping from at least 2 "
                    f"fields to tensors. Received: {fields or f'one tensor of shape {shape}'}"
                )
            if self.mutual_information is not None and kind not in self.mutual_information:
                raise ValueError(
                    f"`mutual_information` must have type `{kind}`. "
                    f"Received: {sorted(self.mutual_information)}"
                )
        if self.name in _OF_EVENTS:
            shapes = shape.values() if isinstance(shape, Mapping) else [shape]
            if any(len(tuple(one)) != 3 for one in shapes):
                raise ValueError(
                    f"Masking {self.name!r} needs the events of sequence `{name}`, shape "
                    f"[B, L, D]. Received: shape {shape}"
                )

    def views(
        self,
        kind: str,
        events: Any,
        mask: Tensor,
        seed: Tensor,
        *,
        first_row: Tensor | int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Makes the two views.

        Args:
            kind: Type of the sequence.
            events: float `[B, L, D]`, or a mapping from field to float `[B, L, D_f]`.
            mask: bool `[B, L]`, True for a real event.
            seed: int `[2]`.
            first_row: Number of the first row in the global batch.

        Returns:
            Two views `[B, D]`, and bool `[B]`, True for a row with a real event in both.
        """
        options: dict[str, Any] = {"first_row": first_row}
        if self.mutual_information is not None:
            options["mutual_information"] = self.mutual_information[kind]
        if self.name == "dropout" and self.dropout is not None:
            options["rate"] = self.dropout
        if self.name in _OF_POOLED and isinstance(events, Mapping):
            # Side by side only when pooled: the events are L times as large.
            pooled = {field: masked_pool(x, mask)[:, tf.newaxis] for field, x in events.items()}
            events, mask = whole(pooled), tf.reduce_any(mask, axis=1, keepdims=True)
        elif self.name not in _OF_FIELDS:
            events = whole(events)
        view_a, view_b, valid = MASKINGS[str(self.name)](events, mask=mask, seed=seed, **options)
        if self.dropout and self.name != "dropout":
            view_a = feature_dropout(
                view_a, rate=self.dropout, seed=fold_in(seed, 1), first_row=first_row
            )
            view_b = feature_dropout(
                view_b, rate=self.dropout, seed=fold_in(seed, 2), first_row=first_row
            )
        return view_a, view_b, valid
