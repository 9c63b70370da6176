"""One worker of a cluster of two that trains as tests/replica_steps.py does.

Started twice, with a `TF_CONFIG` each, it saves what its own process has in the end:

    PYTHONPATH=tests python -m cluster_worker OUTPUT.npz
"""

import sys

import numpy as np
import tensorflow as tf
from replica_steps import LEGACY_KERAS, SYSTEMS, Trainer, fitted, host_and_rows, left

CUSTOM_LOOPS = ("info_nce", "moco")


def looped():
    """As `fitted`, by Keras' own step in a loop of our own: so it goes in Keras 3."""
    strategy = tf.distribute.get_strategy()
    model, dataset = host_and_rows()
    step = tf.function(lambda rows: strategy.run(model.train_step, args=(rows,)))
    history = []
    spread = strategy.experimental_distribute_dataset(dataset)
    for _ in range(7):
        model.reset_metrics()
        for rows in spread:
            step(rows)
        history.append({metric.name: float(metric.result()) for metric in model.metrics})
    return left(model, {name: [logs[name] for logs in history] for name in history[0]})


def results():
    """By name what the training loops leave."""
    saved = {}
    for name in CUSTOM_LOOPS:
        saved |= {f"{name}/{key}": x for key, x in Trainer(**SYSTEMS[name]).run().items()}
    saved |= {f"loop/{key}": x for key, x in looped().items()}
    try:
        saved |= {f"fit/{key}": x for key, x in fitted().items()}
    except ValueError as error:
        if LEGACY_KERAS:
            raise
        saved["refused"] = np.array(str(error))
    return saved


if __name__ == "__main__":
    # First of all: collectives must be set up before TensorFlow starts.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        np.savez(sys.argv[1], **results())
