from collections import OrderedDict

import numpy as np
import oracles
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser, complementary_mask, info_nce_loss, view_seed

B, L, D = 8, 5, 6


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    sequences = {
        name: rng.normal(size=(B, L, D)).astype(np.float32) for name in ("click", "cart", "search")
    }
    lengths = {
        "click": [5, 3, 1, 0, 4, 2, 5, 1],
        "cart": [0, 1, 2, 5, 0, 3, 2, 1],
        "search": [2] * B,
    }
    masks = {name: np.arange(L) < np.array(count)[:, None] for name, count in lengths.items()}
    return sequences, masks


def tensors(tree):
    return tf.nest.map_structure(tf.constant, tree)


def side_loss(denoiser, sequences, **call):
    denoiser(sequences, training=True, **call)
    (loss,) = denoiser.losses
    return float(loss)


def test_returns_the_structure_it_was_given_unchanged():
    sequences, masks = inputs()
    fields = {"click": {"item": sequences["click"], "brand": sequences["cart"][:, :, :2]}}
    pooled = {"click": sequences["click"][:, 0]}
    for given, mask in ((sequences, masks), (fields, {"click": masks["click"]}), (pooled, None)):
        given = tensors(given)
        for training in (False, True):
            out = SequenceDenoiser()(given, mask=mask and tensors(mask), training=training)
            tf.nest.assert_same_structure(out, given)
            for one, other in zip(tf.nest.flatten(out), tf.nest.flatten(given), strict=True):
                np.testing.assert_array_equal(one.numpy(), other.numpy())
                assert one.dtype == other.dtype


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_leaves_the_sequences_alone_and_the_loss_finite(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    sequences, masks = inputs()
    denoiser = SequenceDenoiser(temperature=0.01)
    out = denoiser(tensors(sequences), mask=tensors(masks), training=True)
    assert out["click"].dtype == tf.float32
    (loss,) = denoiser.losses
    assert loss.dtype == tf.float32
    assert np.isfinite(float(loss))
    half = {name: tf.cast(x, tf.float16) for name, x in sequences.items()}
    assert SequenceDenoiser()(half, mask=tensors(masks), training=True)["cart"].dtype == tf.float16


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_symbolic_sequences_keep_their_dtype_and_order(dtype):
    given = {
        name: tf.keras.Input((L, D), dtype=dtype, name=f"given_{name}")
        for name in ("cart", "click")
    }
    out = SequenceDenoiser()(given)
    assert list(out) == list(given)
    for name in given:
        assert out[name].dtype == given[name].dtype
        assert tuple(out[name].shape) == (None, L, D)


def expected_share(denoiser, name, x, mask, encoder, step, **rows):
    """The undivided loss of one sequence and its number of candidates, by loops where possible."""
    kept = np.where(mask[:, :, None], x, 0).astype(np.float64)
    pooled = kept.sum(1) / np.maximum(mask.sum(1), 1)[:, None]
    half = complementary_mask(
        len(x), x.shape[2], seed=view_seed(denoiser.seed, name, tf.constant(step, tf.int64))
    ).numpy()
    w1, b1, w2, b2 = (w.astype(np.float64) for w in encoder.get_weights())
    views = [np.maximum(pooled * m @ w1 + b1, 0) @ w2 + b2 for m in (half, ~half)]
    valid = mask.any(1)
    return oracles.info_nce(
        *views, mask=valid, temperature=denoiser.temperature, **rows
    ), valid.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_added_loss_is_the_documented_formula(weighted):
    sequences, masks = inputs()
    ids = np.array([1, 2, 3, 1, 4, 5, 3, 6])
    weights = np.array([1, 2, 0, 1, 3, 1, 1, 0.5]) if weighted else None
    denoiser = SequenceDenoiser(weight=0.3, masking="dimension", temperature=0.2, seed=4)
    call = {"mask": tensors(masks), "sample_ids": tf.constant(ids)}
    if weighted:
        call["sample_weight"] = tf.constant(weights, tf.float32)
    got = side_loss(denoiser, tensors(sequences), **call)
    shares = []
    for name in ("click", "cart"):
        loss, candidates = expected_share(
            denoiser,
            name,
            sequences[name],
            masks[name],
            denoiser._encoders[name],
            0,
            ids=ids,
            weights=weights,
        )
        shares.append(loss / np.log(candidates))
    np.testing.assert_allclose(got, 0.3 * np.mean(shares), rtol=1e-5)


def test_ids_and_weights_may_have_a_last_dimension_of_one():
    sequences, masks = (tensors(x) for x in inputs())
    ids, weights = tf.constant([1, 2, 3, 1, 4, 5, 3, 6]), tf.constant([1.0, 2, 0, 1, 3, 1, 1, 1])
    flat = side_loss(
        SequenceDenoiser(), sequences, mask=masks, sample_ids=ids, sample_weight=weights
    )
    column = side_loss(
        SequenceDenoiser(),
        sequences,
        mask=masks,
        sample_ids=ids[:, None],
        sample_weight=weights[:, None],
    )
    assert flat == column


@pytest.mark.parametrize("off", [{"weight": 0.0}, {"training": False}, {"training": None}])
def test_adds_no_loss_when_off(off):
    sequences, masks = (tensors(x) for x in inputs())
    denoiser = SequenceDenoiser(weight=off.get("weight", 0.1))
    denoiser(sequences, mask=masks, training=off.get("training", True))
    assert denoiser.losses == []
    assert int(denoiser.step) == 0


def gradients(denoiser, sequences, masks, **call):
    watched = tensors(sequences)
    with tf.GradientTape() as tape:
        tape.watch(list(watched.values()))
        denoiser(watched, mask=tensors(masks), training=True, **call)
        (loss,) = denoiser.losses
    return float(loss), tape.gradient(loss, watched), tape


@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e38])
def test_padding_changes_neither_the_loss_nor_a_gradient(filler):
    sequences, masks = inputs()
    dirty = {name: np.where(masks[name][:, :, None], x, filler) for name, x in sequences.items()}
    dirty = {name: x.astype(np.float32) for name, x in dirty.items()}
    expected_loss, expected, _ = gradients(SequenceDenoiser(), sequences, masks)
    loss, got, _ = gradients(SequenceDenoiser(), dirty, masks)
    assert loss == expected_loss
    for name in ("click", "cart"):
        np.testing.assert_array_equal(got[name], expected[name])
        np.testing.assert_array_equal(got[name].numpy()[~masks[name]], 0)
        assert np.abs(got[name].numpy()[masks[name]]).max() > 0


