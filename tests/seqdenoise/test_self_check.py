"""Planted faults, each of which the self-check must name."""

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser, masking, self_check
from seqdenoise.numerics import masked_pool

ROWS, L, ITEMS, D = 32, 5, 40, 6


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    features = {name: rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32) for name in "ab"}
    features["click"] = features.pop("a")
    features["search"] = features.pop("b")
    features["click"][np.arange(L) >= rng.integers(1, L + 1, ROWS)[:, None]] = 0
    features["user"] = rng.integers(0, 20, ROWS)
    features["price"] = rng.normal(size=(ROWS, 1)).astype(np.float32)
    return features, rng.integers(0, 2, ROWS).astype(np.float32)


class Host(tf.keras.Model):
    """A ranker; each fault is a small change of how it calls the plug-in."""

    def __init__(self, denoiser, **faults):
        super().__init__()
        self.denoiser = denoiser
        self.faults = faults
        self.items = tf.keras.layers.Embedding(ITEMS, D, name="items")
        self.dropout = tf.keras.layers.Dropout(0.2, seed=3)
        self.logit = tf.keras.layers.Dense(1, name="logit")

    def call(self, features, training=False):
        masks = {name: features[name] != 0 for name in ("click", "search")}
        given = {name: self.items(features[name]) for name in masks}
        for name in self.faults.get("detached", ()):
            given[name] = tf.stop_gradient(given[name])
        denoiser = self.faults.get("hidden", [self.denoiser])[0]
        if not self.faults.get("uncalled"):
            given = denoiser(
                given,
                mask=self.faults.get("mask", lambda masks: masks)(masks),
                sample_ids=self.faults.get("ids", lambda ids: ids)(features["user"]),
                training=self.faults.get("training", training),
            )
        pooled = [masked_pool(given[name], masks[name]) for name in masks]
        x = tf.concat([*pooled, features["price"]], axis=-1)
        return self.logit(self.dropout(x, training=training))


class Holder:
    """No layer and no list, so Keras does not look inside."""

    def __init__(self, *held):
        self.held = held

    def __getitem__(self, index):
        return self.held[index]


def found(check):
    return {(one.check, one.subject) for one in check.failures}


def compiled(denoiser, *, eagerly=True, **faults):
    """Eagerly: a graph of each faulty model would take most of the time of these tests."""
    tf.keras.utils.set_random_seed(1)
    model = Host(denoiser, **faults)
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=eagerly)
    return model


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_sound_model_passes_and_the_table_says_so(eagerly, batch):
    check = self_check(compiled(SequenceDenoiser(name="d"), eagerly=eagerly), batch)
    assert check.passed
    check.raise_if_failed()
    lines = str(check).splitlines()
    assert len(lines) == len(check.findings) == 17
    assert {line.split()[0] for line in lines} == {"passed", "skipped"}
    assert any("encoder gradient" in line and "all 4 weights" in line for line in lines)


@tf.keras.utils.register_keras_serializable(package="test_self_check")
def detached_loss(view_a, view_b, *, mask, ids, weights):
    del ids, weights, mask
    return tf.reduce_mean(tf.stop_gradient(view_a - view_b) ** 2) + 0 * tf.reduce_sum(view_a)


