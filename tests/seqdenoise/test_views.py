"""The contract of every kind of views, then what is particular to one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import view_oracles
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import seqdenoise
from seqdenoise import (
    correlated_field_views,
    crop_mask_reorder_views,
    dimension_views,
    dropout_views,
    event_dimension_views,
    event_views,
    feature_dropout,
    field_views,
    view_seed,
)

INFORMATION = {
    "brand": {"brand": 2.0, "item": 2.0, "price": 0.5, "shop": 0.5},
    "item": {"brand": 2.0, "item": 9.0, "price": 1.5, "shop": 1.0},
    "price": {"brand": 0.5, "item": 1.5, "price": 3.0, "shop": 0.1},
    "shop": {"brand": 0.5, "item": 1.0, "price": 0.1, "shop": 1.0},
}
SIZES = {"brand": 1, "item": 3, "price": 2, "shop": 1}
B, L, D = 9, 5, 7


@dataclass(frozen=True)
class Case:
    """A kind of views, its options, and what a view keeps or drops as one.

    `unit` is what is shared out: each dimension of a row, each dimension of an event, each event,
    or each field (then `sizes` says which dimensions make one).
    """

    name: str
    views: Callable[..., Any]
    unit: str
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] | None = None
    complementary: bool = True
    least_events: int = 1
    over_kept_events: bool = False
    scale: float = 1.0


CASES = [
    Case("dimension", dimension_views, "dimension"),
    Case("event_dimension", event_dimension_views, "dimension of an event"),
    Case("event", event_views, "event", least_events=2, over_kept_events=True),
    Case("field", field_views, "field", sizes=SIZES),
    Case("field_of_3", field_views, "field", sizes={"brand": 1, "item": 4, "price": 2}),
    Case(
        "correlated_field",
        correlated_field_views,
        "field",
        {"mutual_information": INFORMATION},
        sizes=SIZES,
    ),
    Case(
        "crop_mask_reorder",
        crop_mask_reorder_views,
        "event",
        complementary=False,
        over_kept_events=True,
    ),
    Case(
        "dropout",
        dropout_views,
        "dimension",
        {"rate": 0.25},
        complementary=False,
        scale=4 / 3,
    ),
]
every_view = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_complementary_view = pytest.mark.parametrize(
    "case", [case for case in CASES if case.complementary], ids=lambda case: case.name
)


def batch(dtype=np.float64, rows=B):
    """Sequences, and a mask with full and empty rows, padding at either end and in between."""
    rng = np.random.default_rng(0)
    mask = rng.random((rows, L)) < 0.6
    mask[:4] = [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 1, 0, 0, 0]]
    return rng.normal(size=(rows, L, D)).astype(dtype), mask


def structured(case, x):
    """`x` as the case takes it: whole, or by field in another order than that of the names."""
    if case.sizes is None:
        return x
    parts = tf.split(x, list(case.sizes.values()), axis=2)
    return dict(reversed(list(zip(case.sizes, parts, strict=True))))


def evaluate(case, x, mask, *, seed=(3, 4), jit_compile=None, **options):
    """Views, valid rows and both views' gradients, as NumPy arrays."""

    def run(x, mask, seed):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b, valid = case.views(
                structured(case, x), mask=mask, seed=seed, **{**case.options, **options}
            )
        return a, b, valid, tape.gradient(a, x), tape.gradient(b, x)

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    results = run(tf.constant(x), tf.constant(mask), tf.constant(seed))
    return [result.numpy() for result in results]


def kept(case, mask, **options):
    """What each view keeps, bool `[B, L, D]`: where its gradient on an all-ones input is not 0."""
    *_, a, b = evaluate(case, np.ones([*mask.shape, D]), mask, **options)
    return a != 0, b != 0


def expected_views(case, x, mask, kept_by_view):
    options = {"over_kept_events": case.over_kept_events, "scale": case.scale}
    return [view_oracles.pooled_view(x, mask, one, **options) for one in kept_by_view]


def shared_out(case, mask, kept_by_a):
    """Row by row, which units view A keeps, with a check that it keeps whole units."""
    shares = []
    for row, real in zip(kept_by_a, mask, strict=True):
        events = row[real]
        if not len(events):
            continue
        if case.unit == "dimension of an event":
            shares.extend(events)
        elif case.unit == "event":
            np.testing.assert_array_equal(events, events[:, :1].repeat(D, axis=1))
            shares.append(events[:, 0])
        else:
            np.testing.assert_array_equal(events, events[:1].repeat(len(events), axis=0))
            if case.unit == "field":
                starts = np.cumsum([0, *case.sizes.values()])[:-1]
                whole = np.repeat(events[0][starts], list(case.sizes.values()))
                np.testing.assert_array_equal(events[0], whole)
                shares.append(events[0][starts])
            else:
                shares.append(events[0])
    return shares


