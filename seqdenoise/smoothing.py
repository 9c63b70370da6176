"""A prediction by vote over random transformations, and how sure the vote is."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from scipy import stats

from seqdenoise.numerics import Tensor
from seqdenoise.views import view_seed


class SmoothedPrediction(NamedTuple):
    """What a vote over random transformations says of each row.

    Attributes:
        classes: int64 `[B]`, the class that won the selection votes.
        vote_share: float64 `[B]` in [0, 1], the share of the other votes that it won: an unbiased
            estimate of its probability under a random transformation.
        lower_bound: float64 `[B]` in [0, 1], below that probability at the stated confidence.
    """

    classes: NDArray[np.int64]
    vote_share: NDArray[np.float64]
    lower_bound: NDArray[np.float64]


def _votes(
    predict_fn: Callable[[Tensor], Any], num_votes: int, seed: int, name: str
) -> Iterator[NDArray[np.int64]]:
    for vote in range(num_votes):
        classes = np.asarray(predict_fn(view_seed(seed, name, tf.constant(vote, tf.int64))))
        if classes.ndim != 1 or classes.dtype.kind not in "iu":
            raise ValueError(
                "`predict_fn` must return int of shape [B]. "
                f"Received: {classes.dtype} of shape {classes.shape}"
            )
        yield classes.astype(np.int64)


def smoothed_prediction(
    predict_fn: Callable[[Tensor], Any],
    *,
    num_votes: int = 1000,
    num_selection_votes: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
) -> SmoothedPrediction:
    r"""The class each row gets most often under random transformations, and how often it does.

    $$ S(x) = \arg\max_c P_{t \sim T}\big(\arg\max_k \ell_k(f(t(x))) = c\big) $$

    is estimated by the class with the most of `num_selection_votes` votes (the smallest class of
    those that tie). Its probability is then estimated on `num_votes` *other* votes, with the
    one-sided Clopper-Pearson bound

    $$ \underline{p} = B^{-1}(1 - confidence;\ k,\ n - k + 1) $$

    for `k` of `n` votes won, `B^{-1}` the quantile of the beta distribution, and 0 for `k = 0`. The
    bound holds for each row on its own: a share of up to `1 - confidence` of many rows may lie
    below theirs. It says how stable the prediction is under the transformations, not how likely it
    is to be right.

    The votes must not be shared: the winner of a vote is likelier than not to have been lucky in
    it, and its share of that same vote overstates its probability.

    Args:
        predict_fn: Maps a seed, int `[2]`, to int `[B]`, the class of every row under one random
            transformation drawn with that seed, for instance under one draw of masks. Called
            `num_selection_votes + num_votes` times with different seeds.
        num_votes: Votes that estimate, at least 1. With all of them won the bound is `(1 -
            confidence) ** (1 / num_votes)`, the highest there is.
        num_selection_votes: Votes that select, at least 1.
        confidence: Probability, in (0, 1), with which the bound of a row holds.
        seed: Seed of all votes.

    Returns:
        A `SmoothedPrediction`.

    Raises:
        ValueError: An argument is out of range or the predictions have another shape.

    References:
        Cohen, Rosenfeld, Kolter (2019), "Certified Adversarial Robustness via Randomized
        Smoothing", section 3.2, whose transformation is Gaussian noise; we abstain from nothing and
        derive no radius. Kim, Tack, Hwang (2020), "Adversarial Self-Supervised Contrastive
        Learning" (transformation smoothed inference). Clopper, Pearson (1934), "The Use of
        Confidence or Fiducial Limits Illustrated in the Case of the Binomial".

    Example:
        >>> def predict_fn(seed):  # row 0 is always of class 4, row 1 of class 0 or 1
        ...     coin = tf.random.stateless_uniform([], seed, maxval=2, dtype=tf.int32)
        ...     return tf.stack([4, coin])
        >>> classes, vote_share, lower_bound = smoothed_prediction(predict_fn, num_votes=50)
        >>> int(classes[0]), float(vote_share[0]), round(float(lower_bound[0]), 3)
        (4, 1.0, 0.942)
        >>> bool(0.3 < vote_share[1] < 0.7), bool(lower_bound[1] < 0.6)
        (True, True)
    """
    for name, count in [("num_votes", num_votes), ("num_selection_votes", num_selection_votes)]:
        if count < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {count}")
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be above 0 and below 1. Received: {confidence}")
    selection = np.stack(list(_votes(predict_fn, num_selection_votes, seed, "selection")))
    classes = stats.mode(selection, axis=0).mode
    won = np.zeros(len(classes), np.int64)
    for votes in _votes(predict_fn, num_votes, seed, "estimation"):
        if votes.shape != classes.shape:
            raise ValueError(
                "`predict_fn` must return as many rows at every call. "
                f"Received: {len(classes)} and {len(votes)}"
            )
        won += votes == classes
    # The quantile is NaN at k = 0, where no probability is ruled out.
    bound = stats.beta.ppf(1 - confidence, np.maximum(won, 1), num_votes - np.maximum(won, 1) + 1)
    return SmoothedPrediction(
        classes=classes,
        vote_share=won / num_votes,
        lower_bound=np.where(won > 0, bound, 0.0),
    )
