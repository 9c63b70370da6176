"""Training steps of a plug-in on rows that are spread over replicas, and on one device.

Run as a program, it trains every system of `SYSTEMS` both ways, and the host of `fitted`, in a
process of its own, since devices are split before TensorFlow starts, saves what came out, and
prints how far the two ways differ:

    PYTHONPATH=tests python -m replica_steps OUTPUT.npz [NAME...]
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import seqdenoise

STEPS, L, D, ITEMS = 20, 5, 8, 40
# Of rows per step over two replicas, from step to step.
SPREADS = ((6, 6), (1, 11), (12, 0), (8, 4), (0, 12), (5, 2))
FIELDS = ("brand", "item", "shop", "tag")
INFORMATION = {
    one: {other: 1.0 + abs(i - j) for j, other in enumerate(FIELDS) if j != i}
    for i, one in enumerate(FIELDS)
}


@tf.keras.utils.register_keras_serializable(package="tests")
def margin_loss(view_a, view_b, *, mask, ids, weights):
    """A loss that no one foresaw: quadratic in all pairs of rows, with ids and weights."""
    pairs = tf.cast(ids[:, None] != ids[None, :], tf.float32)
    valid = tf.cast(mask, tf.float32) * weights
    pairs *= valid[:, None] * valid[None, :]
    likeness = tf.matmul(view_a, view_b, transpose_b=True)
    apart = tf.reduce_sum(pairs * tf.nn.relu(likeness + 0.2) ** 2)
    together = tf.reduce_sum(valid * (1 - tf.linalg.diag_part(likeness)))
    return together / (1 + tf.reduce_sum(valid)) + apart / (1 + tf.reduce_sum(pairs))


SYSTEMS = {
    "info_nce": {"loss_options": {"symmetric": True, "max_similarity": 0.95}},
    "learned_temperature": {"learn_temperature": True, "masking": "event", "dropout": 0.2},
    "nt_xent": {"loss": "nt_xent", "head_units": 8, "masking": "dropout"},
    "n_pair": {"loss": "n_pair", "masking": "field", "warmup_steps": 15},
    "triplet": {"loss": "triplet", "masking": "event_dimension"},
    "simple": {
        "loss": "simple",
        "masking": "correlated_field",
        "mutual_information": {"click": INFORMATION},
    },
    "debiased": {"loss": "debiased", "num_positives": 2, "loss_options": {"tau_plus": 0.05}},
    "hard_negative": {
        "loss": "hard_negative",
        "loss_options": {"tau_plus": 0.05},
        "alignment": "view",
    },
    "multi_positive": {"loss": "multi_positive"},
    "moco": {"loss": "moco", "queue_size": 31, "momentum": 0.9, "head_units": 8},
    "rocl": {
        "loss": "rocl",
        "attack": {"epsilon": 0.05, "num_steps": 2, "random_start": True},
        "dtype": "float64",  # a sign that rounding turns would move the result far
    },
    "type_alignment": {"alignment": "type", "trusted": "cart"},
    "custom_loss": {"loss": margin_loss},
    "budget": {"gradient_budget": 0.3, "project_conflicts": True},
}
# Losses are functions alone; these keep something in Keras, or compute a gradient on the way.
STATEFUL = ("info_nce", "learned_temperature", "moco", "rocl", "type_alignment", "budget")
# The second generation of Keras need not train the others again.
LEGACY_KERAS = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
HERE = STATEFUL if LEGACY_KERAS else tuple(SYSTEMS)


def batches():
    """Batches of ids of items, lengths, users, weights and labels, and where replicas begin."""
    rng = np.random.default_rng(4)
    for number in range(STEPS):
        spread = SPREADS[number % len(SPREADS)]
        rows = sum(spread)
        yield (
            {
                "click": rng.integers(0, ITEMS, (rows, L)),
                "cart": rng.integers(0, ITEMS, (rows, L)),
                "click_length": rng.integers(0, L + 1, rows),
                "cart_length": rng.integers(0, L + 1, rows),
                "user": np.array([f"u{i}" for i in rng.integers(0, 8, rows)]),
                "weight": rng.integers(0, 4, rows).astype(np.float32),
                "label": rng.integers(-1, 3, rows),
            },
            np.array([0, spread[0], rows]),
        )


class Trainer:
    """A table of items and a plug-in, trained by the side loss in the current strategy."""

    def __init__(self, **options):
        self.strategy = tf.distribute.get_strategy()
        self.denoiser = seqdenoise.SequenceDenoiser(
            units=8, hidden_units=16, weight=0.5, seed=3, name="denoiser", **options
        )
        dtype = options.get("dtype", "float32")
        start = tf.random.stateless_normal([ITEMS, D], seed=[1, 2], dtype=dtype)
        self.table = tf.Variable(start, name="table")
        self.kinds = ("click", "cart") if "trusted" in options else ("click",)
        self.by_field = "field" in options.get("masking", "")
        # A budget is a share of what a host has.
        self.has_host = "gradient_budget" in options
        self.labelled = options.get("loss") in ("triplet", "multi_positive")
        # One graph for all numbers of rows.
        first, _ = next(batches())
        rows = {
            name: tf.TensorSpec([None, *x.shape[1:]], tf.convert_to_tensor(x).dtype)
            for name, x in first.items()
        }
        signature = (rows, tf.TensorSpec([None], tf.int64))
        self.train = tf.function(self._train, input_signature=signature, autograph=False)
        self.call(self.slice(first, 0, 2), training=False)

    @staticmethod
    def slice(batch, first, stop):
        return {name: tf.convert_to_tensor(x)[first:stop] for name, x in batch.items()}

    def call(self, batch, training):
        sequences = {kind: tf.gather(self.table, batch[kind]) for kind in self.kinds}
        if self.by_field:
            sequences = {
                kind: dict(zip(FIELDS, tf.split(x, len(FIELDS), axis=-1), strict=True))
                for kind, x in sequences.items()
            }
        return self.denoiser(
            sequences,
            mask={kind: tf.sequence_mask(batch[f"{kind}_length"], L) for kind in sequences},
            sample_ids=batch["user"],
            sample_weight=batch["weight"],
            labels=batch["label"] if self.labelled else None,
            training=training,
        )

    def _train(self, batch, bounds):
        return self.strategy.run(self._step, args=(batch, bounds))

    def _step(self, batch, bounds):
        context = tf.distribute.get_replica_context()
        i = context.replica_id_in_sync_group
        with tf.GradientTape() as tape:
            out = self.call(self.slice(batch, bounds[i], bounds[i + 1]), training=True)
            loss = tf.add_n(self.denoiser.losses)
            scaled = loss / context.num_replicas_in_sync
            if self.has_host:
                scaled += 0.001 * tf.reduce_sum(tf.sin(3 * out["click"]))
        weights = [self.table, *self.denoiser.trainable_variables]
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(scaled, weights)]
        gradients = context.all_reduce("SUM", gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, gradients

    def run(self):
        """Everything that training leaves, arrays by name."""
        result = {}
        for number, (batch, bounds) in enumerate(batches()):
            batch = {name: tf.convert_to_tensor(x) for name, x in batch.items()}
            bounds = bounds if self.strategy.num_replicas_in_sync > 1 else bounds[[0, -1]]
            losses, gradients = self.train(batch, tf.constant(bounds))
            result[f"loss/{number}"] = np.array(self.strategy.experimental_local_results(losses))
            for i, gradient in enumerate(gradients):
                gradient = self.strategy.experimental_local_results(gradient)[0]
                result[f"gradient/{number}/{i}"] = gradient.numpy()
        variables = [self.table, *self.denoiser.trainable_variables]
        states = self.denoiser.non_trainable_variables
        for role, some in (("weight", variables), ("state", states)):
            for i, variable in enumerate(some):
                result[f"{role}/{i}"] = variable.numpy()
        result["step"] = self.denoiser.step.numpy()
        for metric in self.denoiser.metrics:
            result[f"metric/{metric.name}"] = np.array(metric.result())
        return result


def one_and_two(name, strategy):
    """The results on one device and on two."""
    one = Trainer(**SYSTEMS[name]).run()
    with strategy.scope():
        two = Trainer(**SYSTEMS[name])
    return {"one": one, "two": two.run()}


class Host(tf.keras.Model):
    """A ranker with a loss of its own, added before the plug-in is called."""

    def __init__(self):
        super().__init__()
        start = tf.keras.initializers.RandomNormal(seed=1)
        self.items = tf.keras.layers.Embedding(ITEMS, D, embeddings_initializer=start)
        self.denoiser = seqdenoise.SequenceDenoiser(
            units=8, hidden_units=16, weight=0.5, seed=3, name="denoiser"
        )
        start = tf.keras.initializers.GlorotUniform(seed=2)
        self.score = tf.keras.layers.Dense(1, "sigmoid", kernel_initializer=start)

    def call(self, batch, training=False):
        click = self.items(batch["click"])
        self.add_loss(0.01 * tf.reduce_sum(tf.convert_to_tensor(self.items.embeddings) ** 2))
        click = self.denoiser(
            {"click": click},
            mask={"click": tf.sequence_mask(batch["click_length"], L)},
            sample_ids=batch["user"],
            training=training,
        )["click"]
        return self.score(tf.reduce_mean(click, axis=1))


def host_and_rows():
    """A host, compiled, and batches of which the last is spread unevenly."""
    rng = np.random.default_rng(5)
    features = {
        "click": rng.integers(0, ITEMS, (31, L)),
        "click_length": rng.integers(0, L + 1, 31),
        "user": rng.integers(0, 12, 31),
    }
    labels = rng.integers(0, 2, (31, 1)).astype(np.float32)
    model = Host()
    # A sum: the mean that Keras takes over replicas of uneven size is not that over the rows.
    loss = tf.keras.losses.BinaryCrossentropy(reduction="sum")
    model.compile(tf.keras.optimizers.SGD(0.05), loss)
    # Built, optimizer too: no variable can be made once replicas run.
    model({name: x[:2] for name, x in features.items()})
    model.optimizer.build(model.trainable_variables)
    return model, tf.data.Dataset.from_tensor_slices((features, labels)).batch(12)


def left(model, history):
    """The weights and the metrics, arrays by name."""
    # Keras means sums over replicas in its own way.
    result = {f"history/{name}": np.array(x) for name, x in history.items() if name != "loss"}
    for i, variable in enumerate(model.weights):
        result[f"weight/{i}"] = variable.numpy()
    return result


def fitted():
    """What `fit` leaves."""
    model, dataset = host_and_rows()
    return left(model, model.fit(dataset, epochs=7, shuffle=False, verbose=0).history)


def local_losses(strategy):
    """The first losses with local negatives, and of one device that has the first rows alone."""
    batch, bounds = next(batches())
    batch = {name: tf.convert_to_tensor(x) for name, x in batch.items()}
    batch |= {name: tf.concat([x[:6], x[:6]], axis=0) for name, x in batch.items()}
    one = Trainer()
    with strategy.scope():
        two = Trainer(negatives="local")
    collectives = [
        op.name
        for op in two.train.get_concrete_function().graph.get_operations()
        if "Collective" in op.type
    ]
    return {
        "one": one.train(batch, tf.constant(bounds[:2]))[0].numpy(),
        "two": np.array(strategy.experimental_local_results(two.train(batch, bounds)[0])),
        "collectives": np.array(len(collectives)),
    }


def largest_differences(saved):
    """By kind of result the largest difference of two replicas to one device, and where it is."""
    found = {}
    for name, one in saved.items():
        system, where, kind = [*name.split("/"), ""][:3]
        if system == "local" or where != "one" or name.endswith("effective_rank") or not one.size:
            continue
        two = saved[name.replace("/one/", "/two/", 1)]
        found.setdefault(kind, []).append((float(np.nanmax(np.abs(two - one))), name))
    return {kind: max(of_kind) for kind, of_kind in found.items()}


if __name__ == "__main__":
    output, *names = sys.argv[1:]
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    # One for all: the collectives of a second strategy would take the first one's for theirs.
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    saved = {}
    for name in names or HERE:
        for where, result in one_and_two(name, mirrored).items():
            saved |= {f"{name}/{where}/{key}": value for key, value in result.items()}
    saved |= {f"fit/one/{key}": value for key, value in fitted().items()}
    with mirrored.scope():
        saved |= {f"fit/two/{key}": value for key, value in fitted().items()}
    saved |= {f"local/{key}": value for key, value in local_losses(mirrored).items()}
    np.savez(output, **saved)
    for kind, (difference, name) in largest_differences(saved).items():
        print(f"{kind}: {difference:.1e} at most, at {name}")