FAULTS = {
    "embeddings behind stop_gradient": (
        {}, {"detached": ["click"]}, {("host gradient", "d/click")},
    ),
    "encoder behind stop_gradient": (
        {"loss": detached_loss}, {}, {("encoder gradient", "d"), ("host gradient", "d/click")},
    ),
    "encoder frozen": ({"trainable": False}, {}, {("encoder gradient", "d")}),
    "training not passed on": ({}, {"training": False}, {("called in training", "d")}),
    "not called": ({}, {"uncalled": True}, {("called in training", "d")}),
    "search denoised": ({"exclude": ()}, {}, {("searches left alone", "d/search")}),
    "search by its type": (
        {"exclude": (), "types": {"search": "user_query"}}, {},
        {("searches left alone", "d/search")},
    ),
    "no mask": ({}, {"mask": lambda _: None}, {("padding masked", "d/click")}),
    "inverted mask": (
        {}, {"mask": lambda masks: {"click": ~masks["click"]}}, {("padding masked", "d/click")},
    ),
    "nothing real": (
        {}, {"mask": lambda masks: {"click": masks["click"] & False}},
        {("valid rows", "d/click")},
    ),
    "one id for all": (
        {}, {"ids": tf.zeros_like},
        {("sample ids", "d"), ("valid rows", "d/click")},
    ),
    "one id for most": (
        {}, {"ids": lambda ids: tf.where(tf.range(ROWS) < 20, tf.zeros_like(ids), ids)},
        {("sample ids", "d")},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*it looks like it has unbuilt state")  # when not called
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_nothing_else(fault, batch):
    options, faults, expected = FAULTS[fault]
    check = self_check(compiled(SequenceDenoiser(name="d", **options), **faults), batch)
    assert found(check) == expected
    with pytest.raises(ValueError, match=f"{next(iter(expected))[0]}: d.*"):
        check.raise_if_failed()


def test_a_plug_in_that_the_model_does_not_track(batch):
    # In a tuple of a plain object no Keras looks for layers.
    model = compiled(None, hidden=Holder(SequenceDenoiser(name="d")))
    check = self_check(model, batch)
    assert found(check) == {("called in training", "d"), ("encoder gradient", "d")}
    with pytest.raises(ValueError, match=r"must hold a SequenceDenoiser.*Received: .*without one"):
        self_check(compiled(None, uncalled=True), batch)


def overlapping(events, *, mask, seed, first_row):
    """Both views see the first dimension."""
    view_a, view_b, valid = masking.dimension_views(
        events, mask=mask, seed=seed, first_row=first_row
    )
    first = tf.one_hot([0], view_a.shape[1])
    return view_a + first * view_b, view_b + first * view_a, valid


def incomplete(events, *, mask, seed, first_row):
    """No view sees the first dimension."""
    view_a, view_b, valid = masking.dimension_views(
        events, mask=mask, seed=seed, first_row=first_row
    )
    rest = 1 - tf.one_hot([0], view_a.shape[1])
    return view_a * rest, view_b * rest, valid


def leaking(events, *, mask, seed, first_row):
    """Masks by multiplication, which NaN survives."""
    masked = events * tf.cast(mask, events.dtype)[:, :, tf.newaxis]
    return masking.dimension_views(masked, mask=tf.ones_like(mask), seed=seed)


@pytest.mark.parametrize(
    ("views", "expected", "message"),
    [
        (overlapping, {("views", "d/click")}, "overlap: 1[0-9]% of the features"),
        (incomplete, {("views", "d/click")}, "not the whole sequence in 100%"),
        (leaking, {("padding ignored", "d/click"), ("views", "d/click")}, "NaN in masked slots"),
    ],
)
def test_views_that_are_wrong(views, expected, message, batch, monkeypatch):
    monkeypatch.setitem(masking.MASKINGS, "dimension", views)
    check = self_check(compiled(SequenceDenoiser(masking="dimension", name="d")), batch)
    assert found(check) == expected
    with pytest.raises(ValueError, match=message):
        check.raise_if_failed()


def test_nan_in_a_weight_and_in_an_input(batch):
    features, labels = batch
    model = compiled(SequenceDenoiser(name="d"))
    self_check(model, batch)
    table = model.items.embeddings
    table.assign(np.where(np.arange(ITEMS)[:, None] == features["click"][0, 0], np.nan, table))
    check = self_check(model, batch)
    assert found(check) == {
        ("finite weights", "model"),
        ("finite outputs", "model"),
        ("finite losses", "model"),
        ("finite sequences", "d/click"),
    }
    assert "items/embeddings" in str(check)
    # What a NaN makes impossible to tell is skipped, not passed.
    skipped = {one.check for one in check.findings if one.outcome == "skipped"}
    assert {"encoder gradient", "host gradient", "views", "padding ignored"} <= skipped

    price = features["price"].copy()
    price[3] = np.nan
    check = self_check(compiled(SequenceDenoiser(name="d")), ({**features, "price": price}, labels))
    assert found(check) == {("finite outputs", "model"), ("finite losses", "model")}
    assert "as is the input `price`" in str(check)


def embedded_host(denoiser, fields=("item", "brand"), same=False, excluded=None):
    """Events by field, as inputs that pass through a trained layer."""
    inputs = {field: tf.keras.Input((L, 4), name=field) for field in fields}
    scale = tf.keras.layers.Dense(4, name="scale", use_bias=False)
    events = {field: scale(x) for field, x in inputs.items()}
    if same:
        events["again"] = events["item"]
    out = denoiser({"click": events} if excluded is None else {"click": events, excluded: events})
    flat = [tf.keras.layers.Flatten()(x) for x in tf.nest.flatten(out)]
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()(flat)))
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def fields(rows=16, seed=0):
    rng = np.random.default_rng(seed)
    return {field: rng.normal(size=(rows, L, 4)).astype(np.float32) for field in ("item", "brand")}


