"""Which sequences transport aligns and scores, and against what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from seqdenoise.inputs import events_and_mask, num_dimensions, whole
from seqdenoise.judgement import Judgement
from seqdenoise.numerics import Tensor, at_least_float32
from seqdenoise.transport import Transport, view_transport
from seqdenoise.transport.sinkhorn import check_options

# In place of a type: the candidate item, which is no sequence.
CANDIDATE = "candidate"
_DEFAULTS: dict[str, Any] = {
    "epsilon": 0.1, "relaxation": 0.3, "num_iterations": 20, "tolerance": None, "looks": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Aligner:
    """An alignment and the options of its transport.

    Attributes:
        alignment: `"view"`, `"type"` or None.
        trusted: Types that are taken for signal, or `CANDIDATE`; one alone may be a string. None
            for none.
        transport: `epsilon`, `relaxation` (of events' marginals), `num_iterations`, `tolerance`,
            `looks` (of `keep_scores`).
    """

    alignment: str | None
    trusted: str | Sequence[str] | None
    transport: Mapping[str, Any] | None
    trusted_types: tuple[str, ...] = field(init=False)
    options: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Fills in and checks the options.

        Raises:
            ValueError: An option is unknown, out of range, missing or of no use.
        """
        trusted = [self.trusted] if isinstance(self.trusted, str) else list(self.trusted or ())
        object.__setattr__(self, "trusted_types", tuple(trusted))
        object.__setattr__(self, "options", {**_DEFAULTS, **(self.transport or {})})
        if self.alignment not in (None, "view", "type"):
            raise ValueError(
                f"`alignment` must be 'view', 'type' or None. Received: {self.alignment!r}"
            )
        if self.trusted is not None and not trusted:
            raise ValueError("`trusted` must name a type or be None. Received: nothing")
        if self.alignment == "type" and not trusted:
            raise ValueError(
                "Alignment 'type' needs `trusted`, the types whose events are taken for signal. "
                "Received: trusted=None"
            )
        if self.transport is not None and self.alignment is None and not trusted:
            raise ValueError(
                "`transport` must be None without `alignment` and `trusted`. "
                f"Received: {dict(self.transport)}"
            )
        unknown = sorted(set(self.transport or {}) - set(_DEFAULTS))
        if unknown:
            raise ValueError(f"`transport` may have {sorted(_DEFAULTS)}. Received: {unknown}")
        of_events = sorted({"relaxation", "looks"} & set(self.transport or {}))
        if of_events and not trusted:
            raise ValueError(
                "`transport` may have `relaxation` and `looks` with `trusted` only: views are "
                f"transported whole. Received: {of_events}"
            )
        if self.options["relaxation"] is None:
            raise ValueError(
                "`relaxation` must be above 0, or every event would be kept. Received: None"
            )
        if self.options["looks"] not in (1, 2):
            raise ValueError(f"`looks` must be 1 or 2. Received: {self.options['looks']}")
        transport = {name: x for name, x in self.options.items() if name != "looks"}
        check_options(**transport, mode="auto")

    def check(self, types: Mapping[str, str], denoised: Sequence[str], shapes: Any) -> None:
        """Checks that there are sequences to judge, and trusted ones that fit them.

        Args:
            types: Type of every sequence, by the sequence's name.
            denoised: Names of those that are denoised.
            shapes: By name, shapes or mappings from field to shape.

        Raises:
            ValueError: There are not.
        """
        if not self.trusted_types:
            return
        missing = sorted(set(self.trusted_types) - set(types.values()) - {CANDIDATE})
        if missing:
            raise ValueError(
                f"`trusted` must name types among {sorted(set(types.values()))}, or 'candidate'. "
                f"Received: {missing}"
            )
        noisy = self.noisy(types, denoised)
        if not noisy:
            raise ValueError(
                "Every denoised sequence is trusted, so there is none to judge. "
                f"Received: trusted {list(self.trusted_types)}, denoised {sorted(denoised)}"
            )
        for name in noisy:
            parts = shapes[name].values() if isinstance(shapes[name], Mapping) else [shapes[name]]
            if any(len(tuple(shape)) != 3 for shape in parts):
                raise ValueError(
                    f"`trusted` needs the events of sequence `{name}`, shape [B, L, D], to judge "
                    f"them. Received: shape {shapes[name]}"
                )
        layouts = {name: _layout(name, shapes[name]) for name in (*noisy, *self._trusted(types))}
        if len(set(layouts.values())) > 1:
            raise ValueError(
                "Sequences that `trusted` compares must have the same fields and numbers of "
                f"dimensions. Received: {layouts}"
            )

    def noisy(self, types: Mapping[str, str], denoised: Sequence[str]) -> tuple[str, ...]:
        """Names of the sequences whose events are judged: denoised, and not trusted themselves."""
        if not self.trusted_types:
            return ()
        return tuple(name for name in denoised if types[name] not in self.trusted_types)

    def view_transport(
        self, view_a: Tensor, view_b: Tensor, *, mask: Tensor, weights: Tensor | None
    ) -> Transport:
        """Transport of a sequence's views A onto its views B; see `seqdenoise.transport`."""
        options = {n: x for n, x in self.options.items() if n not in ("relaxation", "looks")}
        return view_transport(view_a, view_b, mask=mask, weights=weights, **options)

    def judge(
        self,
        sequences: Mapping[str, Any],
        mask: Mapping[str, Tensor],
        candidate: Any,
        types: Mapping[str, str],
        denoised: Sequence[str],
    ) -> Judgement:
        """Transports each noisy sequence's events onto the same row's trusted ones.

        Args:
            sequences: As the layer was called with.
            mask: Likewise, {} for none.
            candidate: float `[B, D]`, or a mapping from field to such; read if trusted.
            types: Type of every sequence.
            denoised: Names of those that are denoised.

        Returns:
            What the trusted events say of the noisy ones.

        Raises:
            ValueError: The candidate is trusted and not given, or given and not trusted.
        """
        if (CANDIDATE in self.trusted_types) != (candidate is not None):
            raise ValueError(
                "`candidate` must be given if `trusted` names it, and only then. Received: trusted "
                f"{list(self.trusted_types)}, candidate {'None' if candidate is None else 'given'}"
            )

        def vectors(name: str, sequence: Any, real: Any) -> tuple[Tensor, Tensor]:
            events, real = events_and_mask(name, sequence, real)
            return at_least_float32(whole(events)), real

        trusted = [vectors(name, sequences[name], mask.get(name)) for name in self._trusted(types)]
        if candidate is not None:
            trusted.append(vectors(CANDIDATE, candidate, None))
        noisy = {
            name: vectors(name, sequences[name], mask.get(name))
            for name in self.noisy(types, denoised)
        }
        return Judgement.of(
            {name: events for name, (events, _) in noisy.items()},
            {name: real for name, (_, real) in noisy.items()},
            tf.concat([events for events, _ in trusted], axis=1),
            tf.concat([real for _, real in trusted], axis=1),
            **self.options,
        )

    def _trusted(self, types: Mapping[str, str]) -> list[str]:
        return [name for name in sorted(types) if types[name] in self.trusted_types]


def _layout(name: str, shape: Any) -> tuple[tuple[str, int], ...]:
    fields = shape if isinstance(shape, Mapping) else {"": shape}
    return tuple((key, num_dimensions(name, fields[key])) for key in sorted(fields))
