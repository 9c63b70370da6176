"""Alignment, keep scores and the gate as options of the plug-in."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import transport_oracles as oracles

from seqdenoise import SequenceDenoiser

B, L, D = 10, 5, 4
FIELDS = {"item": 3, "brand": 1}
# Enough iterations to compare with the oracle's converged plan.
SOLVED = {"epsilon": 0.2, "relaxation": 0.3, "num_iterations": 200}
OPTIONS = {
    "view": {"alignment": "view"},
    "type": {"alignment": "type", "trusted": "buy"},
    "types": {"alignment": "type", "trusted": ("buy", "search")},
    "candidate": {"alignment": "type", "trusted": "candidate"},
    "gate": {"trusted": "buy", "gate": True},
    "gate_and_type": {"alignment": "type", "trusted": "buy", "gate": True},
}
every_option = pytest.mark.parametrize("option", OPTIONS)
judging = pytest.mark.parametrize("option", [name for name in OPTIONS if name != "view"])


def make(option, **options):
    return SequenceDenoiser(
        **{**OPTIONS[option], "units": 8, "hidden_units": 16, "seed": 3, "name": "d", **options}
    )


def batch(option, rows=B, seed=0):
    """Arguments of a call by field: rows without noisy, without trusted and without any events."""
    rng = np.random.default_rng(seed)
    sequences, masks = {}, {}
    for kind, length in (("click", L), ("cart", L - 1), ("buy", L - 2), ("search", L)):
        lengths = rng.integers(1, length + 1, rows)
        lengths[0] = 0
        lengths[1 + (kind == "buy")] = 0
        masks[kind] = np.arange(length) < lengths[:, None]
        sequences[kind] = {
            field: rng.normal(size=(rows, length, size)).astype(np.float32)
            for field, size in FIELDS.items()
        }
    call = {
        "sequences": sequences,
        "mask": masks,
        "sample_weight": rng.uniform(0.5, 2.0, rows).astype(np.float32),
    }
    if option == "candidate":
        call["candidate"] = {
            field: rng.normal(size=(rows, size)).astype(np.float32)
            for field, size in FIELDS.items()
        }
    return tf.nest.map_structure(tf.constant, call)


def scores_of(denoiser, call):
    denoiser(**call)
    return denoiser.keep_scores(call["sequences"], call["mask"], candidate=call.get("candidate"))


def step(denoiser, call):
    """The side loss, and its gradients with respect to the events and the weights."""
    events = call["sequences"]
    with tf.GradientTape() as tape:
        tape.watch(tf.nest.flatten(events))
        denoiser(**call, training=True)
        (loss,) = denoiser.losses
    return loss, *tape.gradient(loss, [events, denoiser.trainable_variables])


def vectors(sequence):
    return np.concatenate([sequence[field].numpy() for field in sorted(sequence)], axis=-1)


def row_problems(call, name, trusted):
    """By row with events on both sides: the events, the trusted ones, and the converged plan."""
    sources = [(vectors(call["sequences"][t]), call["mask"][t].numpy()) for t in trusted]
    if "candidate" in call:
        sources = [(vectors(call["candidate"])[:, None], np.ones((B, 1), bool))]
    events, mask = vectors(call["sequences"][name]), call["mask"][name].numpy()
    for row in range(B):
        x = events[row, mask[row]].astype(np.float64)
        y = np.concatenate([source[row, real[row]] for source, real in sources]).astype(np.float64)
        if len(x) and len(y):
            cost = oracles.cosine_cost(x, y)
            a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
            solved = oracles.solve(cost, a, b, SOLVED["epsilon"], SOLVED["relaxation"], 1e-8)
            yield row, cost, solved[0]


@pytest.mark.parametrize(("option", "default"), [("view", 0.1), ("type", 1.0)])
def test_the_default_weight_is_that_of_the_alignment(option, default):
    call = batch(option)
    explicit = step(make(option, alignment_weight=default), call)[0]
    assert float(step(make(option), call)[0]) == float(explicit)


def metrics_of(denoiser):
    return {metric.name: float(metric.result()) for metric in denoiser.metrics}


@pytest.mark.parametrize(
    ("option", "trusted", "noisy"),
    [
        ("type", ["buy"], ["cart", "click"]),
        ("types", ["buy", "search"], ["cart", "click"]),
        ("candidate", [], ["buy", "cart", "click"]),
    ],
)
def test_type_alignment_adds_the_mean_cost_of_rows_with_events_on_both_sides(
    option, trusted, noisy
):
    call = batch(option)
    weights = call["sample_weight"].numpy().astype(np.float64)
    expected = {}
    for name in noisy:
        solved = list(row_problems(call, name, trusted))
        assert 0 < len(solved) < B  # some row has nothing to judge, or to judge by
        rows = [row for row, _, _ in solved]
        costs = [(plan * cost).sum() for _, cost, plan in solved]
        expected[name] = np.average(costs, weights=weights[rows])
        mass = np.mean([plan.sum() for _, _, plan in solved])
        denoiser = make(option, transport=SOLVED)
        step(denoiser, call)
        got = metrics_of(denoiser)
        np.testing.assert_allclose(got[f"d/{name}/transport_cost"], expected[name], rtol=1e-5)
        np.testing.assert_allclose(got[f"d/{name}/transported_mass"], mass, rtol=1e-5)
        np.testing.assert_allclose(got[f"d/{name}/judged_rate"], len(rows) / B, rtol=1e-6)
        assert 0 <= got[f"d/{name}/marginal_error"] < 1e-4
    with_it = make(option, transport=SOLVED, weight=0.5, alignment_weight=3.0)
    without = SequenceDenoiser(units=8, hidden_units=16, seed=3, weight=0.5)
    plain = {name: x for name, x in call.items() if name != "candidate"}
    added = step(with_it, call)[0] - step(without, plain)[0]
    np.testing.assert_allclose(added, 0.5 * 3.0 * np.mean([*expected.values()]), rtol=1e-4)


def test_view_alignment_adds_the_mean_cost_over_the_denoised_sequences():
    call = batch("view")
    solved = {"epsilon": 0.2, "num_iterations": 300}
    with_it, without = (
        make("view", transport=solved, weight=0.5, alignment_weight=x) for x in (3.0, 0.0)
    )
    seen = []
    solve = with_it._aligner.view_transport

    def recording(*views, mask, weights):
        seen.append((*[x.numpy().astype(float) for x in views], mask.numpy(), weights.numpy()))
        return solve(*views, mask=mask, weights=weights)

    object.__setattr__(with_it._aligner, "view_transport", recording)
    added = step(with_it, call)[0] - step(without, call)[0]
    costs = []
    for view_a, view_b, mask, weights in seen:
        cost = oracles.cosine_cost(view_a[mask], view_b[mask])
        mass = weights[mask].astype(float) / weights[mask].astype(float).sum()
        costs.append((oracles.solve(cost, mass, mass, 0.2, tolerance=1e-8)[0] * cost).sum())
    assert len(costs) == 3
    np.testing.assert_allclose(added, 0.5 * 3.0 * np.mean(costs), rtol=1e-4)
    got = metrics_of(with_it)
    logged = [got[f"d/{name}/transport_cost"] for name in ("buy", "cart", "click")]
    np.testing.assert_allclose(logged, costs, rtol=1e-4)


@judging
def test_one_look_is_the_relative_row_mass_of_the_relaxed_plan(option):
    trusted = {"types": ["buy", "search"], "candidate": []}.get(option, ["buy"])
    call = batch(option)
    scores = scores_of(make(option, transport={**SOLVED, "looks": 1}), call)
    assert set(scores) == {"cart", "click"} | ({"buy"} if option == "candidate" else set())
    for name, got in scores.items():
        mask = call["mask"][name].numpy()
        expected = mask.astype(float)  # rows without trusted events keep everything
        for row, _, plan in row_problems(call, name, trusted):
            expected[row, mask[row]] = np.minimum(plan.sum(1) * len(plan), 1)
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_two_looks_are_the_default_and_hear_other_noisy_events():
    call = batch("type")
    one, two = (
        scores_of(make("type", transport={"looks": looks}), call)["click"].numpy()
        for looks in (1, 2)
    )
    np.testing.assert_array_equal(scores_of(make("type"), call)["click"], two)
    assert np.abs(one - two).max() > 0.05


@every_option
def test_padding_changes_nothing(option):
    call = batch(option)
    dirty = dict(call)
    dirty["sequences"] = {
        kind: {
            field: tf.where(call["mask"][kind][:, :, None], x, np.nan)
            for field, x in fields.items()
        }
        for kind, fields in call["sequences"].items()
    }
    clean, other = step(make(option), call), step(make(option), dirty)
    for one, two in zip(tf.nest.flatten(clean), tf.nest.flatten(other), strict=True):
        if one is not None:  # search is excluded
            np.testing.assert_array_equal(one, two)
    if option != "view":
        scores = zip(*(scores_of(make(option), c).values() for c in (call, dirty)), strict=True)
        for one, two in scores:
            np.testing.assert_array_equal(one, two)


@every_option
@pytest.mark.parametrize("empty", [("click", "cart"), ("buy",), ("click", "cart", "buy", "search")])
def test_empty_sequences_on_either_side_are_finite(option, empty):
    call = batch(option)
    call["mask"] = {
        name: tf.zeros_like(mask) if name in empty else mask for name, mask in call["mask"].items()
    }
    for x in tf.nest.flatten(step(make(option), call)):
        assert x is None or np.isfinite(x.numpy()).all()
    if option in ("type", "gate") and "buy" in empty:
        for name, scores in scores_of(make(option), call).items():
            np.testing.assert_array_equal(scores, call["mask"][name].numpy().astype(float))


@judging
def test_no_gradient_flows_through_the_scores(option):
    call = batch(option)
    denoiser = make(option, weight=0.0)
    denoiser(**call)
    with tf.GradientTape() as tape:
        tape.watch(tf.nest.flatten(call["sequences"]))
        scores = denoiser.keep_scores(
            call["sequences"], call["mask"], candidate=call.get("candidate")
        )
        total = tf.add_n([tf.reduce_sum(x) for x in scores.values()])
    assert all(g is None for g in tf.nest.flatten(tape.gradient(total, call["sequences"])))


def test_type_alignment_pulls_on_noisy_and_trusted_events():
    call = batch("types")
    only_type, without = (step(make("types", alignment_weight=x), call)[1] for x in (1.0, 0.0))
    for kind in ("click", "cart", "buy", "search"):
        for field in FIELDS:
            got, base = only_type[kind][field], without[kind][field]
            if kind == "search":  # trusted, though excluded from the contrastive loss
                assert base is None or not np.abs(base.numpy()).any()
                base = tf.zeros_like(got)
            assert np.abs(got.numpy() - base.numpy()).max() > 1e-4


@pytest.mark.parametrize("option", ["gate", "gate_and_type"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_the_gate_multiplies_noisy_events_alone(option, training, weight):
    call = batch(option)
    denoiser = make(option, weight=weight)
    scores = scores_of(denoiser, call)
    out = denoiser(**call, training=training)
    assert len(denoiser.losses) == (training and weight > 0)
    for kind, fields in call["sequences"].items():
        factor = np.ones(call["mask"][kind].shape)
        if kind in ("click", "cart"):
            factor = np.where(call["mask"][kind], scores[kind], 1.0)
            assert factor.min() < 0.5
        for field, x in fields.items():
            np.testing.assert_allclose(out[kind][field], x * factor[..., None], rtol=1e-6)


@every_option
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager(option, jit_compile):
    if jit_compile and option not in ("view", "gate_and_type"):
        pytest.skip("these two compile all that the others do, and compilation is slow")
    eager, compiled = make(option), make(option)
    compiled(**batch(option))

    @tf.function(jit_compile=jit_compile)
    def run(call):
        out = compiled(**call, training=True)
        return out, compiled.losses[0]

    for seed in range(2):
        call = batch(option, seed=seed)
        expected, got = eager(**call, training=True), run(call)
        np.testing.assert_allclose(got[1], eager.losses[0], rtol=1e-4)
        for one, other in zip(tf.nest.flatten(got[0]), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert run.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_scores_and_gate_of_other_dtypes(dtype):
    call = batch("gate")
    sequences = tf.nest.map_structure(lambda x: tf.cast(x, dtype), call["sequences"])
    cast = {**call, "sequences": sequences}
    rounded = tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), cast["sequences"])
    expected = scores_of(make("gate"), {**call, "sequences": rounded})
    denoiser = make("gate")
    for name, got in scores_of(denoiser, cast).items():
        np.testing.assert_allclose(got, expected[name], atol=1e-5)
    out = denoiser(**cast, training=True)
    assert {x.dtype for x in tf.nest.flatten(out)} == {dtype}
    assert np.isfinite(float(denoiser.losses[0]))


@every_option
def test_config_round_trip_gives_the_same_loss(option):
    denoiser = make(option, transport=None if option == "view" else {"looks": 1, "epsilon": 0.2})
    again = SequenceDenoiser.from_config(denoiser.get_config())
    assert again.get_config() == denoiser.get_config()
    call = batch(option)
    assert float(step(again, call)[0]) == float(step(denoiser, call)[0])
    for one, other in zip(*(tf.nest.flatten(d(**call)) for d in (again, denoiser)), strict=True):
        np.testing.assert_array_equal(one, other)


LOAD = """
    import sys
    import numpy as np
    import tensorflow as tf
    import seqdenoise

    folder, inputs, output = sys.argv[1:]
    model = tf.keras.models.load_model(folder)
    with np.load(inputs) as file:
        features = {name: tf.constant(file[name]) for name in file.files}
    np.save(output, model.predict(features, verbose=0))