def test_excluded_types_get_no_gradient_and_may_hold_anything():
    sequences, masks = inputs()
    sequences["search"][:] = np.nan
    loss, got, _ = gradients(SequenceDenoiser(), sequences, masks)
    assert np.isfinite(loss)
    assert got["search"] is None
    _, got, _ = gradients(SequenceDenoiser(exclude=("click", "search")), sequences, masks)
    assert got["click"] is None
    assert got["cart"] is not None


def test_an_empty_batch_of_histories_adds_exactly_nothing():
    sequences, masks = inputs()
    empty = {name: np.zeros_like(mask) for name, mask in masks.items()}
    loss, got, _ = gradients(SequenceDenoiser(), sequences, empty)
    assert loss == 0.0
    np.testing.assert_array_equal(got["click"], np.zeros([B, L, D]))


@pytest.mark.parametrize("rows", [1, 2])
def test_tiny_batches_are_finite(rows):
    sequences, masks = inputs()
    sequences = {name: x[:rows] for name, x in sequences.items()}
    masks = {name: x[:rows] for name, x in masks.items()}
    loss, got, _ = gradients(SequenceDenoiser(temperature=0.01), sequences, masks)
    assert np.isfinite(loss)
    assert np.isfinite(got["click"]).all()


def test_masks_depend_on_seed_step_and_name_alone():
    sequences, masks = (tensors(x) for x in inputs())

    def run(seed, order=("click", "cart", "search"), global_seed=0):
        tf.keras.utils.set_random_seed(global_seed)
        denoiser = SequenceDenoiser(seed=seed)
        chosen = {name: sequences[name] for name in order}
        chosen_masks = {name: masks[name] for name in order}
        return [side_loss(denoiser, chosen, mask=chosen_masks) for _ in range(3)]

    first = run(1)
    assert first == run(1, order=("search", "cart", "click"), global_seed=9)
    assert len(set(first)) == 3  # new masks at every step
    assert first != run(2)
    # A further type changes nothing for the others.
    click = run(1, order=("click",))
    both = run(1, order=("click", "search"))
    assert click == both


def test_sequences_of_one_type_share_an_encoder():
    sequences, _ = inputs()
    named = {"click_7d": sequences["click"], "click_30d": sequences["cart"]}
    denoiser = SequenceDenoiser(types={"click_7d": "click", "click_30d": "click"})
    denoiser(tensors(named), training=True)
    assert len(denoiser.trainable_variables) == 4
    named["click_30d"] = named["click_30d"][:, :, :3]
    with pytest.raises(ValueError, match=r"share an encoder.*Received: 3 and, for `click_7d`, 6"):
        SequenceDenoiser(types={"click_7d": "click", "click_30d": "click"})(tensors(named))


def test_warmup_is_linear():
    sequences, masks = (tensors(x) for x in inputs())
    plain, warm = SequenceDenoiser(seed=3), SequenceDenoiser(seed=3, warmup_steps=4)
    ratios = []
    for _ in range(6):
        full = side_loss(plain, sequences, mask=masks)
        ratios.append(side_loss(warm, sequences, mask=masks) / full)
    np.testing.assert_allclose(ratios, [0.25, 0.5, 0.75, 1, 1, 1], rtol=1e-6)


