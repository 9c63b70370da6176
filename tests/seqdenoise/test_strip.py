"""`strip_for_serving`: what is left is the bare model, by its scores, signature and operations."""

import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict

import numpy as np
import plug_hosts
import pytest
import tensorflow as tf
from exported_operations import exported, operations, signature
from plug_hosts import assert_same_bits, scores

from seqdenoise import SequenceDenoiser, denoise, denoisers_in, strip_for_serving

every_host = pytest.mark.parametrize("name", plug_hosts.HOSTS)


def plugged_in(name, train=False):
    host = plug_hosts.made(name)
    plugged = denoise(host.model, host.taps, **host.call, weight=0.5)
    if train:
        plugged.compile("sgd", "mse")
        plugged.fit(host.features(), plug_hosts.labels(), verbose=0)
    return host, plugged


def graph_of(model, batch):
    """The graph of a call in serving on any number of rows."""
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), batch)
    return tf.function(lambda x: model(x, training=False)).get_concrete_function(specs)


@every_host
def test_the_stripped_model_is_the_bare_one(name):
    host, plugged = plugged_in(name)
    stripped = strip_for_serving(plugged)
    assert_same_bits(scores(stripped, host), scores(plugged, host))
    assert not denoisers_in(stripped)
    assert type(stripped) is type(tf.keras.Model(host.model.inputs, host.model.outputs))
    bare = host.model
    if isinstance(bare, tf.keras.Sequential):
        bare = tf.keras.Model(bare.inputs[0], bare.outputs[0], name=bare.name)
    assert stripped.get_config() == bare.get_config()
    assert [id(w) for w in stripped.weights] == [id(w) for w in bare.weights]
    left, expected = (operations(graph_of(one, host.features())) for one in (stripped, bare))
    assert Counter(left) == Counter(expected)


@pytest.mark.parametrize("name", ["shared_embedding", "two_tasks"])
def test_the_export_has_the_bare_ones_signature_and_operations(name, tmp_path):
    host, plugged = plugged_in(name, train=name == "shared_embedding")
    stripped = exported(strip_for_serving(plugged), tmp_path / "stripped")
    bare = exported(host.model, tmp_path / "bare")
    assert signature(stripped) == signature(bare)
    counts = [Counter(operations(one)) for one in (stripped, bare)]
    assert counts[0] == counts[1]
    assert not [op for op in counts[0] if "Random" in op or "Dropout" in op]
    files = {
        name: [
            key for key, _ in tf.train.list_variables(str(tmp_path / name / "variables/variables"))
        ]
        for name in ("stripped", "bare")
    }
    assert len(files["stripped"]) == len(files["bare"])
    features = {x: tf.constant(y) for x, y in host.features().items()}
    got, expected = stripped(**features), scores(plugged, host)
    for x, y in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    for x, y in zip(tf.nest.flatten(got), tf.nest.flatten(bare(**features)), strict=True):
        np.testing.assert_array_equal(x, y)


def written_in(make_sequences):
    """A model with a denoiser in the path of its sequences, as one would write it by hand."""
    tf.keras.utils.set_random_seed(3)
    ids = {n: tf.keras.Input((6,), dtype="int32", name=n) for n in ("click", "search", "buy")}
    table = tf.keras.layers.Embedding(50, 4, mask_zero=True, name="items")
    events = make_sequences({name: table(x) for name, x in ids.items()})
    pooled = [
        tf.keras.layers.GlobalAveragePooling1D(name=f"mean_{name}")(events[name])
        for name in ("buy", "click", "search")
    ]
    out = tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Concatenate(name="all")(pooled))
    return tf.keras.Model(ids, out, name="host")


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_denoisers_written_into_a_graph_are_stripped_too(kind):
    def denoised(events):
        # Not in alphabetical order, and twice.
        events = kind((name, events[name]) for name in ("search", "click", "buy"))
        events = SequenceDenoiser(name="first")(events)
        return {**events, **SequenceDenoiser(name="second")({"buy": events["buy"]})}

    model, bare = written_in(denoised), written_in(dict)
    stripped = strip_for_serving(model)
    rng = np.random.default_rng(0)
    batch = {
        name: tf.constant(rng.integers(1, 50, (8, 6)), tf.int32)
        for name in ("click", "search", "buy")
    }
    assert_same_bits(stripped(batch), model(batch))
    assert_same_bits(stripped(batch), bare(batch))
    assert [layer.name for layer in stripped.layers] == [layer.name for layer in bare.layers]
    assert len(operations(graph_of(stripped, batch))) == len(operations(graph_of(bare, batch)))
    assert len(operations(graph_of(model, batch))) >= len(operations(graph_of(bare, batch)))


