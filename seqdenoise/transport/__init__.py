"""Entropic optimal transport inside a training graph, and what it says about events."""

from seqdenoise.transport.alignment import event_transport, keep_scores, view_transport
from seqdenoise.transport.cosine import cosine_transport
from seqdenoise.transport.second_look import second_look_scores
from seqdenoise.transport.sinkhorn import Transport, sinkhorn, transport_plan

__all__ = [
    "Transport",
    "cosine_transport",
    "event_transport",
    "keep_scores",
    "second_look_scores",
    "sinkhorn",
    "transport_plan",
    "view_transport",
]