def test_every_public_kind_of_views_has_a_case():
    public = {name for name in seqdenoise.__all__ if name.endswith("_views")}
    assert public == {case.views.__name__ for case in CASES}


@every_view
def test_equals_the_oracle_in_float64(case):
    x, mask = batch()
    a, b, valid, _, _ = evaluate(case, x, mask)
    expected = expected_views(case, x, mask, kept(case, mask))
    np.testing.assert_allclose([a, b], expected, rtol=1e-12)
    np.testing.assert_array_equal(valid, mask.sum(axis=1) >= case.least_events)


@every_view
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_equals_the_oracle_of_the_same_rounded_inputs(case, dtype):
    x, mask = batch()
    x = tf.cast(x, dtype)
    a, b, _, gradient, _ = evaluate(case, x, mask)
    assert a.dtype == b.dtype == np.float32
    assert gradient.dtype == dtype.as_numpy_dtype
    wide = tf.cast(x, tf.float64).numpy()
    expected = expected_views(case, wide, mask, kept(case, mask))
    np.testing.assert_allclose([a, b], expected, rtol=1e-5, atol=1e-6)


@every_view
@given(
    hnp.arrays(np.float32, (4, L, D), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    hnp.arrays(bool, (4, L)),
    st.integers(0, 2**31 - 1),
)
def test_any_finite_batch_gives_the_oracle_s_views(case, x, mask, seed):
    a, b, valid, _, _ = evaluate(case, x, mask, seed=(seed, 1))
    expected = expected_views(case, x, mask, kept(case, mask, seed=(seed, 1)))
    # A product may take a subnormal number for 0.
    atol = 1e-5 * np.abs(x).max() + np.finfo(np.float32).tiny
    np.testing.assert_allclose([a, b], expected, rtol=1e-5, atol=atol)
    np.testing.assert_array_equal(valid, mask.sum(axis=1) >= case.least_events)


@every_view
def test_the_gradient_makes_up_the_value(case):
    # Each view is linear in the events, so its value is the sum of gradient times input.
    x, mask = batch()
    a, b, _, gradient_a, gradient_b = evaluate(case, x, mask)
    for view, gradient in ((a, gradient_a), (b, gradient_b)):
        np.testing.assert_allclose((gradient * x).sum(axis=1), view, rtol=1e-12, atol=1e-15)


@every_complementary_view
def test_views_are_disjoint_and_complete(case):
    _, mask = batch()
    a, b = kept(case, mask)
    np.testing.assert_array_equal(a ^ b, np.broadcast_to(mask[:, :, None], a.shape))


@every_complementary_view
@given(hnp.arrays(bool, (B, L)), st.integers(0, 2**31 - 1))
def test_view_a_keeps_exactly_half(case, mask, seed):
    kept_by_a, _ = kept(case, mask, seed=(seed, 2))
    for share in shared_out(case, mask, kept_by_a):
        assert share.sum() == len(share) // 2


@every_view
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e300])
def test_nothing_in_padding_matters(case, filler):
    x, mask = batch()
    expected = evaluate(case, x, mask)
    x[~mask] = filler
    for got, wanted in zip(evaluate(case, x, mask), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@every_view
def test_a_row_without_events_is_zero_and_not_valid(case):
    x, mask = batch()
    mask[:] = False
    a, b, valid, *gradients = evaluate(case, x, mask)
    assert not valid.any()
    for zeros in (a, b, *gradients):
        np.testing.assert_array_equal(zeros, np.zeros_like(zeros))


@every_view
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_a_nan_in_a_real_event_surfaces(case, jit_compile):
    x, mask = batch(np.float32)
    x[0, 2] = np.nan
    a, b, *_ = evaluate(case, x, mask, jit_compile=jit_compile)
    seen = np.isnan(np.concatenate([a, b], axis=1)).any(axis=1)
    np.testing.assert_array_equal(seen, np.arange(B) == 0)


@every_view
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager(case, jit_compile):
    x, mask = batch(np.float32)
    # An int64 seed of more than 32 bits, of which XLA must not drop any.
    seed = view_seed(5, "click", tf.constant(12, tf.int64)).numpy()
    assert np.abs(seed).max() > 2**32
    expected = evaluate(case, x, mask, seed=seed)
    results = evaluate(case, x, mask, seed=seed, jit_compile=jit_compile)
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got == 0, wanted == 0)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


