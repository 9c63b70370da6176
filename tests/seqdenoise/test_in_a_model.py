"""The plug-in inside models that are built, trained, evaluated, saved and loaded."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser

ROWS, L, ITEMS = 100, 6, 50


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = {
        "click": rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32),
        "search": rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32),
        "user": rng.integers(0, 30, ROWS),
    }
    features["click"][np.arange(L) >= rng.integers(1, L + 1, ROWS)[:, None]] = 0
    return features, rng.integers(0, 2, ROWS).astype(np.float32)


def functional_model(denoiser=None, **compile_options):
    """A ranker with all that draws random numbers: initialisers on both sides of the plug-in, and
    dropout."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    click = tf.keras.Input((L,), dtype="int32", name="click")
    search = tf.keras.Input((L,), dtype="int32", name="search")
    user = tf.keras.Input((), dtype="int64", name="user")
    embedding = tf.keras.layers.Embedding(ITEMS, 8, mask_zero=True, name="items")
    sequences = {"click": embedding(click), "search": embedding(search)}
    if denoiser is not None:
        sequences = denoiser(sequences, sample_ids=user)
    pooled = [
        tf.keras.layers.GlobalAveragePooling1D(name=f"pool_{name}")(sequences[name])
        for name in ("click", "search")
    ]
    # An input must lead somewhere in the bare model too.
    profile = tf.keras.layers.Embedding(30, 2, name="users")(user)
    x = tf.keras.layers.Concatenate(name="all")([*pooled, profile])
    x = tf.keras.layers.Dropout(0.3, name="dropout")(x)
    x = tf.keras.layers.Dense(8, activation="relu", name="hidden")(x)
    out = tf.keras.layers.Dense(1, name="logit")(x)
    model = tf.keras.Model({"click": click, "search": search, "user": user}, out)
    options = {"optimizer": "adam", "loss": tf.keras.losses.BinaryCrossentropy(from_logits=True)}
    model.compile(**{**options, **compile_options})
    return model


class SubclassedModel(tf.keras.Model):
    """The same by subclassing, with the masks given by hand."""

    def __init__(self, denoiser=None):
        super().__init__()
        self.denoiser = denoiser
        self.items = tf.keras.layers.Embedding(ITEMS, 8, name="items")
        self.users = tf.keras.layers.Embedding(30, 2, name="users")
        self.dropout = tf.keras.layers.Dropout(0.3, name="dropout")
        self.hidden = tf.keras.layers.Dense(8, activation="relu", name="hidden")
        self.logit = tf.keras.layers.Dense(1, name="logit")

    def call(self, features, training=False):
        sequences = {name: self.items(features[name]) for name in ("click", "search")}
        masks = {name: tf.not_equal(features[name], 0) for name in sequences}
        if self.denoiser is not None:
            sequences = self.denoiser(
                sequences, mask=masks, sample_ids=features["user"], training=training
            )
        pooled = [
            tf.reduce_mean(tf.where(masks[name][:, :, None], sequences[name], 0.0), axis=1)
            for name in ("click", "search")
        ]
        x = tf.concat([*pooled, self.users(features["user"])], axis=-1)
        return self.logit(self.hidden(self.dropout(x, training=training)))


def subclassed_model(denoiser=None):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    model = SubclassedModel(denoiser)
    model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def host_weights(model):
    named = [v for v in model.trainable_variables if "encoder" not in getattr(v, "path", v.name)]
    return [v.numpy() for v in named]


@pytest.mark.parametrize("make", [functional_model, subclassed_model])
def test_weight_zero_trains_bit_identically_to_no_plug_in(make, data):
    def trained(denoiser):
        model = make(denoiser)
        # Made after the plug-in: its order comes from the global seed, so it would change if the
        # plug-in had drawn from the host's random state.
        dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(ROWS).batch(20).repeat()
        model.fit(dataset, steps_per_epoch=25, epochs=2, shuffle=False, verbose=0)  # 50 steps
        return host_weights(model)

    bare, off = trained(None), trained(SequenceDenoiser(weight=0.0))
    on = trained(SequenceDenoiser(weight=0.5))
    assert len(bare) == len(off) == len(on) == 6
    for one, other in zip(bare, off, strict=True):
        np.testing.assert_array_equal(one, other)
    # ... and this comparison can fail:
    assert not any(np.array_equal(one, other) for one, other in zip(bare, on, strict=True))


