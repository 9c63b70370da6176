"""What the debiased loss's paper proves, on distributions whose expectations are finite sums.

Points on a circle: an anchor's class has the prior `tau_plus`, all other classes the rest. The
representation is the identity and the temperature 1. A positive is drawn from the anchor's class, a
true negative from the others, and what a batch offers as a negative from both. The statements hold
for each anchor, so one class of anchors is enough. `L_debiased^{N,M}` is the library's loss, its
expectation taken over every possible draw of N negatives and M positives.

Chuang, Robinson, Lin, Torralba, Jegelka (2020), "Debiased Contrastive Learning", sections 3 and 4.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise import debiased_loss

SLACK = math.exp(1.5) * math.sqrt(math.pi / 2)


@dataclass(frozen=True)
class Toy:
    """Points by their angles in degrees, with their probabilities given the class."""

    same: tuple[float, ...]
    others: tuple[float, ...]
    same_weights: tuple[float, ...]
    others_weights: tuple[float, ...]
    tau_plus: float

    @property
    def anchors(self):
        """Every pair of an anchor and a positive of its class, with its probability."""
        weighted = list(zip(on_circle(self.same), self.same_weights, strict=True))
        return [(x, y, p * q) for (x, p), (y, q) in itertools.product(weighted, weighted)]

    @property
    def marginal(self):
        weights = [self.tau_plus * w for w in self.same_weights]
        weights += [(1 - self.tau_plus) * w for w in self.others_weights]
        return on_circle((*self.same, *self.others)), weights

    @property
    def positives(self):
        return on_circle(self.same), self.same_weights

    @property
    def true_negatives(self):
        return on_circle(self.others), self.others_weights


def on_circle(degrees):
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def mean_exp(anchor, distribution):
    points, weights = distribution
    return sum(w * math.exp(anchor @ point) for point, w in zip(points, weights, strict=True))


def loss_of_means(anchor, positive, num_negatives, mean):
    return math.log1p(num_negatives * mean / math.exp(anchor @ positive))


def asymptotic(toy, num_negatives, mean_of):
    """The expected loss where the mean over the negatives is an expectation."""
    return sum(
        p * loss_of_means(x, positive, num_negatives, mean_of(x)) for x, positive, p in toy.anchors
    )


@tf.function(reduce_retracing=True)
def _library(anchor, positive, negatives, more, tau_plus):
    view_a = tf.concat([anchor[:, tf.newaxis], negatives], axis=1)
    view_b = tf.concat([positive[:, tf.newaxis], negatives], axis=1)
    # The rows of the negatives are no anchors, and what their own positives are does not matter.
    more = tf.tile(more[:, tf.newaxis], [1, tf.shape(view_a)[1], 1, 1])

    def one(draw):
        first = tf.range(tf.shape(draw[0])[0]) == 0
        return debiased_loss(
            draw[0],
            draw[1],
            mask=tf.ones_like(first),
            weights=tf.cast(first, tf.float64),
            more_positives=draw[2],
            temperature=1.0,
            tau_plus=tau_plus,
        )

    return tf.vectorized_map(one, (view_a, view_b, more))


def library(anchor, positive, negatives, more, tau_plus):
    """The loss of one anchor per draw: `[R, d]`, `[R, d]`, `[R, N, d]` and `[R, M - 1, d]`."""
    arrays = (tf.constant(x, tf.float64) for x in (anchor, positive, negatives, more))
    return _library(*arrays, tf.constant(tau_plus, tf.float64)).numpy()


def all_draws(distribution, size):
    """Every multiset of `size` points, `[R, size, 2]`, with its probability."""
    points, weights = distribution
    draws, probabilities = [], []
    for drawn in itertools.combinations_with_replacement(range(len(points)), size):
        counts = [drawn.count(k) for k in range(len(points))]
        probability = float(math.factorial(size))
        for count, weight in zip(counts, weights, strict=True):
            probability *= weight**count / math.factorial(count)
        draws.append(points[list(drawn)])
        probabilities.append(probability)
    return np.reshape(draws, (len(draws), size, 2)), np.array(probabilities)


def every_loss(toy, num_negatives, num_positives=1, *, negatives, tau_plus):
    """The library's loss of every draw of anchor, positives and negatives, with probabilities."""
    drawn, p_drawn = all_draws(negatives, num_negatives)
    more, p_more = all_draws(toy.positives, num_positives - 1)
    inputs, probabilities = [], []
    for (x, positive, p), i, j in itertools.product(
        toy.anchors, range(len(drawn)), range(len(more))
    ):
        inputs.append((x, positive, drawn[i], more[j]))
        probabilities.append(p * p_drawn[i] * p_more[j])
    anchor, positive, drawn, more = (np.stack(parts) for parts in zip(*inputs, strict=True))
    probabilities = np.array(probabilities)
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-9)
    return library(anchor, positive, drawn, more, tau_plus), probabilities


def expectation(toy, num_negatives, num_positives=1, *, negatives, tau_plus):
    losses, probabilities = every_loss(
        toy, num_negatives, num_positives, negatives=negatives, tau_plus=tau_plus
    )
    return losses @ probabilities


def biased(toy, n):
    return expectation(toy, n, negatives=toy.marginal, tau_plus=0.0)


def unbiased(toy, n):
    return expectation(toy, n, negatives=toy.true_negatives, tau_plus=0.0)


def debiased(toy, n, m):
    return expectation(toy, n, m, negatives=toy.marginal, tau_plus=toy.tau_plus)