@pytest.mark.parametrize("masking", ["field", "dimension"])
def test_one_feature_given_twice_is_an_overlap(masking):
    once = self_check(embedded_host(SequenceDenoiser(masking=masking, name="d")), fields())
    assert once.passed, str(once)
    twice = self_check(
        embedded_host(SequenceDenoiser(masking=masking, name="d"), same=True), fields()
    )
    assert found(twice) == {("views", "d/click")}
    expected = "fields `again` and `item`" if masking == "field" else "dimensions 0 and 8"
    assert expected in str(twice)


INFORMATION = {"click": {one: dict.fromkeys(("item", "brand"), 1.0) for one in ("item", "brand")}}
SOUND = {
    "by default": {},
    "event_dimension": {"masking": "event_dimension"},
    "dimension": {"masking": "dimension"},
    "dropout on top": {"masking": "dimension", "dropout": 0.3},
    "correlated_field": {"masking": "correlated_field", "mutual_information": INFORMATION},
    "edits": {"masking": "crop_mask_reorder"},
    "dropout alone": {"masking": "dropout"},
    "a queue": {"loss": "moco", "queue_size": 40, "head_units": 4, "learn_temperature": True},
    "a gate": {"trusted": "search", "gate": True, "alignment": "type"},
    "a schedule": {"weight": tf.keras.optimizers.schedules.PolynomialDecay(0.0, 10, 0.2)},
    "off": {"weight": 0.0},
}


@pytest.mark.parametrize("system", SOUND)
def test_sound_systems_pass(system):
    options = SOUND[system]
    model = embedded_host(SequenceDenoiser(**options, name="d"), excluded="search")
    check = self_check(model, fields())
    assert check.passed, str(check)
    outcomes = {(one.check, one.subject): one.outcome for one in check.findings}
    assert outcomes["called in training", "d"] == ("skipped" if system == "off" else "passed")
    shared = system in ("dropout alone", "edits", "off")
    assert outcomes.get(("views", "d/click"), "skipped") == ("skipped" if shared else "passed")
    # Padding that is not there cannot be asked about.
    assert outcomes.get(("padding ignored", "d/click"), "skipped") == "skipped"
    trusted = system == "a gate"
    if system != "off":
        assert outcomes["excluded gradient", "d/search"] == ("skipped" if trusted else "passed")
        assert outcomes["returned unchanged", "d/click"] == ("skipped" if trusted else "passed")


class Meddling(SequenceDenoiser):
    """Returns something else, and reads what it should not."""

    def _add_side_loss(self, sequences, mask, rows, judgement):
        click = {"click": sequences["click"] + sequences["search"]}
        super()._add_side_loss({**sequences, **click}, mask, rows, judgement)

    def call(self, sequences, training=None, **kwargs):
        out = super().call(sequences, training=training, **kwargs)
        return {**out, "search": out["search"] + 1}


