import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from pipelines.inspection.distances import Cloud, exact_distance, type_distances


def directions(*degrees):
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def test_by_hand():
    # 0 and 90 degrees to 0 and 60: 0 stays (cost 0), 90 goes to 60 (1 - cos 30).
    expected = (0 + (1 - np.sqrt(3) / 2)) / 2
    actual = exact_distance(directions(0, 90), directions(60, 0))
    np.testing.assert_allclose(actual, expected, atol=1e-12)
    # Two thirds of the mass of one vector must go to each of the others: 2 to 3.
    # 0 and 180 to 0, 0, 180: a third of 180's half... the sixth that 0 lacks comes from 180.
    actual = exact_distance(directions(0, 180), directions(0, 0, 180))
    np.testing.assert_allclose(actual, (1 / 6) * 2, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_equal_sizes_are_an_assignment(seed):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, 17, 5))
    cost = np.array([[1 - a @ b / np.sqrt((a @ a) * (b @ b)) for b in y] for a in x])
    rows, columns = linear_sum_assignment(cost)
    expected = cost[rows, columns].mean()
    np.testing.assert_allclose(exact_distance(x, y), expected, atol=1e-10)
    lengths = random.uniform(0.01, 1e6, (17, 1))
    np.testing.assert_allclose(exact_distance(x * lengths, y), expected, atol=1e-10)


def test_a_zero_vector_has_no_direction():
    np.testing.assert_allclose(exact_distance([[0.0, 0.0]], directions(0, 180)), 1.0)


def clouds(random, rows=6, width=4):
    """Two types with a row without the one, a row without the other, and NaN in padding."""
    result = {}
    for kind, empty in (("click", 1), ("cart", 3)):
        events = random.normal(size=(rows, width, 3)).astype(np.float32)
        mask = np.arange(width) < random.integers(1, width + 1, rows)[:, None]
        mask[empty] = False
        events[~mask] = np.nan
        result[kind] = Cloud(events, mask)
    return result


def test_type_distances_by_loops():
    both = clouds(np.random.default_rng(0))
    (found,) = type_distances(both, [("click", "cart")])
    rows = [0, 2, 4, 5]

    def mean(trusted_rows):
        return np.mean(
            [
                exact_distance(
                    both["click"].events[i][both["click"].mask[i]],
                    both["cart"].events[j][both["cart"].mask[j]],
                )
                for i, j in zip(rows, trusted_rows, strict=True)
            ]
        )

    assert found.num_rows == 4
    np.testing.assert_allclose(found.own, mean(rows))
    np.testing.assert_allclose(found.others, mean([2, 4, 5, 0]))
    # All events fit into the draw, so the pooled distance is that of all of them.
    click, cart = (both[kind].events[both[kind].mask] for kind in ("click", "cart"))
    assert found.num_events == (len(click), len(cart))
    np.testing.assert_allclose(found.pooled, exact_distance(click, cart))


def test_the_pooled_draw_follows_the_seed():
    both = clouds(np.random.default_rng(1), rows=30)
    one, same, other = (
        type_distances(both, [("click", "cart")], max_events=9, seed=seed)[0] for seed in (0, 0, 1)
    )
    assert one == same
    assert one.num_events == (9, 9)
    assert one.pooled != other.pooled
    assert one.own == other.own


def test_nothing_to_compare_is_nan():
    both = clouds(np.random.default_rng(2))
    nothing = Cloud(both["cart"].events, np.zeros_like(both["cart"].mask))
    (found,) = type_distances({**both, "cart": nothing}, [("click", "cart")])
    assert found.num_rows == 0
    assert np.isnan([found.own, found.others, found.pooled]).all()
    one_row = {kind: Cloud(cloud.events[:1], cloud.mask[:1]) for kind, cloud in both.items()}
    (found,) = type_distances(one_row, [("click", "cart")])
    assert found.num_rows == 1
    assert np.isnan(found.others)
    np.testing.assert_allclose(found.own, found.pooled)
