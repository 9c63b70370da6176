"""Every system of the sources as a configuration of the one layer."""

import functools

import numpy as np
import oracles
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser, view_seed
from seqdenoise.masking import MASKINGS
from seqdenoise.objective import LOSSES, Objective

B, L, D = 12, 5, 4
INFORMATION = {
    kind: {
        one: {other: float(ord(one) * ord(other) % 7) for other in "ibc"} for one in "ibc"
    }
    for kind in ("click", "cart")
}  # fmt: skip

SYSTEMS = {
    "info_nce": {},
    "info_nce_symmetric": {"loss_options": {"symmetric": True}},
    "similarity_threshold": {"loss_options": {"max_similarity": 0.9}},
    "learned_temperature": {"learn_temperature": True, "temperature": 0.3},
    "simclr": {"loss": "nt_xent", "head_units": 6, "dropout": 0.2, "temperature": 0.5},
    "n_pair": {"loss": "n_pair"},
    "triplet": {"loss": "triplet"},
    "triplet_semi_hard": {"loss": "triplet", "loss_options": {"mining": "semi_hard"}},
    "triplet_labels": {"loss": "triplet"},
    "simple": {"loss": "simple"},
    "debiased": {"loss": "debiased", "loss_options": {"tau_plus": 0.05}, "num_positives": 3},
    "debiased_by_type": {
        "loss": "debiased",
        "loss_options": {"tau_plus": {"click": 0.02, "cart": 0.1}},
    },
    "hard_negative": {"loss": "hard_negative", "loss_options": {"beta": 0.5}},
    "multi_positive": {"loss": "multi_positive", "num_positives": 2},
    "multi_positive_labels": {"loss": "multi_positive", "loss_options": {"average": "outside"}},
    "moco": {"loss": "moco", "queue_size": 17, "momentum": 0.9},
    "moco_v2": {"loss": "moco", "queue_size": 17, "momentum": 0.9, "head_units": 6, "dropout": 0.1},
    "simcse": {"masking": "dropout", "dropout": 0.3},
    "rocl": {"loss": "rocl", "attack": {"epsilon": 0.05, "num_steps": 2}},
    "event_dimension": {"masking": "event_dimension"},
    "event": {"masking": "event"},
    "cl4srec": {"masking": "crop_mask_reorder"},
    "field": {"masking": "field"},
    "correlated_field": {"masking": "correlated_field", "mutual_information": INFORMATION},
}
every_system = pytest.mark.parametrize("system", SYSTEMS)


def test_every_loss_and_masking_is_among_the_systems():
    options = SYSTEMS.values()
    assert {one.get("loss", "info_nce") for one in options} == set(LOSSES)
    assert {one.get("masking", "dimension") for one in options} == set(MASKINGS)


def make(system, **options):
    system = {"masking": "dimension", **SYSTEMS[system]}
    return SequenceDenoiser(**system, units=8, hidden_units=16, seed=3, **options)


def batch(system, rows=B, seed=0, kinds=("click",)):
    """The arguments of a call: by field, with an empty row, duplicates of ids, and weights."""
    rng = np.random.default_rng(seed)
    sequences, masks = {}, {}
    for kind in kinds:
        events = {field: rng.normal(size=(rows, L, D)).astype(np.float32) for field in "ibc"}
        lengths = rng.integers(1, L + 1, rows)
        lengths[0] = 0
        masks[kind] = np.arange(L) < lengths[:, None]
        sequences[kind] = events
    call = {
        "sequences": sequences,
        "mask": masks,
        "sample_ids": rng.integers(0, 8, rows),
        "sample_weight": rng.uniform(0.5, 2.0, rows).astype(np.float32),
    }
    if system.endswith("_labels"):
        call["labels"] = rng.integers(-1, 2, rows)
    return tf.nest.map_structure(tf.constant, call)


def step(denoiser, call):
    """The side loss, and its gradients with respect to the events and the weights."""
    events = call["sequences"]
    with tf.GradientTape() as tape:
        tape.watch(tf.nest.flatten(events))
        denoiser(**call, training=True)
        (loss,) = denoiser.losses
    return loss, *tape.gradient(loss, [events, denoiser.trainable_variables])