@tf.keras.utils.register_keras_serializable(package="test")
def squared_distance_loss(view_a, view_b, *, mask, ids, weights, temperature, scale=1.0):
    del ids, weights, temperature
    per_row = tf.reduce_sum((view_a - view_b) ** 2, axis=1)
    return scale * tf.reduce_mean(tf.where(mask, per_row, 0.0))


def test_any_callable_of_the_signature_is_a_loss():
    sequences, masks = (tensors(x) for x in inputs())
    one = SequenceDenoiser(loss=squared_distance_loss)
    two = SequenceDenoiser(loss=squared_distance_loss, loss_options={"scale": 2.0})
    again = SequenceDenoiser.from_config(two.get_config())
    values = [side_loss(layer, sequences, mask=masks) for layer in (one, two, again)]
    np.testing.assert_allclose(values, np.array([1, 2, 2]) * values[0], rtol=1e-6)


def test_loss_options_reach_the_loss():
    sequences, masks = (tensors(x) for x in inputs())
    plain = side_loss(SequenceDenoiser(), sequences, mask=masks)
    symmetric = SequenceDenoiser(loss_options={"symmetric": True})
    assert side_loss(symmetric, sequences, mask=masks) != plain


def test_few_negatives_are_few_candidates():
    click = tf.random.stateless_normal([12, 5, 8], seed=[0, 1])
    denoiser = SequenceDenoiser(weight=1.0, loss_options={"max_negatives": 3})
    denoiser({"click": click}, training=True)
    loss = next(metric for metric in denoiser.metrics if metric.name.endswith("click/loss"))
    expected = float(loss.result()) / np.log(4)  # three blocks of four rows
    np.testing.assert_allclose(denoiser.losses[0], expected, rtol=1e-6)


def test_config_round_trip():
    denoiser = SequenceDenoiser(
        weight=0.2, temperature=0.3, exclude=("a",), types={"b": "c"}, units=7, hidden_units=9,
        warmup_steps=5, seed=11, loss_options={"symmetric": True}, name="d",
    )  # fmt: skip
    again = SequenceDenoiser.from_config(denoiser.get_config())
    assert again.get_config() == denoiser.get_config()


def test_encode_gives_unit_vectors_of_the_unmasked_features():
    sequences, masks = inputs()
    denoiser = SequenceDenoiser(units=4)
    with pytest.raises(ValueError, match="call the denoiser on the sequences first"):
        denoiser.encode(tensors(sequences), tensors(masks))
    denoiser(tensors(sequences), mask=tensors(masks))
    got = denoiser.encode(tensors(sequences), tensors(masks))
    assert set(got) == {"click", "cart"}
    x, mask = sequences["click"], masks["click"]
    pooled = np.where(mask[:, :, None], x, 0).sum(1) / np.maximum(mask.sum(1), 1)[:, None]
    w1, b1, w2, b2 = denoiser._encoders["click"].get_weights()
    out = np.maximum(pooled @ w1 + b1, 0) @ w2 + b2
    real = mask.any(1)
    expected = out[real] / np.linalg.norm(out[real], axis=1, keepdims=True)
    np.testing.assert_allclose(got["click"].numpy()[real], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got["click"].numpy()[~real], 0)


