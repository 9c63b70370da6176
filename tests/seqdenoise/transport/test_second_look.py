import numpy as np
import pytest
import tensorflow as tf
import transport_oracles as oracles

from seqdenoise.transport import keep_scores, second_look_scores

B, M, D = 6, 3, 4
LENGTHS = {"click": 5, "cart": 4}
OPTIONS = {"epsilon": 0.2, "relaxation": 0.3, "num_iterations": 300}


def batch(seed=0):
    rng = np.random.default_rng(seed)
    events = {name: rng.normal(size=(B, length, D)) for name, length in LENGTHS.items()}
    masks = {name: rng.random((B, length)) < 0.7 for name, length in LENGTHS.items()}
    masks["cart"][0] = False
    trusted, trusted_mask = rng.normal(size=(B, M, D)), rng.random((B, M)) < 0.6
    trusted_mask[1], trusted_mask[0, 0] = False, True
    return events, masks, trusted, trusted_mask


def first_scores(events, masks, trusted, trusted_mask, **options):
    given = {"trusted_mask": tf.constant(trusted_mask), **options}
    return {
        name: keep_scores(events[name], trusted, mask=tf.constant(masks[name]), **given)
        for name in events
    }


def second(events, masks, trusted, trusted_mask, first=None, **options):
    options = {**OPTIONS, **options}
    if first is None:
        first = first_scores(events, masks, trusted, trusted_mask, **options)
    return second_look_scores(
        tf.nest.map_structure(tf.constant, events),
        tf.constant(trusted),
        masks=tf.nest.map_structure(tf.constant, masks),
        trusted_mask=tf.constant(trusted_mask),
        first_scores=first,
        **options,
    )


def test_equals_the_plan_onto_trusted_events_and_weighted_noisy_ones():
    call = batch()
    events, masks, trusted, trusted_mask = call
    first = first_scores(*call, **OPTIONS)
    got = second(*call)
    for name in events:
        expected = masks[name].astype(float)
        for row in range(B):
            own = [(name, i) for i in np.flatnonzero(masks[name][row])]
            if not own or not trusted_mask[row].any():
                continue
            columns = [("trusted", j) for j in np.flatnonzero(trusted_mask[row])]
            mass = [1.0] * len(columns)
            for other in events:
                for j in np.flatnonzero(masks[other][row]):
                    columns.append((other, j))
                    mass.append(float(first[other][row, j]))
            source = {**events, "trusted": trusted}
            cost = oracles.cosine_cost(
                [source[kind][row, i] for kind, i in own],
                [source[kind][row, j] for kind, j in columns],
            )
            for i, one in enumerate(own):
                cost[i, columns.index(one)] = 2 + 10 * OPTIONS["epsilon"]
            plan, *_ = oracles.solve(
                cost,
                np.full(len(own), 1 / len(own)),
                np.array(mass) / sum(mass),
                OPTIONS["epsilon"],
                OPTIONS["relaxation"],
                tolerance=1e-9,
            )
            expected[row, masks[name][row]] = np.minimum(plan.sum(1) * len(own), 1)
        np.testing.assert_allclose(got[name], expected, atol=1e-6)


def test_an_event_that_resembles_a_matched_event_gains_and_noise_does_not_vouch_for_itself():
    # The trusted event is at 0 degrees, and events lie at 30, 60 and, alone, at 180.
    def at(*degrees):
        angles = np.deg2rad(degrees)
        return np.stack([np.cos(angles), np.sin(angles)], axis=-1)[np.newaxis]

    events, masks = {"click": at(30, 60, 180)}, {"click": np.ones((1, 3), bool)}
    call = events, masks, at(0), np.ones((1, 1), bool)
    options = {"epsilon": 0.1}
    first = first_scores(*call, **{**OPTIONS, **options})["click"][0].numpy()
    again = second(*call, **options)["click"][0].numpy()
    assert again[1] > first[1] + 0.1  # the event at 60 has the one at 30 for a witness
    assert again[2] < 0.05


def test_padding_changes_nothing_and_real_nans_surface():
    call = batch()
    events, masks, trusted, trusted_mask = call
    dirty = {name: np.where(masks[name][..., None], x, np.nan) for name, x in events.items()}
    dirty_trusted = np.where(trusted_mask[..., None], trusted, np.inf)
    clean = second(*call)
    for name, got in second(dirty, masks, dirty_trusted, trusted_mask).items():
        np.testing.assert_array_equal(got, clean[name])
        np.testing.assert_array_equal(got.numpy()[~masks[name]], 0)
        np.testing.assert_array_equal(got.numpy()[1], masks[name][1])  # no trusted event
    broken = trusted.copy()
    broken[2] = np.nan
    assert trusted_mask[2].any()
    assert masks["click"][2].any()
    assert np.isnan(second(events, masks, broken, trusted_mask)["click"].numpy()[2]).any()


@pytest.mark.parametrize("epsilon", [1e-3, 0.03, 1.0])
def test_scores_are_finite_and_in_range_at_any_epsilon(epsilon):
    events, masks, trusted, trusted_mask = batch()
    half = {name: x.astype(np.float32) for name, x in events.items()}
    got = second(
        half, masks, trusted.astype(np.float32), trusted_mask, epsilon=epsilon, num_iterations=20
    )
    for scores in got.values():
        assert scores.dtype == tf.float32
        assert ((scores.numpy() >= 0) & (scores.numpy() <= 1)).all()
    for name, scores in got.items():
        assert scores.numpy()[masks[name]].max() > 0.1