@every_system
def test_gradient_reaches_all_real_events_and_all_weights(system):
    denoiser, call = make(system), batch(system)
    step(denoiser, call)  # a queue has no negatives before
    loss, events, weights = step(denoiser, call)
    assert np.isfinite(float(loss))
    assert len(weights) == (8 if denoiser.head_units else 4) + denoiser.learn_temperature
    for gradient in weights:
        assert np.isfinite(gradient.numpy()).all()
        assert np.abs(gradient.numpy()).max() > 0
    for kind, fields in events.items():
        mask = call["mask"][kind].numpy()
        used = mask & (mask.sum(1) >= 2)[:, None] if system == "event" else mask
        for gradient in fields.values():
            assert np.isfinite(gradient.numpy()).all()
            np.testing.assert_array_equal(gradient.numpy()[~mask], 0)
            # Dropout and mined triplets leave out some rows, not most.
            reached = (np.abs(gradient.numpy()).max(-1) > 0)[used].mean()
            assert reached > (0.2 if "triplet" in system else 0.8)


ORACLES = {
    name: getattr(oracles, {"simple": "simple_contrastive"}.get(name, name)) for name in LOSSES
}


def as_numpy(x):
    if not tf.is_tensor(x):
        return x
    assert x.dtype not in (tf.float16, tf.bfloat16)
    return x.numpy().astype(np.float64) if x.dtype.is_floating else x.numpy()


def recorded(denoiser):
    """Lets the layer's loss note what it is called with."""
    fn, calls = denoiser._objective.fn, []

    @functools.wraps(fn)
    def recording(*views, **arguments):
        given = {**denoiser._objective.defaults, **arguments}
        calls.append((*map(as_numpy, views), {name: as_numpy(x) for name, x in given.items()}))
        return fn(*views, **arguments)

    object.__setattr__(denoiser._objective, "fn", recording)
    return calls