def test_trains_and_reports_and_leaves_evaluation_alone(data):
    features, labels = data
    model = functional_model(SequenceDenoiser(weight=0.2, name="denoiser"))
    history = model.fit(
        features, labels, batch_size=32, epochs=8, validation_data=(features, labels), verbose=0
    ).history
    assert history["denoiser/click/loss"][-1] < history["denoiser/click/loss"][0]
    assert not any("search" in key for key in history)
    assert np.isnan(history["val_denoiser/click/loss"]).all()
    bare = functional_model()
    # The evaluated loss is the ranking loss alone, hence the bare model's, and deterministic.
    evaluated = [model.evaluate(features, labels, verbose=0, return_dict=True) for _ in range(2)]
    assert evaluated[0]["loss"] == evaluated[1]["loss"]
    for variable, value in zip(bare.trainable_variables, host_weights(model), strict=True):
        variable.assign(value)
    expected = bare.evaluate(features, labels, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(evaluated[0]["loss"], expected, rtol=1e-6)


def test_the_training_loss_is_that_of_the_host_plus_the_side_loss(data):
    features, labels = data
    model = functional_model(SequenceDenoiser(weight=0.2))
    model.get_layer("dropout").rate = 0.0  # eager and graph draw from different states
    logits = model(features, training=True)
    ranking = tf.keras.losses.BinaryCrossentropy(from_logits=True)(labels[:, None], logits)
    (side,) = model.losses
    assert float(side) > 0.05
    model = functional_model(SequenceDenoiser(weight=0.2))
    model.get_layer("dropout").rate = 0.0
    got = model.train_on_batch(features, labels, return_dict=True)["loss"]
    np.testing.assert_allclose(got, float(ranking) + float(side), rtol=1e-5)


def test_masks_of_the_embedding_are_found_and_passed_on(data):
    features, _ = data
    padded = {**features, "click": features["click"].copy()}
    padded["click"][:10] = 0
    denoiser = SequenceDenoiser(masking="dimension", name="denoiser")
    model = functional_model(denoiser)
    model(padded, training=True)
    valid = next(m for m in denoiser.metrics if m.name == "denoiser/click/valid_rate")
    np.testing.assert_allclose(float(valid.result()), 0.9, rtol=1e-6)
    # Behind the plug-in, the pooling layer still sees the mask: it averages real events alone (and
    # Keras' own averages nothing to NaN).
    np.testing.assert_allclose(
        model.predict(padded, verbose=0), functional_model().predict(padded, verbose=0), rtol=1e-6
    )


def test_embedding_gradients_stay_sparse_and_reach_everything(data):
    features, labels = data
    model = functional_model(SequenceDenoiser(weight=0.2))
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = tf.reduce_mean((logits[:, 0] - labels) ** 2) + tf.add_n(model.losses)
    variables = model.trainable_variables
    values = [v if isinstance(v, tf.Variable) else v.value for v in variables]
    gradients = tape.gradient(loss, values)
    assert len(gradients) == 10
    sparse = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    assert len(sparse) == 2  # items and users
    for gradient in gradients:
        assert np.abs(tf.convert_to_tensor(gradient).numpy()).max() > 0


def test_a_partial_last_batch_costs_one_more_trace_at_most(data):
    features, labels = data
    traces = []

    class Counting(SequenceDenoiser):
        def _add_side_loss(self, *args, **kwargs):
            traces.append(1)
            return super()._add_side_loss(*args, **kwargs)

    model = functional_model(Counting())
    traces.clear()
    model.fit(features, labels, batch_size=32, epochs=3, verbose=0)
    assert 1 <= len(traces) <= 2


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"steps_per_execution": 2}])
def test_compile_options(data, options):
    features, labels = data
    model = functional_model(SequenceDenoiser(weight=0.2, name="denoiser"), **options)
    history = model.fit(features, labels, batch_size=25, epochs=2, verbose=0).history
    plain = functional_model(SequenceDenoiser(weight=0.2, name="denoiser"))
    expected = plain.fit(features, labels, batch_size=25, epochs=2, verbose=0).history
    key = "denoiser/click/loss"
    # XLA draws the dropout of legacy Keras from other bits, so the two runs drift apart a little.
    np.testing.assert_allclose(history[key], expected[key], rtol=1e-2)


