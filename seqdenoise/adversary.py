"""The worst small change of an input: projected gradient ascent on a loss.

Sequences are made of embeddings, and embeddings have neighbours where ids have none, so this is
where a behaviour sequence can be attacked.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from seqdenoise.masks import random_bits
from seqdenoise.numerics import Tensor, at_least_float32


def _ball(x: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest and the highest floats whose distance from `x`, as computed, is within epsilon."""
    low, high = x - epsilon, x + epsilon
    # Where rounding went outwards, the next float inwards is inside.
    low = tf.where(x - low > epsilon, tf.math.nextafter(low, x), low)
    high = tf.where(high - x > epsilon, tf.math.nextafter(high, x), high)
    return low, high


def _clip(moved: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # Whether a minimum drops NaN differs between kernels.
    return tf.where(tf.math.is_nan(moved), moved, tf.clip_by_value(moved, low, high))


def _ascent(loss_fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The sign of the gradient: -1, 0, 1, or NaN for NaN."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        loss = loss_fn(x)
    if not loss.shape.is_compatible_with([]):
        raise ValueError(f"`loss_fn` must return a scalar. Received: shape {loss.shape}")
    gradient = tape.gradient(loss, x)
    if gradient is None:
        raise ValueError(
            "`loss_fn` must depend on its argument through differentiable operations. "
            "Received: a loss without a gradient"
        )
    return tf.sign(tf.convert_to_tensor(gradient))


def _random_offset(x: Tensor, epsilon: float, seed: Tensor, first_row: Tensor | int) -> Tensor:
    """Uniform in the ball, on a grid of 2^32 values a component."""
    shape = tf.shape(x)
    bits = random_bits(shape[0], tf.reduce_prod(shape[1:]), seed=seed, first_row=first_row)
    offset = tf.cast(tf.reshape(bits, shape), x.dtype) * tf.constant(epsilon / 2**31, x.dtype)
    # XLA may fuse a product with the sum that follows, whose last bit then differs from the eager
    # one. A clip between the two, which changes no value, prevents it.
    bound = tf.constant(epsilon, x.dtype)
    return tf.clip_by_value(offset, -bound, bound)


def pgd_attack(
    loss_fn: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    epsilon: float,
    num_steps: int = 10,
    step_size: float | None = None,
    random_start: bool = False,
    seed: Tensor | None = None,
    first_row: Tensor | int = 0,
) -> Tensor:
    r"""Moves `x` by at most `epsilon` a component to where the loss is large.

    $$ x_{k+1} = \Pi\big(x_k + \alpha \, \mathrm{sign}(\nabla_x L(x_k))\big) $$

    from `x_0 = x`, with `\Pi` the projection on the ball `|x_k - x| <= epsilon` in the maximum
    norm and `\alpha` the step size. The result is the last iterate. Nothing makes it the worst
    point of the ball, nor even one that is worse than `x`, unless the loss is convex in `x` (each
    step then raises it); many steps that are small beside `epsilon` come close.

    The ball is kept to the last bit: `abs(x_adv - x) <= epsilon` holds when computed in the dtype
    of the result, with `epsilon` rounded to it. Where `x` is so large that its neighbouring floats
    are further than `epsilon` away, it cannot move at all.

    A component whose gradient is 0 does not move, so rows that the loss masks before any arithmetic
    come out as they went in, whatever they hold, unless `random_start` moved them first. Where the
    gradient is NaN, the result is NaN: a broken loss shows.

    The perturbation is a constant to any gradient taken of the result: with respect to `x` the
    result has the gradient of `x` itself, so that training on it still reaches the embeddings that
    `x` was made of; no gradient flows through the steps or from them to the weights in `loss_fn`.

    Args:
        loss_fn: Maps a tensor like `x` to a scalar. Called `num_steps` times, and unrolled in a
            graph; it must be the same function each time, with the same masks and dropout.
        x: float `[B, ...]`. Half precision is attacked in float32, as its own rounding could exceed
            `epsilon`.
        epsilon: Radius of the ball, at least 0, in the unit of `x`. With 0 the result is `x`.
        num_steps: At least 1.
        step_size: Above 0; `2.5 * epsilon / num_steps` by default, with which the border is within
            reach from everywhere in the ball.
        random_start: Whether to start from a uniformly random point of the ball.
        seed: int `[2]`, of the random start; not read without one. The same seed gives the same
            start eagerly, in a graph and under XLA.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor:
            rows `k, k + 1, ...` started with `first_row=k` start like those of the whole batch.

    Returns:
        The shape of `x`, float32, or float64 for float64 `x`.

    Raises:
        ValueError: An argument is out of range, `random_start` lacks a seed, or the loss is no
            scalar or does not depend on its argument.

    References:
        Madry, Makelov, Schmidt, Tsipras, Vladu (2018), "Towards Deep Learning Models Resistant to
        Adversarial Attacks", section 2.1. Kim, Tack, Hwang (2020), "Adversarial Self-Supervised
        Contrastive Learning", climb a contrastive loss between two views this way (the
        instance-wise attack); we attack embeddings, so there is no box of valid pixel values.

    Example:
        >>> x = tf.constant([[1.0, -2.0, 0.0]])
        >>> pgd_attack(lambda x: tf.reduce_sum(x**2), x, epsilon=0.5).numpy().tolist()
        [[1.5, -2.5, 0.0]]
    """
    x = at_least_float32(x)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"`epsilon` must be finite and at least 0. Received: {epsilon}")
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be at least 1. Received: {num_steps}")
    if step_size is not None and not 0 < step_size < math.inf:
        raise ValueError(f"`step_size` must be finite and above 0. Received: {step_size}")
    if random_start and seed is None:
        raise ValueError("`random_start` needs a `seed`. Received: None")
    if epsilon == 0:
        return x
    step = tf.constant(2.5 * epsilon / num_steps if step_size is None else step_size, x.dtype)

    low, high = _ball(x, tf.constant(epsilon, x.dtype))
    moved = x
    if random_start:
        moved = _clip(moved + _random_offset(x, epsilon, seed, first_row), low, high)
    for _ in range(num_steps):
        moved = _clip(moved + step * _ascent(loss_fn, moved), low, high)
    # The value of `moved` with the gradient of `x`. `x + stop_gradient(moved - x)` would round, and
    # could leave the ball.
    return tf.grad_pass_through(lambda _: moved)(x)
