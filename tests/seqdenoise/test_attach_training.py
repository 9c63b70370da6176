"""A model made by `denoise` in training: whatever the sequences and the step are like."""

import numpy as np
import plug_hosts
import pytest
import tensorflow as tf
from plug_hosts import Host, scores

from seqdenoise import SequenceDenoiser, denoise, denoisers_in, info_nce_loss

layers = tf.keras.layers
L, ITEMS = plug_hosts.L, plug_hosts.ITEMS


def tf_variables(model):
    return [v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables]


@pytest.mark.parametrize("name", ["shared_embedding", "pooled_sequences"])
@pytest.mark.parametrize("side_alone", [False, True])
def test_embedding_gradients_stay_sparse_and_reach_everything(name, side_alone):
    host = plug_hosts.made(name)
    plugged = denoise(host.model, host.taps, weight=0.5)
    with tf.GradientTape() as tape:
        logits = scores(plugged, host, training=True)
        loss = tf.add_n(plugged.losses)
        if not side_alone:
            loss += tf.reduce_mean((logits[:, 0] - plug_hosts.labels()) ** 2)
    gradients = tape.gradient(loss, tf_variables(plugged))
    reached = [gradient for gradient in gradients if gradient is not None]
    sparse = [gradient for gradient in reached if isinstance(gradient, tf.IndexedSlices)]
    assert len(sparse) == (1 if side_alone else 2)  # the items, and the users
    assert len(reached) == (5 if side_alone else len(gradients))  # the items and an encoder
    for gradient in reached:
        assert np.abs(tf.convert_to_tensor(gradient).numpy()).max() > 0


def test_a_partial_last_batch_costs_one_more_trace_at_most():
    traces = side_traces()
    assert 1 <= len(traces) <= 2


def test_several_steps_an_execution_cost_no_more_traces_than_the_host_itself():
    own = []
    traces = side_traces(own, steps_per_execution=2)
    assert len(traces) <= len(own)


def side_traces(own=None, **options):
    """How often the side loss is traced in two epochs of four batches of 8 rows and one of 4."""
    traces = []

    def side_loss(view_a, view_b, **call):
        traces.append(view_a.shape)
        return info_nce_loss(view_a, view_b, **call)

    def host_loss(labels, scores):
        if own is not None:
            own.append(scores.shape)
        return tf.reduce_mean((labels - scores) ** 2)

    host = plug_hosts.made("shared_embedding")
    plugged = denoise(host.model, host.taps, **host.call, loss=side_loss, name="d")
    plugged.compile("sgd", host_loss, **options)
    labels = plug_hosts.labels()[:, None]
    history = plugged.fit(host.features(), labels, batch_size=8, epochs=2, verbose=0).history
    assert denoisers_in(plugged)[0].step.numpy() == 10
    assert np.isfinite(history["d/click/loss"]).all()
    return traces


@pytest.mark.slow
def test_xla_gives_the_same_losses():
    def logged(**options):
        host = plug_hosts.made("pooled_sequences")
        plugged = denoise(host.model, host.taps, sample_ids="user", weight=0.5, name="d")
        plugged.compile("sgd", "mse", **options)
        weights = np.random.default_rng(1).uniform(0, 2, plug_hosts.ROWS)
        return plugged.fit(
            host.features(), plug_hosts.labels(), sample_weight=weights, batch_size=12, epochs=2,
            shuffle=False, verbose=0,
        ).history  # fmt: skip

    got, expected = logged(jit_compile=True), logged(run_eagerly=True)
    for key in ("loss", "d/click/loss"):
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-4)


def test_losses_and_weights_by_the_names_of_the_outputs():
    def logged(plug):
        host = plug_hosts.made("two_tasks")
        model = denoise(host.model, host.taps, weight=0.0) if plug else host.model
        model.compile(
            "sgd", {"click_rate": "mse", "sale_rate": "mae"}, run_eagerly=True,
            loss_weights={"click_rate": 2.0, "sale_rate": 1.0},
        )  # fmt: skip
        targets = dict.fromkeys(["click_rate", "sale_rate"], plug_hosts.labels())
        history = model.fit(host.features(), targets, epochs=2, shuffle=False, verbose=0).history
        return history, [w.numpy() for w in host.model.weights]

    (bare, bare_weights), (off, off_weights) = logged(plug=False), logged(plug=True)
    assert bare == off
    for one, other in zip(bare_weights, off_weights, strict=True):
        np.testing.assert_array_equal(one, other)


