"""What a model's export asks of a server: its signature, and its operations."""

from pathlib import Path
from typing import Any

import tensorflow as tf


def exported(model: Any, folder: Path, **options: Any) -> Any:
    """The `serving_default` function of the model's export."""
    model.export(str(folder), **options)
    loaded = tf.saved_model.load(str(folder))
    function = loaded.signatures["serving_default"]
    function.keeps_alive = loaded
    return function


def operations(function: Any) -> list[str]:
    """The types of all operations, those of the functions that it calls included."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return [node.op for node in nodes]


def signature(function: Any) -> tuple[Any, Any]:
    """Inputs and outputs by name, with shapes and dtypes."""
    return function.structured_input_signature, function.structured_outputs
