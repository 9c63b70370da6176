"""The events of a batch's noisy sequences, judged by the trusted events of the same rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor
from seqdenoise.transport import Transport, event_transport
from seqdenoise.transport.alignment import scores_of
from seqdenoise.transport.second_look import second_look_scores


@dataclass(frozen=True)
class Judgement:
    """Noisy sequences transported onto trusted events, row by row.

    Attributes:
        events: By noisy sequence float `[B, L, D]`.
        masks: By noisy sequence bool `[B, L]`, True for a real event.
        trusted: float `[B, M, D]`.
        trusted_mask: bool `[B, M]`, True for a real trusted event.
        options: `epsilon`, `relaxation`, `num_iterations`, `tolerance` of the transport.
        looks: 1 or 2; see `keep_scores`.
        transports: By noisy sequence, one problem a row.
    """

    events: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    trusted: Tensor
    trusted_mask: Tensor
    options: Mapping[str, Any]
    looks: int
    transports: Mapping[str, Transport]

    @classmethod
    def of(
        cls,
        events: Mapping[str, Tensor],
        masks: Mapping[str, Tensor],
        trusted: Tensor,
        trusted_mask: Tensor,
        *,
        looks: int,
        **options: Any,
    ) -> "Judgement":
        """Solves the transport problems; see the attributes."""
        transports = {
            name: event_transport(
                events[name], trusted, mask=masks[name], trusted_mask=trusted_mask, **options
            )
            for name in events
        }
        return cls(events, masks, trusted, trusted_mask, options, looks, transports)

    def keep_scores(self) -> dict[str, Tensor]:
        """Scores `[B, L]` in [0, 1] by noisy sequence.

        After one look what `seqdenoise.transport.keep_scores` says, after two
        `seqdenoise.transport.second_look_scores` on top of it.
        """
        scores = {
            name: scores_of(transport, mask=self.masks[name], trusted_mask=self.trusted_mask)
            for name, transport in self.transports.items()
        }
        if self.looks == 1:
            return scores
        return second_look_scores(
            self.events,
            self.trusted,
            masks=self.masks,
            trusted_mask=self.trusted_mask,
            first_scores=scores,
            **self.options,
        )

    def gated(self, sequences: Mapping[str, Any]) -> dict[str, Any]:
        """The sequences, the real events of the judged ones times their keep scores.

        Args:
            sequences: By name float `[B, L, D]`, or a mapping from field to such.

        Returns:
            All of them; padded slots as they were.
        """
        factors = {
            name: tf.where(self.masks[name], scores, tf.ones_like(scores))[..., tf.newaxis]
            for name, scores in self.keep_scores().items()
        }

        def gated(name: str, events: Any) -> Any:
            if name not in factors:
                return events
            return tf.nest.map_structure(lambda x: x * tf.cast(factors[name], x.dtype), events)

        return {name: gated(name, events) for name, events in sequences.items()}

    def by_row(self, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the transport of one noisy sequence says of each row.

        Args:
            name: The sequence's name.

        Returns:
            float `[B]` each: the cost, the marginal error, and the share of their mass that the
            plan moves; and bool `[B]`, True for a row with real events of this sequence and trusted
            ones.
        """
        transport = self.transports[name]
        judged = tf.reduce_any(self.masks[name], axis=1) & tf.reduce_any(self.trusted_mask, axis=1)
        moved = tf.reduce_sum(transport.row_marginal, axis=1)
        return transport.cost, transport.marginal_error, moved, judged