class TrainsItsOwnWay(tf.keras.Model):
    def train_step(self, data):
        self.steps_made = getattr(self, "steps_made", 0) + 1
        return super().train_step(data)


class MadeOtherwise(tf.keras.Model):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units


def test_a_host_of_a_class_of_its_own_keeps_it():
    host = plug_hosts.made("pooled_sequences")
    inputs, outputs = host.model.inputs, host.model.outputs
    own = TrainsItsOwnWay({x.name: x for x in inputs}, outputs[0])
    plugged = denoise(own, host.taps, weight=0.5)
    assert type(plugged) is TrainsItsOwnWay
    plugged.compile("sgd", "mse", run_eagerly=True)
    plugged.fit(host.features(), plug_hosts.labels(), batch_size=18, verbose=0)
    assert plugged.steps_made == 2
    assert denoisers_in(plugged)[0].step.numpy() == 2
    other = MadeOtherwise(3, inputs={x.name: x for x in inputs}, outputs=outputs[0])
    with pytest.raises(ValueError, match=r"made by `MadeOtherwise\(inputs=, outputs=, name=\)`"):
        denoise(other, host.taps)


class Total(layers.Layer):
    """The sum over the events, of dense and of ragged ones."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, events):
        return tf.reduce_sum(events, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, shape):
        return (shape[0], shape[2])


def one_sequence(events, inputs, **call):
    """A host of one sequence of events, plugged."""
    score = layers.Dense(1, name="score")(Total(name="total")(events))
    # How events are shared out depends on the length that they are padded to, dimensions do not.
    call = {"masking": "dimension", **call}
    return denoise(tf.keras.Model(inputs, score), {"click": events}, seed=3, **call)


def expected_loss(table, ids, mask, masking="dimension", **call):
    denoiser = SequenceDenoiser(seed=3, masking=masking)
    events = tf.gather(tf.convert_to_tensor(table), ids)
    denoiser({"click": events}, mask={"click": tf.constant(mask)}, training=True, **call)
    return float(denoiser.losses[0])


def training_loss(plugged, batch):
    plugged(batch, training=True)
    (loss,) = plugged.losses
    return float(loss)


IDS = plug_hosts.batch(8)["click"]
LENGTHS = plug_hosts.batch(8)["click_length"]


@pytest.mark.parametrize("kind", ["lengths", "column", "ids", "bool", "none"])
def test_masks_of_every_kind(kind):
    click = tf.keras.Input((None,), dtype="int32", name="click")
    shape, dtype, values = {
        "lengths": ((), "int32", LENGTHS),
        "column": ((1,), "int64", LENGTHS[:, None].astype(np.int64)),
        "ids": ((None,), "int32", IDS),
        "bool": ((L,), "bool", IDS != 0),
        "none": ((), "int32", LENGTHS),
    }[kind]
    given = tf.keras.Input(shape, dtype=dtype, name="given")
    table = layers.Embedding(ITEMS, 4, name="items")
    mask = None if kind == "none" else {"click": "given"}
    plugged = one_sequence(table(click), [click, given], mask=mask)
    got = training_loss(plugged, [tf.constant(IDS), tf.constant(values)])
    real = np.ones_like(IDS, bool) if kind == "none" else IDS != 0
    assert got == expected_loss(table.weights[0], IDS, real)


def test_the_length_may_differ_from_batch_to_batch():
    click = tf.keras.Input((None,), dtype="int32", name="click")
    table = layers.Embedding(ITEMS, 4, mask_zero=True, name="items")
    plugged = one_sequence(table(click), click)
    call = tf.function(lambda ids: (plugged(ids, training=True), plugged.losses[0])[1])
    losses = []
    for length in (L, L + 3, L + 7):  # padding alone is added
        wider = np.zeros((8, length), np.int32)
        wider[:, :L] = IDS
        denoisers_in(plugged)[0].step.assign(0)
        losses.append(float(call(tf.constant(wider))))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def ragged_input(**kwargs):
    try:
        return tf.keras.Input((None,), ragged=True, **kwargs)
    except TypeError:
        pytest.skip("this Keras has no ragged inputs")


def test_ragged_sequences_know_their_lengths():
    click = ragged_input(dtype="int32", name="click")
    table = layers.Embedding(ITEMS, 4, name="items")
    # Of events: pooled by dimension, zeros beyond the end would change a vector's length alone.
    plugged = one_sequence(table(click), click, masking="event")
    ragged = tf.RaggedTensor.from_tensor(tf.constant(IDS), lengths=LENGTHS)
    got = training_loss(plugged, ragged)
    expected = expected_loss(table.weights[0], IDS, IDS != 0, masking="event")
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "string"])
def test_ids_of_every_type(dtype):
    users = np.array([1, 2, 3, 1, 4, 5, 3, 6])
    words = np.array([f"item {i}" for i in range(1, ITEMS)])
    click = tf.keras.Input((L,), dtype=dtype, name="click")
    user = tf.keras.Input((1,), dtype=dtype, name="user")
    table = layers.Embedding(ITEMS, 4, mask_zero=True, name="items")
    ids = click
    if dtype == "string":
        ids = layers.StringLookup(vocabulary=words, mask_token="", num_oov_indices=0)(click)
    plugged = one_sequence(table(ids), [click, user], sample_ids="user")
    given = tf.constant(IDS, tf.as_dtype("int32" if dtype == "string" else dtype))
    if dtype == "string":
        given = tf.constant(np.array(["", *words])[IDS])
        rows = tf.constant(users.astype(str))[:, None]
    else:
        rows = tf.constant(users, dtype)[:, None]
    got = training_loss(plugged, [given, rows])
    expected = expected_loss(table.weights[0], IDS, IDS != 0, sample_ids=tf.constant(users))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    host = plug_hosts.made("shared_embedding")
    plugged = denoise(host.model, host.taps, **host.call)
    plug_hosts.assert_same_bits(scores(plugged, host), scores(host.model, host))
    plugged.compile("sgd", "mse", run_eagerly=True)
    history = plugged.fit(host.features(), plug_hosts.labels(), verbose=0).history
    assert np.isfinite(history["denoiser/click/loss"]).all()
    for x in plugged.trainable_variables:
        assert np.isfinite(x.numpy()).all()


def test_labels_and_a_candidate_reach_the_loss():
    inputs = {
        "click": tf.keras.Input((L,), dtype="int32", name="click"),
        "buy": tf.keras.Input((L,), dtype="int32", name="buy"),
        "item": tf.keras.Input((), dtype="int32", name="item"),
    }
    table = layers.Embedding(ITEMS, 4, mask_zero=True, name="items")
    events = {name: table(x) for name, x in inputs.items()}
    pooled = [layers.GlobalAveragePooling1D(name=f"mean_{n}")(events[n]) for n in ("click", "buy")]
    out = layers.Dense(1, name="out")(layers.Concatenate(name="all")([*pooled, events["item"]]))
    model = tf.keras.Model(inputs, out)
    rng = np.random.default_rng(0)
    batch = {"click": IDS, "buy": IDS[::-1], "item": rng.integers(1, 5, 8).astype(np.int32)}
    batch = {name: tf.constant(np.ascontiguousarray(x)) for name, x in batch.items()}
    sequences = {name: f"items/{name}" for name in ("click", "buy")}
    looked_up = {name: table(x) for name, x in batch.items()}
    masks = {name: batch[name] != 0 for name in sequences}
    for options, call in [
        ({"loss": "multi_positive"}, {"labels": "item"}),
        ({"alignment": "type", "trusted": "candidate"}, {"candidate": "items/item"}),
    ]:
        plugged = denoise(model, sequences, **call, **options, seed=2)
        denoiser = SequenceDenoiser(**options, seed=2)
        given = {"labels": batch["item"], "candidate": looked_up["item"]}
        denoiser(
            {name: looked_up[name] for name in sequences}, mask=masks, training=True,
            **{key: given[key] for key in call},
        )  # fmt: skip
        got = training_loss(plugged, batch)
        np.testing.assert_allclose(got, float(denoiser.losses[0]), rtol=1e-5)


def test_the_default_of_weight_zero_adds_nothing():
    host = Host(plug_hosts.made("sequential").model, {"click": "events"})
    plugged = denoise(host.model, host.taps, weight=0.0)
    scores(plugged, host, training=True)
    assert plugged.losses == []