@every_view
@pytest.mark.parametrize(
    ("kind", "jit_compile"),
    [(int, None), (tf.int32, None), (tf.int32, False), (tf.int32, True), (tf.int64, True)],
)
def test_rows_drawn_alone_equal_the_rows_of_the_whole_batch(case, kind, jit_compile):
    x, mask = batch(np.float32)

    def draw(x, mask, first_row):
        a, b, _ = case.views(
            structured(case, x), mask=mask, seed=[3, 4], first_row=first_row, **case.options
        )
        return a, b

    whole = [view.numpy() for view in draw(x, mask, 0)]
    if jit_compile is not None:
        draw = tf.function(draw, jit_compile=jit_compile)
    for first in (0, 1, 2, 5):
        first_row = first if kind is int else tf.constant(first, kind)
        rows = slice(first, first + 4)
        for got, expected in zip(draw(x[rows], mask[rows], first_row), whole, strict=True):
            np.testing.assert_array_equal(got == 0, expected[rows] == 0)
            np.testing.assert_allclose(got, expected[rows], rtol=1e-5, atol=1e-7)


@every_view
def test_rows_far_into_a_batch_are_reached(case):
    # 2^30 rows times their features is beyond 32 bits.
    _, mask = batch()
    far = kept(case, mask, first_row=2**30)
    np.testing.assert_array_equal(
        kept(case, mask[4:], first_row=2**30 + 4), [one[4:] for one in far]
    )
    assert not np.array_equal(far, kept(case, mask))


@every_view
def test_rows_steps_names_and_seeds_get_masks_of_their_own(case):
    mask = np.ones((64, L), bool)

    def draw(seed, name, step):
        a, _ = kept(case, mask, seed=view_seed(seed, name, tf.constant(step, tf.int64)))
        return a.reshape(len(a), -1)

    first = draw(0, "click", 0)
    assert len(np.unique(first, axis=0)) > 2
    for other in (draw(1, "click", 0), draw(0, "cart", 0), draw(0, "click", 1)):
        # Four fields have the fewest halves: two draws agree with probability 3 / 8 at most.
        assert np.all(first == other, axis=1).mean() < 0.6
    np.testing.assert_array_equal(first, draw(0, "click", 0))


@every_view
def test_global_seed_and_global_state_do_not_matter(case):
    _, mask = batch()
    tf.random.set_seed(1)
    first = kept(case, mask)
    tf.random.set_seed(2)
    tf.random.uniform([3])
    np.testing.assert_array_equal(first, kept(case, mask))


@every_view
@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_unknown_number_of_rows_and_events_makes_one_trace(case, jit_compile):
    x, mask = batch(np.float32)
    traces = []

    def run(x, mask, seed, first_row):
        traces.append(1)
        a, b, valid = case.views(
            structured(case, x), mask=mask, seed=seed, first_row=first_row, **case.options
        )
        assert a.shape[1] == b.shape[1] == D
        return a, b, valid

    compiled = tf.function(
        run,
        jit_compile=jit_compile,
        input_signature=[
            tf.TensorSpec([None, None, D]),
            tf.TensorSpec([None, None], tf.bool),
            tf.TensorSpec([2], tf.int32),
            tf.TensorSpec([], tf.int32),
        ],
    )
    for rows, length in [(B, L), (4, 3)]:
        part = x[:rows, :length], mask[:rows, :length]
        expected = evaluate(case, *part, first_row=2)
        got = compiled(*part, [3, 4], 2)
        for one, wanted in zip(got, expected, strict=False):
            np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-7)
    assert len(traces) == 1


@every_view
def test_an_empty_batch_gives_empty_views(case):
    a, b, valid, *_ = evaluate(case, np.ones((0, L, D)), np.ones((0, L), bool))
    assert a.shape == b.shape == (0, D)
    assert valid.shape == (0,)