def test_a_plug_in_that_meddles_with_an_excluded_sequence(batch):
    check = self_check(compiled(Meddling(name="d")), batch)
    assert found(check) == {
        ("excluded gradient", "d/search"),
        ("returned unchanged", "d/search"),
        ("views", "d/click"),
    }


class WholeBatches(tf.keras.Model):
    """As TFRS models are: no call, and a loss of the whole batch."""

    def __init__(self, **options):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ITEMS, D, mask_zero=True, name="items")
        self.denoiser = SequenceDenoiser(name="d", **options)
        self.logit = tf.keras.layers.Dense(1)

    def compute_loss(self, inputs, training=False):
        clicks = self.items(inputs["click"])
        clicks = self.denoiser({"click": clicks}, training=training)["click"]
        return tf.reduce_mean((self.logit(tf.reduce_sum(clicks, axis=1)) - 1.0) ** 2)


def test_a_model_that_takes_whole_batches(batch):
    check = self_check(WholeBatches(), batch[0])
    assert check.passed, str(check)
    outcomes = {one.check: one.outcome for one in check.findings}
    assert outcomes["finite outputs"] == "skipped"
    assert outcomes["finite losses"] == outcomes["host gradient"] == "passed"
    assert outcomes["padding ignored"] == "passed"


class TwoTowers(tf.keras.Model):
    """One plug-in called twice, on pooled sequences, in half precision."""

    def __init__(self):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ITEMS, D, name="items", dtype="mixed_bfloat16")
        self.denoiser = SequenceDenoiser(name="d", dtype="mixed_bfloat16")

    def call(self, features, training=False):
        outs = []
        for ids in (features["click"], features["search"]):
            events = self.items(ids)
            real = tf.cast(ids != 0, events.dtype)[:, :, tf.newaxis]
            pooled = {"pooled": tf.reduce_sum(events * real, axis=1)}
            mask = {"pooled": tf.reduce_any(ids != 0, axis=1)}
            outs.append(self.denoiser(pooled, mask=mask, training=training)["pooled"])
        return tf.concat(outs, axis=-1)


def test_a_plug_in_called_twice_on_pooled_sequences_in_half_precision(batch):
    features = {**batch[0], "click": batch[0]["click"].copy()}
    features["click"][:4] = 0
    model = TwoTowers()
    model.run_eagerly = True
    check = self_check(model, features)
    assert check.passed, str(check)
    ignored = [one.outcome for one in check.findings if one.check == "padding ignored"]
    assert ignored == ["passed", "skipped"]


def test_a_sequence_too_rare_for_the_batch_is_no_detached_one(batch):
    """All rows that have it are of one user, so there is nothing to tell them from."""
    features, labels = batch
    first = np.arange(ROWS) < 4
    rare = np.where(first[:, None], features["search"], 0)
    user = np.where(first, 100, features["user"])
    model = compiled(SequenceDenoiser(name="d", exclude=(), types={"search": "like"}))
    check = self_check(model, ({**features, "search": rare, "user": user}, labels))
    assert ("valid rows", "d/search") in found(check)
    outcomes = {(one.check, one.subject): one.outcome for one in check.findings}
    assert outcomes["host gradient", "d/search"] == "skipped"
    assert outcomes["host gradient", "d/click"] == outcomes["encoder gradient", "d"] == "passed"
    assert "4 of 32 rows have events in both views, of 1 different ids" in str(check)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (np.zeros(ROWS), {"sample weights"}),
        (np.where(np.arange(ROWS) == 0, -1.0, 1.0), {"sample weights"}),
        (np.ones(ROWS), set()),
    ],
)
def test_weights_of_the_batch_are_looked_at(weights, expected, batch):
    check = self_check(compiled(SequenceDenoiser(name="d")), (*batch, weights.astype(np.float32)))
    assert {name for name, _ in found(check)} == expected
