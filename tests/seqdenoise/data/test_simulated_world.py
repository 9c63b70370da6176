import numpy as np
import pytest
from scipy import stats

from seqdenoise.data.simulated_world import (
    CategorySampler,
    Population,
    draw_catalogue,
    draw_population,
)
from seqdenoise.data.simulation_spec import SimulationSpec


def draw(**parameters):
    spec = SimulationSpec(num_users=500, num_items=300, num_categories=9, **parameters)
    catalogue = draw_catalogue(spec, np.random.default_rng(0))
    rngs = np.random.default_rng(1), np.random.default_rng(2)
    return catalogue, draw_population(spec, catalogue, *rngs)


def test_catalogue_is_long_tailed_and_complete():
    catalogue, _ = draw()
    popularity = np.sort(catalogue.popularity)[::-1]
    np.testing.assert_allclose(popularity.sum(), 1)
    np.testing.assert_allclose(popularity[0] / popularity[89], 100 / 11)
    assert set(catalogue.category) == set(range(9))
    # A brand belongs to one category.
    pairs = set(zip(catalogue.brand, catalogue.category, strict=True))
    assert len(pairs) == len({brand for brand, _ in pairs}) > 9
    assert abs(np.corrcoef(catalogue.quality, np.log(catalogue.popularity))[0, 1] - 0.3) < 0.15


@pytest.mark.parametrize("drift_rate", [0.0, 0.1, 1.0])
def test_attention_is_distinct_and_drifts_at_its_rate(drift_rate):
    attention = draw(drift_rate=drift_rate)[1].attention
    assert attention.shape == (14, 500, 4)
    for row in attention.reshape(-1, 4):
        assert len(set(row)) == 4
    changed = (attention[1:] != attention[:-1]).mean()
    # Not every draw is a change: some of them are places the user already has.
    assert 0.3 * drift_rate <= changed <= drift_rate
    if drift_rate == 1.0:
        assert len(np.unique(attention[-1])) == 9


def test_affinity_decays_with_the_place_and_is_0_for_a_distraction():
    attention = np.array([[[4, 2, 7, 1]], [[2, 4, 0, 7]]])  # two days, one user
    none = np.zeros(1)
    population = Population(
        segment=none.astype(int),
        activity=none.astype(int),
        activity_factor=none,
        bias=none,
        attention=attention,
    )
    day = np.array([0, 0, 0, 0, 0, 1, 1, 1, 5])
    category = np.array([4, 2, 7, 1, 3, 4, 2, 7, 0])
    actual = population.affinity(day, np.zeros(9, dtype=int), category)
    np.testing.assert_allclose(actual, [1, 0.6, 0.36, 0, 0, 0.6, 1, 0, 0.36])
    assert population.distraction(np.array([0, 9]), np.zeros(2, dtype=int)).tolist() == [1, 7]


def test_segments_lean_to_different_categories():
    _, population = draw(drift_rate=0.0)
    first = population.attention[0, :, 0]
    counts = [np.bincount(first[population.segment == s], minlength=9) for s in range(6)]
    # Independent of the segment, this would happen once in a million worlds.
    assert stats.chi2_contingency(np.array(counts)).pvalue < 1e-6


def test_category_sampler_draws_by_weight_within_the_category():
    category = np.array([1, 0, 1, 2, 1])
    weight = np.array([1.0, 5.0, 2.0, 0.1, 7.0])
    sampler = CategorySampler(category, weight)
    rng = np.random.default_rng(0)
    drawn = sampler.draw(np.repeat([0, 1, 2], 20_000), rng)
    assert set(drawn[:20_000]) == {1}
    assert set(drawn[40_000:]) == {3}
    share = np.bincount(drawn[20_000:40_000], minlength=5) / 20_000
    np.testing.assert_allclose(share, [0.1, 0, 0.2, 0, 0.7], atol=0.015)