@every_view
def test_bad_shapes_are_named(case):
    x, mask = batch(np.float32)
    call = {"seed": [0, 0], **case.options}
    for changed_x, changed_mask, message in [
        (x, mask[:4], r"`mask` must be bool of shape \(9, 5\).*Received: bool of shape \(4, 5\)"),
        (x, mask[:, :, None], r"`mask` must be bool of shape.*Received: bool of shape \(9, 5, 1\)"),
        (x, mask.astype(np.float32), "`mask` must be bool.*Received: float32"),
        (x.astype(np.int32), mask, r"must be float of shape \[B, L, D\].*Received: int32"),
    ]:
        with pytest.raises(ValueError, match=message):
            case.views(structured(case, changed_x), mask=changed_mask, **call)
    if case.sizes is None:
        with pytest.raises(ValueError, match=r"`sequence` must be .*Received: .*shape \(9, 7\)"):
            case.views(x[:, 0], mask=mask, **call)
    else:
        flat = {name: part[:, 0] for name, part in structured(case, x).items()}
        with pytest.raises(ValueError, match=r"`sequence\['brand'\]` must .*shape \(9, 1\)"):
            case.views(flat, mask=mask, **call)

    @tf.function(input_signature=[tf.TensorSpec([None, L, None])])
    def of_unknown_size(x):
        return case.views(
            dict.fromkeys(case.sizes, x) if case.sizes else x, mask=tf.ones([B, L], tf.bool), **call
        )

    with pytest.raises(ValueError, match=r"with D known. Received: .*\(None, 5, None\)"):
        of_unknown_size(x)


def test_dimension_views_add_up_to_the_pooled_sequence_exactly():
    x, mask = batch(np.float32)
    a, b, *_ = evaluate(CASES[0], x, mask)
    pooled = seqdenoise.numerics.masked_pool(tf.constant(x), tf.constant(mask)).numpy()
    np.testing.assert_array_equal(a + b, pooled)


def test_events_of_a_row_get_halves_of_their_own():
    a, _ = kept(CASES[1], np.ones((50, L), bool))
    # Two random halves of 7 agree by chance with probability 1 / 35.
    assert np.all(a[:, 0] == a[:, 1], axis=1).mean() < 0.2


def test_every_pair_of_events_is_as_likely_to_be_parted():
    a, _ = kept(CASES[2], np.tile([True, True, False, True, True], (20_000, 1)))
    a = a[:, :, 0]
    np.testing.assert_allclose(a.mean(axis=0), [0.5, 0.5, 0, 0.5, 0.5], atol=0.015)
    for i, j in [(0, 1), (0, 3), (1, 4), (3, 4)]:
        np.testing.assert_allclose((a[:, i] & a[:, j]).mean(), 1 / 6, atol=0.015)


def test_a_row_s_events_split_alike_whatever_the_other_rows_hold():
    _, mask = batch()
    whole, _ = kept(CASES[2], mask)
    mask[1:] = ~mask[1:]
    np.testing.assert_array_equal(kept(CASES[2], mask)[0][0], whole[0])


@pytest.mark.parametrize("views", [field_views, correlated_field_views])
def test_fields_lie_in_the_order_of_their_names(views):
    options = {"mutual_information": INFORMATION} if views is correlated_field_views else {}
    sizes = {"shop": 2, "price": 1, "brand": 1, "item": 3}
    fields = {
        name: tf.fill([1, 1, size], value)
        for (name, size), value in zip(sizes.items(), [4.0, 3.0, 1.0, 2.0], strict=True)
    }
    a, b, _ = views(fields, mask=[[True]], seed=[0, 1], **options)
    np.testing.assert_array_equal(a + b, [[1, 2, 2, 2, 3, 4, 4]])


def test_correlated_views_keep_the_seed_field_s_half_and_each_seed_equally_often():
    case = next(case for case in CASES if case.name == "correlated_field")
    mask = np.ones((8_000, 1), bool)
    rows = np.array(shared_out(case, mask, kept(case, mask)[0]))
    names = np.array(list(case.sizes))
    halves, counts = np.unique(rows, axis=0, return_counts=True)
    expected = {}
    for seed_field in names:
        half = tuple(sorted(view_oracles.correlated_half(list(names), INFORMATION, seed_field)))
        expected[half] = expected.get(half, 0) + 1 / len(names)
    assert len(expected) == 3
    got = {tuple(names[half]): count for half, count in zip(halves, counts, strict=True)}
    assert set(got) == set(expected)
    for half, probability in expected.items():
        np.testing.assert_allclose(got[half] / len(rows), probability, atol=0.02)


def test_too_few_fields_and_mixed_dtypes_are_refused():
    one = {"item": tf.ones([1, 1, 2])}
    for sequence, message in [
        (one, r"at least 2 fields. Received: \['item'\]"),
        (tf.ones([1, 1, 2]), "mapping from field to tensor.*Received: EagerTensor"),
        ({**one, "brand": tf.ones([1, 1, 2], tf.float64)}, "share a dtype. Received: .*float64"),
    ]:
        for views, options in [
            (field_views, {}),
            (correlated_field_views, {"mutual_information": {"item": {}}}),
        ]:
            with pytest.raises(ValueError, match=message):
                views(sequence, mask=[[True]], seed=[0, 0], **options)