"""


def test_a_gated_model_trains_is_saved_and_scores_the_same_in_a_fresh_process(tmp_path):
    tf.keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    inputs = {name: tf.keras.Input((L,), dtype="int32", name=name) for name in ("click", "buy")}
    item = tf.keras.Input((), dtype="int32", name="item")
    table = tf.keras.layers.Embedding(20, D, mask_zero=True, name="table")
    sequences = {name: table(x) for name, x in inputs.items()}
    denoiser = SequenceDenoiser(
        trusted=["buy", "candidate"], gate=True, alignment="type", name="denoiser"
    )
    gated = denoiser(sequences, candidate=table(item))
    pooled = [
        tf.keras.layers.GlobalAveragePooling1D(name=f"mean_{name}")(gated[name]) for name in inputs
    ]
    out = tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Concatenate(name="all")(pooled))
    model = tf.keras.Model({**inputs, "item": item}, out)
    model.compile("adam", "mse")
    features = {name: rng.integers(1, 20, (30, L)).astype(np.int32) for name in inputs}
    for name in inputs:
        features[name][np.arange(L) >= rng.integers(1, L + 1, 30)[:, None]] = 0
    features["item"] = rng.integers(1, 20, 30).astype(np.int32)
    history = model.fit(features, rng.normal(size=(30, 1)), epochs=2, batch_size=10, verbose=0)
    assert 0 < history.history["denoiser/click/transported_mass"][-1] < 1
    # The candidate is always there, so every row with a click is judged.
    assert history.history["denoiser/click/judged_rate"][-1] == 1
    expected = model.predict(features, verbose=0)
    scores = denoiser.keep_scores(
        {name: table(features[name]) for name in inputs},
        {name: tf.constant(features[name] != 0) for name in inputs},
        candidate=table(features["item"]),
    )["click"].numpy()
    assert scores[features["click"] != 0].min() < 0.5  # so the gate matters
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "features.npz", **features)
    subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(LOAD),
            str(tmp_path / "model.keras"),
            str(tmp_path / "features.npz"),
            str(tmp_path / "scores.npy"),
        ],
        check=True,
    )
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, rtol=1e-4, atol=1e-6)


def test_arguments_that_do_not_go_together_are_named():
    for arguments, message in [
        ({"alignment": "types"}, "`alignment` must be 'view', 'type' or None. Received: 'types'"),
        ({"alignment": "type"}, "Alignment 'type' needs `trusted`.*Received: trusted=None"),
        ({"trusted": ()}, "`trusted` must name a type or be None. Received: nothing"),
        ({"gate": True}, "`gate` needs `trusted`.*Received: gate=True, trusted=None"),
        ({"transport": {"epsilon": 0.1}}, "`transport` must be None without.*epsilon"),
        ({"trusted": "buy", "transport": {"eps": 0.1}}, r"`transport` may have.*\['eps'\]"),
        ({"alignment": "view", "transport": {"relaxation": 1.0}}, r"Received: \['relaxation'\]"),
        ({"alignment": "view", "transport": {"looks": 1}}, r"Received: \['looks'\]"),
        ({"trusted": "buy", "transport": {"relaxation": None}}, "`relaxation` must be above 0"),
        ({"trusted": "buy", "transport": {"epsilon": 0}}, "`epsilon` must be above 0. Received: 0"),
        ({"trusted": "buy", "transport": {"looks": 3}}, "`looks` must be 1 or 2. Received: 3"),
        ({"alignment_weight": -1}, "`alignment_weight` must be at least 0. Received: -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(**arguments)


def test_sequences_that_cannot_be_judged_are_named():
    events = tf.zeros([2, 3, 4])
    for options, sequences, message in [
        ({"trusted": "like"}, {"click": events}, r"`trusted` must name types.*\['like'\]"),
        ({"trusted": "click"}, {"click": events}, "Every denoised sequence is trusted"),
        (
            {"trusted": "buy"},
            {"click": events[:, 0], "buy": events},
            r"events of sequence `click`, shape \[B, L, D\]",
        ),
        (
            {"trusted": "buy"},
            {"click": events, "buy": events[:, :, :2]},
            "same fields and numbers of dimensions. Received:.*2",
        ),
        (
            {"trusted": "buy"},
            {"click": {"item": events}, "buy": {"brand": events}},
            "same fields and numbers of dimensions",
        ),
        ({"trusted": "candidate"}, {"click": events}, "`candidate` must be given.*None"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(**options, gate=True)(sequences)
    with pytest.raises(ValueError, match=r"`candidate` must be given if.*candidate given"):
        SequenceDenoiser(trusted="buy", gate=True)(
            {"click": events, "buy": events}, candidate=events[:, 0]
        )
    with pytest.raises(ValueError, match="`keep_scores` needs `trusted`"):
        SequenceDenoiser().keep_scores({"click": events})
    with pytest.raises(ValueError, match="call the denoiser on them first"):
        SequenceDenoiser(trusted="buy").keep_scores({"click": events})


def test_trusted_is_a_type_not_a_name():
    call = batch("type")
    names = {"click_7d": "click", "buy_7d": "buy", "buy_30d": "buy"}
    sequences = {
        "click_7d": call["sequences"]["click"],
        "buy_7d": call["sequences"]["buy"],
        "buy_30d": call["sequences"]["search"],
    }
    masks = {"click_7d": call["mask"]["click"], "buy_7d": call["mask"]["buy"]}
    masks["buy_30d"] = call["mask"]["search"]
    renamed = SequenceDenoiser(trusted="buy", types=names, transport={"looks": 1})
    renamed(sequences, mask=masks)
    got = renamed.keep_scores(sequences, masks)
    expected = scores_of(make("types", transport={"looks": 1}), call)
    assert set(got) == {"click_7d"}
    np.testing.assert_allclose(got["click_7d"], expected["click"], rtol=1e-5)
