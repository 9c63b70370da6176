"""The denoisers of a model."""

from typing import Any

from seqdenoise.layer import SequenceDenoiser


def denoisers_in(model: Any) -> list[SequenceDenoiser]:
    """Every `SequenceDenoiser` in a model, at any depth.

    Args:
        model: A Keras model or layer.

    Returns:
        The layers, each once.
    """
    # Both generations of Keras have this walk over layers in layers; neither has a public one.
    layers = model._flatten_layers(include_self=True, recursive=True)
    found = {id(layer): layer for layer in layers if isinstance(layer, SequenceDenoiser)}
    return list(found.values())