def test_mutual_information_of_other_fields_is_refused():
    fields = {"item": tf.ones([1, 1, 2]), "brand": tf.ones([1, 1, 2])}
    with pytest.raises(ValueError, match=r"must name the fields \['brand', 'item'\].*Received: "):
        correlated_field_views(
            fields, mask=[[True]], seed=[0, 0], mutual_information={"item": {"shop": 1.0}}
        )


@pytest.mark.parametrize("views", [dimension_views, event_dimension_views])
def test_a_single_dimension_cannot_be_shared_out(views):
    with pytest.raises(ValueError, match=r"at least 2 features.*Received: num_features=1"):
        views(tf.ones([1, 1, 1]), mask=[[True]], seed=[0, 0])


def test_the_two_dropout_passes_are_independent():
    case = CASES[-1]
    a, b = (one[:, 0] for one in kept(case, np.ones((8_000, 1), bool)))
    for pass_ in (a, b):
        np.testing.assert_allclose(pass_.mean(axis=0), np.full(D, 0.75), atol=0.02)
        np.testing.assert_allclose((pass_[:, 0] & pass_[:, 1]).mean(), 0.75**2, atol=0.02)
        np.testing.assert_allclose((pass_[1:] & pass_[:-1]).mean(), 0.75**2, atol=0.01)
    np.testing.assert_allclose((a & b).mean(), 0.75**2, atol=0.01)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_dropout_rates_out_of_range_are_refused(rate):
    for call in (
        lambda: dropout_views(tf.ones([1, 1, 2]), mask=[[True]], seed=[0, 0], rate=rate),
        lambda: feature_dropout(tf.ones([1, 2]), rate=rate, seed=[0, 0]),
    ):
        with pytest.raises(ValueError, match=r"`rate` must be in \[0, 1\). Received: "):
            call()


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32, tf.float16])
def test_feature_dropout_scales_what_it_keeps(dtype):
    x = tf.constant(np.random.default_rng(0).normal(size=(40, D)), dtype)
    out = feature_dropout(x, rate=0.4, seed=[0, 1])
    assert out.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
    dropped = out.numpy() == 0
    assert 0.3 < dropped.mean() < 0.5
    wide = tf.cast(x, tf.float64).numpy()
    expected = np.where(dropped, 0, wide / 0.6)
    np.testing.assert_allclose(out, expected, rtol=1e-15 if dtype == tf.float64 else 1e-6)
    np.testing.assert_array_equal(
        feature_dropout(x[7:], rate=0.4, seed=[0, 1], first_row=7), out[7:]
    )


def test_feature_dropout_hides_nan_in_what_it_drops_only():
    x = tf.fill([200, 2], float("nan"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = feature_dropout(x, rate=0.5, seed=[0, 1])
    assert set(np.unique(np.nan_to_num(out.numpy(), nan=-1.0))) == {-1.0, 0.0}
    gradient = tape.gradient(out, x).numpy()
    np.testing.assert_array_equal(gradient, np.where(np.isnan(out), 2.0, 0.0))


def test_a_mask_then_dropout_with_a_seed_for_each_view():
    case = CASES[0]
    x, mask = np.ones((3_000, 1, D), np.float32), np.ones((3_000, 1), bool)
    a, b, *_ = evaluate(case, x, mask)
    dropped_a, dropped_b = (
        feature_dropout(view, rate=0.25, seed=seed).numpy()
        for view, seed in ((a, [0, 1]), (b, [0, 2]))
    )
    np.testing.assert_array_equal((dropped_a != 0) & (a == 0), np.zeros_like(a, bool))
    np.testing.assert_allclose((dropped_a != 0).sum() / (a != 0).sum(), 0.75, atol=0.02)
    np.testing.assert_allclose(dropped_a.sum() / a.sum(), 1.0, atol=0.03)
    np.testing.assert_allclose((dropped_b != 0).sum() / (b != 0).sum(), 0.75, atol=0.02)


def test_feature_dropout_names_a_bad_shape():
    with pytest.raises(
        ValueError, match=r"`x` must have shape \[B, D\].*Received: shape \(2, 3, 4"
    ):
        feature_dropout(tf.ones([2, 3, 4]), rate=0.1, seed=[0, 0])