FRESH_PROCESS = """
    import sys
    import numpy as np
    import tensorflow as tf
    import seqdenoise

    with np.load(sys.argv[1] + "/data.npz") as file:
        data = dict(file)
    labels, expected = data.pop("labels"), data.pop("expected")
    model = tf.keras.models.load_model(sys.argv[1] + "/model.keras")
    np.testing.assert_array_equal(model.predict(data, verbose=0), expected)
    denoiser = model.get_layer("denoiser")
    assert denoiser.get_config()["temperature"] in (0.2, 0.07), denoiser.get_config()
    assert int(denoiser.step) == 8, int(denoiser.step)
    model.fit(data, labels, batch_size=32, epochs=1, verbose=0, shuffle=False)
    assert int(denoiser.step) == 12
    weights = [v.numpy() for v in model.trainable_variables]
    np.savez(sys.argv[1] + "/resumed.npz", *weights)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.2},
        {
            "loss": "moco",
            "queue_size": 37,
            "head_units": 6,
            "temperature": 0.07,
            "learn_temperature": True,
        },
    ],
    ids=["default", "moco_v2"],
)
def test_saved_and_resumed_in_a_fresh_process(data, tmp_path, options):
    features, labels = data

    def make():
        # Without dropout, whose random state Keras does not carry over.
        model = functional_model(SequenceDenoiser(**options, name="denoiser"))
        model.get_layer("dropout").rate = 0.0
        return model

    model = make()
    model.fit(features, labels, batch_size=32, epochs=2, verbose=0, shuffle=False)
    expected = model.predict(features, verbose=0)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "data.npz", labels=labels, expected=expected, **features)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FRESH_PROCESS), str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    model.fit(features, labels, batch_size=32, epochs=1, verbose=0, shuffle=False)
    with np.load(tmp_path / "resumed.npz") as resumed:
        for key, variable in zip(resumed.files, model.trainable_variables, strict=True):
            np.testing.assert_array_equal(resumed[key], variable.numpy())


def test_weights_are_saved_and_loaded_alone(tmp_path):
    # Two sequences of one shape, and a name that no file format would take as it is.
    def make(seed):
        denoiser = SequenceDenoiser(seed=seed)
        embedded = {
            name: tf.keras.Input((L, 8), name=f"embedded_{i}")
            for i, name in enumerate(["click 7/d", "cart"])
        }
        return tf.keras.Model(list(embedded.values()), denoiser(embedded)), denoiser

    (one, first), (two, second) = make(1), make(2)
    one.save_weights(tmp_path / "model.weights.h5")
    kernels = [layer.trainable_weights[0].numpy() for layer in (first, second)]
    assert not np.array_equal(*kernels)
    two.load_weights(tmp_path / "model.weights.h5")
    for got, expected in zip(second.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_saved_model_has_no_random_op(data, tmp_path):
    features, _ = data
    model = functional_model(SequenceDenoiser())
    expected = model.predict(features, verbose=0)
    serve = tf.function(lambda x: model(x, training=False))
    specs = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in features.items()}
    concrete = serve.get_concrete_function(specs)
    operations = {op.type for op in concrete.graph.get_operations()}
    assert not [name for name in operations if "Random" in name]
    got = serve({name: tf.constant(x) for name, x in features.items()})
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_importing_needs_no_tfrs_and_changes_no_environment():
    code = """
        import os, sys
        before = dict(os.environ)
        import tensorflow
        with_tensorflow = dict(os.environ)
        import seqdenoise
        assert dict(os.environ) == with_tensorflow
        assert "tensorflow_recommenders" not in sys.modules
        assert "pipelines" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True)