WITHOUT_SEQDENOISE = """
    import sys
    sys.modules["seqdenoise"] = None  # as if it were not installed
    import numpy as np
    import tensorflow as tf

    folder = sys.argv[1]
    with np.load(folder + "/data.npz") as file:
        data = dict(file)
    expected = data.pop("expected")
    model = tf.keras.models.load_model(folder + "/model.keras")
    np.testing.assert_array_equal(model.predict(data, verbose=0), expected)
    served = tf.saved_model.load(folder + "/served").signatures["serving_default"]
    (got,) = served(**{name: tf.constant(x) for name, x in data.items()}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
"""


@pytest.mark.slow
def test_it_loads_where_seqdenoise_is_not_installed(tmp_path):
    host, plugged = plugged_in("shared_embedding", train=True)
    plugged.save(tmp_path / "plugged.keras")
    # ... also when it is taken off a model that was loaded, on no host's graph.
    stripped = strip_for_serving(tf.keras.models.load_model(tmp_path / "plugged.keras"))
    stripped.save(tmp_path / "model.keras")
    stripped.export(str(tmp_path / "served"))
    expected = plugged.predict(host.features(), verbose=0)
    np.savez(tmp_path / "data.npz", expected=expected, **host.features())
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(WITHOUT_SEQDENOISE), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


class Ranker(tf.keras.Model):
    def __init__(self, denoiser=None, units=4):
        super().__init__()
        self.denoiser = denoiser
        self.items = tf.keras.layers.Embedding(50, 4, name="items")
        self.hidden = tf.keras.layers.Dense(units, name="hidden")
        self.out = tf.keras.layers.Dense(4, name="out")

    def call(self, ids, training=False):
        events = self.items(ids)
        if self.denoiser is not None:
            events = self.denoiser({"click": events}, training=training)["click"]
        return self.out(self.hidden(tf.reduce_mean(events, axis=1)))


def test_a_subclassed_model_gives_its_weights_to_a_bare_one():
    ids = tf.constant([[1, 2, 3], [4, 5, 0]])
    plugged, bare = Ranker(SequenceDenoiser()), Ranker()
    plugged.compile("sgd", "mse", run_eagerly=True)
    plugged.fit(ids, tf.zeros([2, 4]), verbose=0)
    bare(ids)
    assert np.abs(bare(ids) - plugged(ids)).max() > 0
    assert strip_for_serving(plugged, bare) is bare
    assert_same_bits(bare(ids), plugged(ids))
    # A copy: what is trained on later is trained alone.
    plugged.fit(ids, tf.zeros([2, 4]), verbose=0)
    assert np.abs(bare(ids) - plugged(ids)).max() > 0


def test_what_cannot_be_stripped_is_named():
    ids = tf.constant([[1, 2, 3], [4, 5, 0]])
    plugged, narrow, unbuilt = Ranker(SequenceDenoiser(name="d")), Ranker(units=3), Ranker()
    plugged(ids), narrow(ids)
    gated = {"trusted": "buy", "gate": True, "weight": 0.0, "name": "gate"}
    events = {name: tf.keras.Input((6, 4), name=name) for name in ("click", "buy")}
    gate = tf.keras.Model(events, SequenceDenoiser(**gated)(events)["click"])
    inner = tf.keras.Model(
        events["click"], SequenceDenoiser(name="d")({"click": events["click"]})["click"]
    )
    outer = tf.keras.Model(events["click"], inner(events["click"]))
    for arguments, message in [
        ((plugged,), r"needs a functional model, or `bare`.*Received: Ranker"),
        ((plugged, unbuilt), "`bare` must be built"),
        ((plugged, plugged), r"`bare` must have no denoiser. Received: \['d'\]"),
        (
            (plugged, narrow),
            r"the same order. Received: 5 weights beside 5; the first that differs is number 1, "
            r"\[\('kernel', \(4, 3\)\)\] beside \[\('kernel', \(4, 4\)\)\]",
        ),
        ((gate,), r"cannot be served without it: export it as it is. Received: \['gate'\]"),
        ((outer,), r"inside a nested model can be stripped only with that model.*\['d'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            strip_for_serving(*arguments)


def test_denoise_and_strip_again_and_again():
    host = plug_hosts.made("shared_embedding")
    model = host.model
    for _ in range(3):
        model = strip_for_serving(denoise(denoise(model, host.taps), host.taps))
    assert model.get_config() == host.model.get_config()
    assert_same_bits(scores(model, host), scores(host.model, host))