@pytest.mark.parametrize("system", [s for s in SYSTEMS if "masking" not in SYSTEMS[s]])
@pytest.mark.parametrize("policy", ["float64", "float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("rows", [1, B])
def test_under_every_policy_the_loss_is_the_oracle_s_of_the_encoded_views(system, policy, rows):
    tf.keras.mixed_precision.set_global_policy(policy)
    denoiser, call = make(system, name="d"), batch(system, rows=rows)
    if policy == "float64":
        call["sequences"] = tf.nest.map_structure(
            lambda x: tf.cast(x, tf.float64), call["sequences"]
        )
    calls = recorded(denoiser)
    for _ in range(2):  # a queue is empty at first
        for metric in denoiser.metrics:
            metric.reset_state()
        denoiser(**call, training=True)
    view_a, view_b, arguments = calls[-1]
    expected = ORACLES[denoiser.loss](view_a, view_b, **arguments)
    (got,) = [float(m.result()) for m in denoiser.metrics if m.name == "d/click/loss"]
    temperature = arguments.get("temperature", 1.0)
    np.testing.assert_allclose(got, expected, rtol=2e-6 / temperature, atol=1e-6)


@every_system
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager_over_several_steps(system, jit_compile):
    eager, compiled = make(system), make(system)
    compiled(**batch(system))
    run = tf.function(lambda call: step(compiled, call)[:2], jit_compile=jit_compile)
    for seed in range(3):
        call = batch(system, seed=seed)
        expected, got = step(eager, call)[:2], run(call)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4)
        for one, other in zip(tf.nest.flatten(got[1]), tf.nest.flatten(expected[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert run.experimental_get_tracing_count() == 1
    for one, other in zip(compiled.weights, eager.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


@every_system
def test_padding_changes_nothing(system):
    call = batch(system)
    dirty = dict(call)
    dirty["sequences"] = {
        kind: {
            field: tf.where(call["mask"][kind][:, :, None], x, np.nan)
            for field, x in fields.items()
        }
        for kind, fields in call["sequences"].items()
    }
    clean, other = step(make(system), call), step(make(system), dirty)
    for one, two in zip(tf.nest.flatten(clean), tf.nest.flatten(other), strict=True):
        np.testing.assert_array_equal(one, two)


@every_system
def test_without_events_nothing_is_added(system):
    call = batch(system)
    call["mask"] = tf.nest.map_structure(tf.zeros_like, call["mask"])
    for _ in range(2):
        loss, events, weights = step(make(system), call)
        assert float(loss) == 0.0
        for gradient in tf.nest.flatten([events, weights]):
            np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


@every_system
@pytest.mark.parametrize("rows", [1, 2])
def test_tiny_batches_are_finite(system, rows):
    denoiser = make(system)
    for seed in range(2):
        call = batch(system, rows=3, seed=seed)
        call = tf.nest.map_structure(lambda x: x[-rows:], call)
        for x in tf.nest.flatten(step(denoiser, call)):
            assert np.isfinite(x.numpy()).all()


# The mean over semi-hard triplets stays near half the margin: those that are solved leave it.
@pytest.mark.parametrize("system", sorted(SYSTEMS.keys() - {"triplet_semi_hard"}))
def test_the_side_loss_alone_brings_itself_down(system):
    rng = np.random.default_rng(0)
    table = tf.Variable(rng.normal(size=(30, D)).astype(np.float32))
    ids = {"click": {f: rng.integers(0, 30, (64, L)) for f in "ibc"}}
    call = {"labels": tf.constant(rng.integers(0, 4, 64))} if system.endswith("_labels") else {}
    denoiser = make(system, weight=1.0)
    optimizer = tf.keras.optimizers.Adam(0.01)

    def lookup():
        return tf.nest.map_structure(lambda rows: tf.gather(table, rows), ids)

    denoiser(lookup(), **call)
    variables = [table, *denoiser.trainable_variables]
    optimizer.build(variables)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            denoiser(lookup(), **call, training=True)
            (loss,) = denoiser.losses
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    losses = [float(train()) for _ in range(120)]
    # Not from the first step: a queue is empty there.
    assert np.mean(losses[-20:]) < np.mean(losses[5:15]) - 0.03


def keras_model(system):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    inputs = {
        "click": {f: tf.keras.Input((L,), dtype="int32", name=f"click_{f}") for f in "ibc"},
    }
    table = tf.keras.layers.Embedding(20, D, name="table")
    sequences = tf.nest.map_structure(table, inputs)
    sequences = make(system, name="denoiser", weight=0.5)(sequences)
    pooled = [
        tf.keras.layers.GlobalAveragePooling1D(name=f"mean_{i}")(x)
        for i, x in enumerate(tf.nest.flatten(sequences))
    ]
    out = tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Concatenate(name="all")(pooled))
    model = tf.keras.Model(inputs, out)
    model.compile(tf.keras.optimizers.Adam(0.01), "mse")
    return model


@pytest.mark.parametrize("system", ["moco_v2", "learned_temperature", "debiased_by_type"])
def test_training_resumed_from_a_checkpoint_is_uninterrupted_training(system, tmp_path):
    rng = np.random.default_rng(0)
    features = {"click": {f: rng.integers(0, 20, (24, L)) for f in "ibc"}}
    labels = rng.normal(size=(24, 1))

    def fit(model, start, stop):
        for first in range(start, stop, 8):
            rows = tf.nest.map_structure(lambda x, first=first: x[first : first + 8], features)
            model.train_on_batch(rows, labels[first : first + 8])

    whole, resumed = keras_model(system), keras_model(system)
    fit(whole, 0, 24)
    fit(resumed, 0, 16)
    checkpoint = tf.train.Checkpoint(model=resumed, optimizer=resumed.optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    again = keras_model(system)
    fit(again, 0, 8)  # makes the optimizer's variables; all are overwritten
    tf.train.Checkpoint(model=again, optimizer=again.optimizer).read(path).assert_consumed()
    assert int(again.get_layer("denoiser").step) == 2
    fit(again, 16, 24)
    assert len(whole.weights) == len(again.weights)
    for one, other in zip(again.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@every_system
def test_config_round_trip_gives_the_same_loss(system):
    denoiser = make(system)
    again = SequenceDenoiser.from_config(denoiser.get_config())
    assert again.get_config() == denoiser.get_config()
    call = batch(system)
    for _ in range(2 if "moco" in system else 1):
        assert float(step(again, call)[0]) == float(step(denoiser, call)[0])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("system", ["moco", "moco_v2"])
def test_key_encoders_follow_and_the_queue_holds_their_keys(system, policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    denoiser = make(system)
    call = batch(system)
    denoiser(**call)
    start = [w.numpy() for w in denoiser._key_encoders["click"].weights]
    for key, query in zip(start, denoiser._encoders["click"].get_weights(), strict=True):
        np.testing.assert_array_equal(key, query)
    optimizer = tf.keras.optimizers.SGD(0.5)
    seen = []
    for seed in range(4):
        call = batch(system, seed=seed)
        seen.append(denoiser._encoders["click"].get_weights())
        gradients = step(denoiser, call)[2]
        optimizer.apply_gradients(zip(gradients, denoiser.trainable_variables, strict=True))
    for index, key in enumerate(denoiser._key_encoders["click"].get_weights()):
        expected = 0.9**4 * start[index] + sum(
            0.1 * 0.9 ** (3 - i) * weights[index].astype(np.float64)
            for i, weights in enumerate(seen)
        )
        np.testing.assert_allclose(key, expected, rtol=1e-6, atol=1e-6)
    queue = denoiser._queues["click"]
    valid = [batch(system, seed=seed)["mask"]["click"].numpy().any(1).sum() for seed in range(4)]
    assert int(queue.inserted) == sum(valid) > 2 * 17
    np.testing.assert_allclose(np.linalg.norm(queue.vectors.numpy(), axis=1), 1, rtol=1e-6)


def test_moco_contrasts_with_keys_of_the_slow_encoder_and_queues_those():
    denoiser, call = make("moco"), batch("moco")
    denoiser(**call)
    encoder, keys = denoiser._encoders["click"], denoiser._key_encoders["click"]
    encoder.set_weights([-w + 0.1 for w in encoder.get_weights()])  # far from its twin
    calls = recorded(denoiser)
    denoiser(**call, training=True)
    view_a, view_b, arguments = calls[0]
    seed = view_seed(denoiser.seed, "click", tf.constant(0, tf.int64))
    mask = call["mask"]["click"]
    features = denoiser._masking.views("click", call["sequences"]["click"], mask, seed)
    np.testing.assert_allclose(view_a, encoder(features[0]), atol=1e-6)
    np.testing.assert_allclose(view_b, keys(features[1]), atol=1e-6)
    valid = arguments["mask"]
    queued = denoiser._queues["click"].vectors.numpy()[: valid.sum()]
    np.testing.assert_allclose(queued, view_b[valid], atol=1e-6)
    assert np.abs(view_a[valid] - view_b[valid]).max() > 0.1


def test_rocl_hands_over_an_attacked_view_that_the_loss_finds_worse():
    denoiser, call = make("rocl"), batch("rocl")
    calls = recorded(denoiser)
    denoiser(**call, training=True)
    view_a, view_b, arguments = calls[0]
    options = {name: arguments[name] for name in ("mask", "ids", "weights", "temperature")}
    clean = oracles.info_nce(view_a, view_b, **options)
    assert oracles.info_nce(arguments["adversarial"], view_b, **options) > clean + 1e-3


@pytest.mark.parametrize("system", ["triplet_labels", "multi_positive_labels"])
def test_labels_reach_the_loss(system):
    denoiser, call = make(system), batch(system)
    calls = recorded(denoiser)
    denoiser(**call, training=True)
    np.testing.assert_array_equal(calls[0][2]["labels"], call["labels"])


def test_the_first_step_of_moco_has_no_negatives():
    denoiser, call = make("moco"), batch("moco")
    assert float(step(denoiser, call)[0]) == 0.0
    assert float(step(denoiser, call)[0]) > 0.0


def test_string_ids_reach_the_queue():
    call = batch("moco")
    words = dict(call, sample_ids=tf.strings.as_string(call["sample_ids"]))
    numbers, strings = make("moco"), make("moco")
    for _ in range(2):
        assert float(step(numbers, call)[0]) == float(step(strings, words)[0])
    assert len(set(strings._queues["click"].ids.numpy())) > 5


def test_encode_is_the_representation_before_the_head():
    denoiser, call = make("simclr"), batch("simclr")
    denoiser(**call)
    got = denoiser.encode(call["sequences"], call["mask"])
    assert got["click"].shape == (B, 8)


def test_types_may_have_options_of_their_own():
    call = batch("debiased_by_type", kinds=("click", "cart"))

    def click_loss(tau_plus):
        denoiser = SequenceDenoiser(loss="debiased", loss_options={"tau_plus": tau_plus}, name="d")
        denoiser(**call, training=True)
        return {metric.name: float(metric.result()) for metric in denoiser.metrics}

    both = click_loss({"click": 0.02, "cart": 0.1})
    assert both["d/click/loss"] == click_loss(0.02)["d/click/loss"]
    assert both["d/cart/loss"] == click_loss(0.1)["d/cart/loss"]
    assert both["d/click/loss"] != click_loss(0.1)["d/click/loss"]


def test_losses_that_do_not_grow_with_the_batch_are_not_divided():
    for loss in ("simple", "triplet"):
        denoiser = SequenceDenoiser(loss=loss, weight=1.0, name="d")
        got = float(step(denoiser, batch("simple"))[0])
        (logged,) = [m.result() for m in denoiser.metrics if m.name == "d/click/loss"]
        np.testing.assert_allclose(got, logged, rtol=1e-6)


def test_what_a_system_reports():
    # Views that are close, at a small temperature: many estimates are at their floor.
    debiased = SequenceDenoiser(loss="debiased", masking="dropout", temperature=0.05, name="d")
    debiased(**batch("debiased"), training=True)
    got = {metric.name: float(metric.result()) for metric in debiased.metrics}
    assert 0 < got["d/click/clamped_rate"] <= 1
    # With a limit below every cosine, all pairs are dropped.
    for limit, low, high in ((-0.999, 1.0, 1.0), (0.3, 0.01, 0.9), (0.999, 0.0, 0.0)):
        call = batch("similarity_threshold")
        del call["sample_ids"]
        strict = SequenceDenoiser(loss_options={"max_similarity": limit}, name="d")
        strict(**call, training=True)
        got = {metric.name: float(metric.result()) for metric in strict.metrics}
        assert low <= got["d/click/false_negative_rate"] <= high
    learned = make("learned_temperature", name="d")
    learned(**batch("learned_temperature"), training=True)
    got = {metric.name: float(metric.result()) for metric in learned.metrics}
    np.testing.assert_allclose(got["d/click/temperature"], 0.3, rtol=1e-5)


def test_arguments_that_do_not_go_together_are_named():
    for arguments, message in [
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\). Received: 1.0"),
        (
            {"masking": "dropout", "dropout": 0.0},
            "`dropout` must be above 0 with masking 'dropout'",
        ),
        ({"masking": "correlated_field"}, "`mutual_information` must be given with masking"),
        ({"mutual_information": INFORMATION}, "and only then. Received: masking None"),
        ({"num_positives": 0}, "`num_positives` must be at least 1. Received: 0"),
        ({"num_positives": 2}, "must be 1 with loss 'info_nce', which takes one. Received: 2"),
        ({"loss": "triplet", "temperature": 0.1}, "Loss 'triplet' has no temperature.*0.1"),
        ({"loss": "n_pair", "learn_temperature": True}, "Loss 'n_pair' has no temperature"),
        ({"learn_temperature": True, "temperature": 2.0}, "between 0.01 and 1.0. Received: 2.0"),
        ({"queue_size": 9}, "must be None with a loss that takes no queue. Received: .*9"),
        ({"momentum": 0.9}, "must be None with a loss that takes no queue. Received: .*0.9"),
        ({"loss": "moco", "momentum": 1.1}, r"`momentum` must be in \[0, 1\]. Received: 1.1"),
        ({"loss": "moco", "queue_size": 0}, "`queue_size` must be at least 1. Received: 0"),
        ({"attack": {"epsilon": 1}}, "`attack` must be None with a loss that takes no adversarial"),
        ({"loss": "rocl", "attack": {"eps": 1}}, "`attack` must have `epsilon`.*Received: .*eps"),
        ({"loss": "rocl", "attack": {"num_steps": 1}}, "`attack` must have `epsilon`"),
        ({"loss_options": {"tau_plus": 0.1}}, "may hold .*symmetric.*Received: 'tau_plus'"),
        ({"loss_options": {"weights": 1}}, "may hold .*symmetric.*Received: 'weights'"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(**arguments)


def test_sequences_that_cannot_be_masked_so_are_named():
    events = tf.ones([3, 5, 4])
    for masking, sequence, message in [
        ("field", events, r"mapping from at least 2 fields to tensors. Received: one tensor"),
        ("field", {"i": events}, r"at least 2 fields to tensors. Received: \['i'\]"),
        ("event", events[:, 0], r"needs the events of sequence `click`, shape \[B, L, D\]"),
        ("event_dimension", {"i": events[:, 0]}, r"needs the events of sequence `click`"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(masking=masking)({"click": sequence})
    with pytest.raises(
        ValueError, match=r"'tau_plus'\]` must have type `click`. Received: \['cart"
    ):
        SequenceDenoiser(loss="debiased", loss_options={"tau_plus": {"cart": 0.1}})(
            {"click": events}
        )
    with pytest.raises(ValueError, match=r"must have type `click`. Received: \['cart'\]"):
        SequenceDenoiser(
            masking="correlated_field", mutual_information={"cart": INFORMATION["cart"]}
        )({"click": dict.fromkeys("ibc", events)})
    with pytest.raises(ValueError, match=r"'triplet' do. Received: labels with loss 'info_nce'"):
        SequenceDenoiser()({"click": events}, labels=tf.constant([1, 2, 3]))


def test_chance_level_is_the_logarithm_of_the_number_of_candidates():
    rows, queued = tf.constant(9.0), tf.constant(100.0)
    for loss, expected in (("info_nce", 9), ("debiased", 9), ("nt_xent", 17), ("triplet", np.e)):
        np.testing.assert_allclose(Objective(loss, {}).chance_level(rows), np.log(expected))
    np.testing.assert_allclose(Objective("moco", {}).chance_level(rows, queued), np.log(101))
    np.testing.assert_allclose(Objective("info_nce", {}).chance_level(rows * 0), np.log(2))
