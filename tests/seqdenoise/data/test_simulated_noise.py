import numpy as np
import pytest

from seqdenoise.data.simulated_noise import draw_matched, draw_noise, num_noise_events
from seqdenoise.data.simulated_world import draw_catalogue, draw_population
from seqdenoise.data.simulation_spec import SimulationSpec

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("num_real", "noise_rate", "expected"),
    [(700, 0.3, 300), (500, 0.5, 500), (100, 0.0, 0), (0, 0.9, 0), (90, 0.1, 10)],
)
def test_number_of_noise_events(num_real, noise_rate, expected):
    assert num_noise_events(num_real, noise_rate) == expected


def test_matched_item_is_a_rank_neighbour_of_its_category_with_the_host_s_rank_on_average():
    #                     item: 0  1  2  3  4  5  6  7
    category = np.array([0, 1, 0, 0, 1, 0, 0, 1])
    popularity = np.array([10, 20, 30, 40, 50, 60, 70, 80])  # so rank == item
    rng = np.random.default_rng(0)

    def swap(host, target, size=4000):
        drawn = draw_matched(
            np.full(size, host),
            np.full(size, target),
            category=category,
            popularity=popularity,
            rng=rng,
        )
        return drawn, set(drawn.tolist())

    drawn, values = swap(host=2, target=1)  # ranks 1 and 4 enclose 2: odds 2 to 1
    assert values == {1, 4}
    assert abs(drawn.mean() - 2) < 0.1
    drawn, values = swap(host=6, target=1)
    assert values == {4, 7}
    assert abs(drawn.mean() - 6) < 0.1
    # Past the ends of the category: its outermost item.
    assert swap(host=0, target=1)[1] == {1}
    assert swap(host=7, target=0)[1] == {6}


def test_matched_breaks_ties_at_random():
    category = np.array([0] + [1] * 9)
    popularity = np.ones(10)
    drawn = {
        draw_matched(
            np.array([0]),
            np.array([1]),
            category=category,
            popularity=popularity,
            rng=np.random.default_rng(seed),
        ).item()
        for seed in range(200)
    }
    assert drawn == set(range(1, 10))


@pytest.fixture(scope="module")
def world():
    spec = SimulationSpec(num_users=200, num_items=400, num_categories=10, drift_rate=0.3)
    catalogue = draw_catalogue(spec, np.random.default_rng(0))
    rngs = np.random.default_rng(1), np.random.default_rng(2)
    return spec, catalogue, draw_population(spec, catalogue, *rngs)


def lay(world, kind, size=3000):
    spec, catalogue, population = world
    rng = np.random.default_rng(3)
    user, item = rng.integers(200, size=size), rng.integers(400, size=size)
    offset = rng.integers(14 * DAY_MS, size=size)
    spec = SimulationSpec(
        num_users=200, num_items=400, num_categories=10, noise_rate=0.5, noise_kinds={kind: 1.0}
    )
    noise = draw_noise(
        spec,
        catalogue,
        population,
        user=user,
        item=item,
        offset=offset,
        event_count=np.bincount(item, minlength=400),
        rng=rng,
    )
    return noise, user, offset


def test_matched_noise_is_outside_the_interests_of_its_own_day(world):
    _, catalogue, population = world
    noise, _, _ = lay(world, "matched")
    assert len(noise.item) == 3000
    for user, item, offset in zip(noise.user, noise.item, noise.offset, strict=True):
        day = min(offset // DAY_MS, 13)
        *interests, distraction = population.attention[day, user]
        assert catalogue.category[item] not in interests
        assert catalogue.category[item] == distraction


def test_random_noise_is_uniform_and_popular_noise_follows_popularity(world):
    _, catalogue, _ = world
    uniform = np.bincount(lay(world, "random", size=40_000)[0].item, minlength=400)
    popular = np.bincount(lay(world, "popular", size=40_000)[0].item, minlength=400)
    for count, expected in (
        (uniform, np.full(400, 100.0)),
        (popular, 40_000 * catalogue.popularity),
    ):
        # Chi-square with 399 degrees of freedom: mean 399, standard deviation 28.
        assert ((count - expected) ** 2 / expected).sum() < 399 + 5 * 28


def test_noise_borrows_user_and_time_from_a_real_event(world):
    noise, user, offset = lay(world, "random")
    times = {}
    for u, t in zip(user, offset, strict=True):
        times.setdefault(u, []).append(t)
    for u, t in zip(noise.user, noise.offset, strict=True):
        assert min(abs(t - host) for host in times[u]) <= 3_600_000
    assert noise.offset.min() >= 0
    assert len(set(noise.offset) & set(offset)) < 30  # jittered, not copied


def test_no_real_events_no_noise(world):
    noise, _, _ = lay(world, "matched", size=0)
    assert len(noise.user) == len(noise.item) == len(noise.offset) == len(noise.kind) == 0