ANYWHERE = st.integers(0, 359)
ANY_PRIOR = st.floats(0.02, 0.9)


def toys(same=ANYWHERE, others=ANYWHERE, tau_plus=ANY_PRIOR):
    share = st.floats(0.05, 0.95)
    return st.builds(
        lambda same, others, p, q, tau_plus: Toy(same, others, (p, 1 - p), (q, 1 - q), tau_plus),
        st.tuples(same, same),
        st.tuples(others, others),
        share,
        share,
        tau_plus,
    )


@given(toys(), st.sampled_from([1, 4, 8]))
def test_lemma_1(toy, n):
    drop = sum(
        p * min(0.0, math.log(mean_exp(x, toy.positives) / mean_exp(x, toy.true_negatives)))
        for x, _, p in toy.anchors
    )
    assert biased(toy, n) >= unbiased(toy, n) + drop - SLACK / math.sqrt(n)


@given(toys(), st.sampled_from([(1, 1), (4, 2), (8, 4)]))
def test_theorem_3(toy, sizes):
    n, m = sizes
    losses, probabilities = every_loss(toy, n, m, negatives=toy.marginal, tau_plus=toy.tau_plus)
    limit = asymptotic(toy, n, lambda x: mean_exp(x, toy.true_negatives))
    bound = SLACK / math.sqrt(n) + SLACK * toy.tau_plus / math.sqrt(m)
    assert abs(losses @ probabilities - limit) <= bound / (1 - toy.tau_plus)


def representative(toy):
    """Eight negatives and a second positive for each anchor's, each point as often as it should be.

    One negative in four is of the anchor's class, as the prior of 1/4 says.
    """
    negatives = np.repeat(on_circle((*toy.same, *toy.others)), [1, 1, 3, 3], axis=0)
    first, second = on_circle(toy.same)
    return negatives, lambda positive: second if np.array_equal(positive, first) else first


@given(st.tuples(ANYWHERE, ANYWHERE), st.tuples(ANYWHERE, ANYWHERE))
def test_a_representative_draw_gives_the_limit_exactly(same, others):
    # Nothing is left of the bounds' slack then, and Lemma 1 must hold without it.
    toy = Toy(same, others, (0.5, 0.5), (0.5, 0.5), 0.25)
    negatives, other = representative(toy)
    for x, positive, _ in toy.anchors:
        draw = [[x], [positive], [negatives], [[other(positive)]]]
        limit = loss_of_means(x, positive, 8, mean_exp(x, toy.true_negatives))
        np.testing.assert_allclose(library(*draw, tau_plus=0.25)[0], limit, rtol=1e-12)
        ratio = mean_exp(x, toy.positives) / mean_exp(x, toy.true_negatives)
        with_bias = library(*draw, tau_plus=0.0)[0]
        assert with_bias >= limit + min(0.0, math.log(ratio)) - 1e-12
        assert (with_bias > limit) == (ratio > 1) or math.isclose(ratio, 1)


@given(
    toys(same=st.integers(0, 40), others=st.integers(80, 320), tau_plus=st.floats(0.05, 0.5)),
    st.sampled_from([(4, 2), (8, 4)]),
)
def test_the_debiased_loss_is_nearer_the_unbiased_one_than_the_biased_loss_is(toy, sizes):
    n, m = sizes
    target = unbiased(toy, n)
    assert biased(toy, n) > target
    assert abs(debiased(toy, n, m) - target) < biased(toy, n) - target


def test_the_gap_falls_as_the_batch_grows_and_the_bias_does_not():
    toy = Toy((0, 40), (60, 100), (0.5, 0.5), (0.5, 0.5), 0.1)
    gaps, biases = [], []
    for n, m in [(2, 1), (4, 2), (8, 4)]:
        limit = asymptotic(toy, n, lambda x: mean_exp(x, toy.true_negatives))
        gaps.append(abs(debiased(toy, n, m) - limit))
        biases.append(biased(toy, n) - unbiased(toy, n))
    assert gaps == sorted(gaps, reverse=True)
    assert biases == sorted(biases)
    assert gaps[-1] < 0.15 * biases[-1]


@pytest.mark.parametrize("grows", ["negatives", "positives"])
def test_a_draw_s_deviation_falls_as_one_over_the_square_root(grows):
    # From 16 negatives or positives to four times as many, the others representative.
    toy = Toy((0, 80), (50, 120), (0.5, 0.5), (0.5, 0.5), 0.25)
    rng = np.random.default_rng(0)
    draws = 1000
    deviations = []
    for size in (16, 64):
        total = 0.0
        for x, positive, p in toy.anchors:
            negatives, other = representative(toy)
            more = other(positive)[np.newaxis]
            if grows == "negatives":
                points, weights = toy.marginal
                negatives = points[rng.choice(4, (draws, size), p=weights)]
                more = np.tile(more, (draws, 1, 1))
            else:
                points, weights = toy.positives
                more = points[rng.choice(2, (draws, size - 1), p=weights)]
                negatives = np.tile(negatives, (draws, 1, 1))
            rows = np.tile(x, (draws, 1)), np.tile(positive, (draws, 1))
            losses = library(*rows, negatives, more, tau_plus=0.25)
            limit = loss_of_means(x, positive, negatives.shape[1], mean_exp(x, toy.true_negatives))
            total += p * np.abs(losses - limit).mean()
        deviations.append(total)
    assert 1.8 < deviations[0] / deviations[1] < 2.2