def test_metrics_are_those_of_the_batch():
    sequences, masks = inputs()
    ids = np.array([1, 2, 3, 1, 4, 5, 3, 6])
    denoiser = SequenceDenoiser(masking="dimension", temperature=0.2, name="d")
    call = {"mask": tensors(masks), "sample_ids": tf.constant(ids), "training": True}
    denoiser(tensors(sequences), **call)
    got = {metric.name: float(metric.result()) for metric in denoiser.metrics}
    assert set(got) == {
        f"d/{name}/{metric}"
        for name in ("click", "cart")
        for metric in (
            "loss",
            "alignment",
            "uniformity",
            "effective_rank",
            "valid_rate",
            "false_negative_rate",
        )
    }
    encoder = denoiser._encoders["click"]
    loss, valid = expected_share(
        denoiser, "click", sequences["click"], masks["click"], encoder, 0, ids=ids
    )
    np.testing.assert_allclose(got["d/click/loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(got["d/click/valid_rate"], valid / B)
    # Valid rows: all but the fourth; of their 7 * 6 ordered pairs, (3, 7) and (7, 3) share an id.
    np.testing.assert_allclose(got["d/click/false_negative_rate"], 2 / 42, rtol=1e-5)
    assert 0 < got["d/click/alignment"] < 4
    assert got["d/click/uniformity"] < 0
    assert 1 < got["d/click/effective_rank"] <= 7


def test_bad_arguments_are_named():
    for arguments, message in [
        ({"weight": -1}, "`weight` must be at least 0. Received: -1"),
        ({"weight": float("nan")}, "`weight` must be at least 0. Received: nan"),
        ({"masking": "events"}, "`masking` must be one of .*dimension.*Received: 'events'"),
        ({"temperature": 0}, "`temperature` must be above 0. Received: 0"),
        ({"exclude": "search"}, "`exclude` must be a sequence of types. Received: 'search'"),
        ({"warmup_steps": -2}, "`warmup_steps` must be at least 0. Received: -2"),
        ({"loss": "infonce"}, "`loss` must be one of .*info_nce.*Received: 'infonce'"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(**arguments)


def test_bad_inputs_are_named():
    sequences, masks = (tensors(x) for x in inputs())
    for given, call, message in [
        (sequences["click"], {}, "must be a mapping"),
        ({"search": sequences["search"]}, {}, "nothing is left to denoise.*Received.*search"),
        ({"click": sequences["click"][0, 0]}, {}, r"Sequence `click` must have shape \[B, L, D\]"),
        (sequences, {"mask": {"clicks": masks["click"]}}, "`mask` has keys.*Received: .*clicks"),
        (
            sequences,
            {"mask": {"click": masks["click"][:, :3]}, "training": True},
            r"mask of `click` must be bool of shape \(8, 5\).*Received: bool of shape \(8, 3\)",
        ),
        (
            sequences,
            {"mask": {"click": tf.cast(masks["click"], tf.float32)}, "training": True},
            "mask of `click` must be bool.*Received: float32",
        ),
        (
            sequences,
            {"sample_ids": tf.zeros([B, 2], tf.int32), "training": True},
            r"`sample_ids` must have shape \[B\] or \[B, 1\]. Received: shape \(8, 2\)",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser()(given, **call)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager(jit_compile):
    sequences, masks = (tensors(x) for x in inputs())

    def run(denoiser):
        with tf.GradientTape() as tape:
            tape.watch(list(sequences.values()))
            denoiser(sequences, mask=masks, training=True)
            (loss,) = denoiser.losses
        return loss, tape.gradient(loss, sequences["click"])

    eager, compiled = SequenceDenoiser(), SequenceDenoiser()
    compiled(sequences, mask=masks)
    expected = run(eager)
    got = tf.function(lambda: run(compiled), jit_compile=jit_compile)()
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-7)
    assert int(compiled.step) == 1


def test_the_same_loss_function_by_name_and_by_hand():
    sequences, masks = (tensors(x) for x in inputs())
    by_name = side_loss(SequenceDenoiser(), sequences, mask=masks)
    assert side_loss(SequenceDenoiser(loss=info_nce_loss), sequences, mask=masks) == by_name


def test_by_default_events_are_shared_out_and_dimensions_of_what_is_pooled():
    events = tf.random.stateless_normal([6, 4, 8], [0, 1])
    pooled = tf.random.stateless_normal([6, 8], [0, 2])
    mask = {"click": tf.sequence_mask([4, 3, 2, 2, 4, 1], 4), "cart": tf.ones([6], tf.bool)}

    def added(denoiser):
        denoiser({"click": events, "cart": pooled}, mask=mask, training=True)
        return {metric.name: float(metric.result()) for metric in denoiser.metrics}

    default = SequenceDenoiser(name="d")
    figures = added(default)
    assert (default.masking_of("click"), default.masking_of("cart")) == ("event", "dimension")
    assert default.get_config()["masking"] is None
    assert figures["d/click/valid_rate"] == pytest.approx(5 / 6)  # one event cannot be shared out
    for name, masking in (("click", "event"), ("cart", "dimension")):
        other = SequenceDenoiser(name="d", masking=masking, exclude=({"click", "cart"} - {name}))
        of_one = {key: x for key, x in added(other).items() if key.startswith(f"d/{name}/")}
        assert of_one == {key: x for key, x in figures.items() if key in of_one}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_the_sequences_that_come_out_carry_their_own_masks(kind):
    item, brand, cart = (tf.random.stateless_normal([3, 4, 2], [0, n]) for n in range(3))
    click, of_cart = tf.sequence_mask([4, 2, 3], 4), tf.sequence_mask([1, 4, 2], 4)
    own = tf.keras.layers.Masking()(tf.where(of_cart[:, :, tf.newaxis], cart, 0.0))
    sequences = kind(
        [("own", own), ("click", kind([("item", item), ("brand", brand)])), ("a", cart)]
    )
    out = SequenceDenoiser()(sequences, mask={"click": click})
    assert getattr(out["a"], "_keras_mask", None) is None
    for field in ("item", "brand"):
        np.testing.assert_array_equal(out["click"][field]._keras_mask, click)
    np.testing.assert_array_equal(out["own"]._keras_mask, of_cart)
