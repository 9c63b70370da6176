"""A linear classifier on frozen vectors: what a representation makes easy to tell apart."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from seqdenoise.adversary import pgd_attack
from seqdenoise.numerics import Tensor

Floats = NDArray[np.float64]

# Rows encoded or attacked at a time when nothing is trained: bounds the memory, changes no result.
_ROWS_AT_ONCE = 4096


def _check_vectors(vectors: ArrayLike) -> NDArray[Any]:
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(
            "`vectors` must be float of shape [N, d]. "
            f"Received: {array.dtype} of shape {array.shape}"
        )
    broken = ~np.isfinite(array).all(axis=1)
    if broken.any():
        raise ValueError(
            f"`vectors` must be finite. Received: {int(broken.sum())} rows that are not, the first "
            f"is row {int(np.argmax(broken))}"
        )
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _check_labels(labels: ArrayLike, rows: int) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.shape != (rows,) or array.dtype.kind not in "iub":
        raise ValueError(
            f"`labels` must be int of shape [{rows}], one a vector. "
            f"Received: {array.dtype} of shape {array.shape}"
        )
    return array


def _encode(encoder: Callable[[Tensor], Tensor] | None, vectors: NDArray[Any]) -> Floats:
    """What the classifier sees of the vectors, `[N, k]`."""
    if encoder is None:
        return vectors.astype(np.float64)
    parts = [
        np.asarray(encoder(tf.constant(vectors[start : start + _ROWS_AT_ONCE])), np.float64)
        for start in range(0, len(vectors), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts)


def _lead(logits: Tensor, one_hot: Tensor) -> Tensor:
    """By how much the other classes together lead the right one, `[n]`.

    The cross-entropy is the softplus of it. It rises where the cross-entropy does and, unlike that,
    keeps a gradient where a row is so clearly right that its cross-entropy rounds to 0: the attack
    climbs it, lest confident rows pass for robust ones.
    """
    others = tf.where(one_hot, tf.constant(float("-inf"), logits.dtype), logits)
    right = tf.reduce_sum(tf.where(one_hot, logits, tf.zeros_like(logits)), axis=1)
    return tf.reduce_logsumexp(others, axis=1) - right


def _attack(
    logits_fn: Callable[[Tensor], Tensor],
    vectors: Tensor,
    one_hot: Tensor,
    epsilon: float,
    num_steps: int,
) -> Tensor:
    def loss_fn(moved: Tensor) -> Tensor:
        # A sum, as rows do not touch each other and only the gradient's sign counts.
        return tf.reduce_sum(_lead(logits_fn(moved), one_hot))

    return pgd_attack(loss_fn, vectors, epsilon=epsilon, num_steps=num_steps)


@dataclass(frozen=True)
class LinearProbe:
    """A fitted linear classifier; made by `fit_linear_probe`.

    All methods take `vectors`, float `[N, d]` and finite, before the encoder where there is one.

    Attributes:
        classes: int `[C]`, the labels it was fitted on, sorted.
        kernel: float64 `[k, C]`.
        bias: float64 `[C]`.
        encoder: What runs before the classifier, `[n, d] -> [n, k]`, or None.
    """

    classes: NDArray[Any]
    kernel: Floats
    bias: Floats
    encoder: Callable[[Tensor], Tensor] | None = None

    def logits(self, vectors: ArrayLike) -> Floats:
        """Raw scores of the classes, float64 `[N, C]`."""
        return _encode(self.encoder, _check_vectors(vectors)) @ self.kernel + self.bias

    def predict_proba(self, vectors: ArrayLike) -> Floats:
        """Probabilities of the classes, float64 `[N, C]`; rows sum to 1."""
        return special.softmax(self.logits(vectors), axis=1)

    def predict(self, vectors: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row, int `[N]`."""
        return self.classes[np.argmax(self.logits(vectors), axis=1)]

    def attack(
        self, vectors: ArrayLike, labels: ArrayLike, *, epsilon: float, num_steps: int = 20
    ) -> NDArray[Any]:
        """Moves vectors to where their own label becomes improbable; see `pgd_attack`.

        Args:
            vectors: float `[N, d]`.
            labels: int `[N]`, all of them among `classes`.
            epsilon: Radius of the ball, in the unit of `vectors`.
            num_steps: Steps of the attack. Without an encoder and with two classes a few are exact.

        Returns:
            float `[N, d]`, within `epsilon` of `vectors` in each component.
        """
        vectors = _check_vectors(vectors)
        one_hot = _one_hot(_check_labels(labels, len(vectors)), self.classes)
        kernel = tf.constant(self.kernel, vectors.dtype)
        bias = tf.constant(self.bias, vectors.dtype)
        attacked = np.empty_like(vectors)
        for start in range(0, len(vectors), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            attacked[rows] = _attack(
                lambda x: _scores(self.encoder, x, kernel, bias),
                tf.constant(vectors[rows]),
                tf.constant(one_hot[rows]),
                epsilon,
                num_steps,
            )
        return attacked

    def accuracy(
        self, vectors: ArrayLike, labels: ArrayLike, *, epsilon: float = 0.0, num_steps: int = 20
    ) -> float:
        """Share of rows whose label is found, also after an attack within `epsilon`.

        A row counts as right under attack only if it is right without one too: the vector itself is
        a point of the ball. So the share never rises with an attack. It is an upper bound of the
        share that withstands *every* attack, as this one may miss the worst point.

        Args:
            vectors: float `[N, d]`, N at least 1.
            labels: int `[N]`. A label that is not among `classes` is never found.
            epsilon: Radius of the attack's ball; 0 for none.
            num_steps: Steps of the attack.

        Returns:
            A number in [0, 1].
        """
        vectors = _check_vectors(vectors)
        labels = _check_labels(labels, len(vectors))
        if not len(vectors):
            raise ValueError("`vectors` must have at least one row. Received: shape [0, d]")
        found = self.predict(vectors) == labels
        if epsilon != 0:
            rows = np.flatnonzero(found)
            attacked = self.attack(
                vectors[rows], labels[rows], epsilon=epsilon, num_steps=num_steps
            )
            found[rows] = self.predict(attacked) == labels[rows]
        return float(found.mean())


def _scores(
    encoder: Callable[[Tensor], Tensor] | None, vectors: Tensor, kernel: Tensor, bias: Tensor
) -> Tensor:
    features = vectors if encoder is None else encoder(vectors)
    return tf.matmul(tf.cast(features, kernel.dtype), kernel) + bias


def _one_hot(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.bool_]:
    one_hot: NDArray[np.bool_] = labels[:, np.newaxis] == classes
    unknown = ~one_hot.any(axis=1)
    if unknown.any():
        raise ValueError(
            f"`labels` must be among {classes.tolist()}. Received: labels"
            f"[{int(np.argmax(unknown))}]={labels[np.argmax(unknown)]}"
        )
    return one_hot


def _fit_clean(features: Floats, one_hot: NDArray[np.bool_], l2: float) -> tuple[Floats, Floats]:
    """The minimum of the mean cross-entropy plus `l2 / 2 * sum(kernel ** 2)`, without attacks."""
    num_features, num_classes = features.shape[1], one_hot.shape[1]

    def objective(parameters: Floats) -> tuple[float, Floats]:
        kernel = parameters[num_classes:].reshape(num_features, num_classes)
        log_probs = special.log_softmax(features @ kernel + parameters[:num_classes], axis=1)
        gradient = (np.exp(log_probs) - one_hot) / len(features)
        loss = -log_probs[one_hot].mean() + l2 / 2 * np.sum(kernel**2)
        kernel_gradient = features.T @ gradient + l2 * kernel
        return loss, np.concatenate([gradient.sum(axis=0), kernel_gradient.ravel()])

    found = optimize.minimize(
        objective,
        np.zeros((num_features + 1) * num_classes),
        jac=True,
        method="L-BFGS-B",
        # The defaults were seen to stop with weights off by 3e-5 of the largest.
        options={"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-8},
    )
    return found.x[num_classes:].reshape(num_features, num_classes), found.x[:num_classes]


def _batches(num_rows: int, batch_size: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Endless batches of row numbers; every row comes up once before any comes up again."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(num_rows)
        for start in range(0, num_rows, batch_size):
            yield order[start : start + batch_size]


def _fit_attacked(
    kernel: NDArray[Any],
    bias: NDArray[Any],
    batches: Iterable[tuple[NDArray[Any], NDArray[np.bool_]]],
    *,
    features_fn: Callable[[Tensor], Tensor],
    epsilon: float,
    num_steps: int,
    l2: float,
    learning_rate: Any,
) -> tuple[Floats, Floats]:
    """Goes on from a kernel and a bias with Adam, on vectors attacked anew at every update."""
    weights = [tf.Variable(kernel), tf.Variable(bias)]
    optimizer = tf.keras.optimizers.Adam(learning_rate)
    optimizer.build(weights)

    @tf.function(reduce_retracing=True)
    def update(vectors: Tensor, one_hot: Tensor) -> None:
        kernel, bias = weights

        def logits_fn(x: Tensor) -> Tensor:
            return tf.matmul(features_fn(x), kernel) + bias

        features = features_fn(_attack(logits_fn, vectors, one_hot, epsilon, num_steps))
        # The worst case over the perturbations has the gradient of the worst perturbation held
        # fixed (Danskin), and only the classifier is trained.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            lead = _lead(tf.matmul(features, kernel) + bias, one_hot)
            loss = tf.reduce_mean(tf.math.softplus(lead))
            loss += tf.constant(l2 / 2, loss.dtype) * tf.reduce_sum(tf.square(kernel))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    for vectors, one_hot in batches:
        update(tf.constant(vectors), tf.constant(one_hot))
    fitted_kernel, fitted_bias = (variable.numpy().astype(np.float64) for variable in weights)
    return fitted_kernel, fitted_bias


def fit_linear_probe(
    vectors: ArrayLike,
    labels: ArrayLike,
    *,
    encoder: Callable[[Tensor], Tensor] | None = None,
    epsilon: float = 0.0,
    num_steps: int = 10,
    l2: float = 1e-4,
    num_updates: int = 1000,
    batch_size: int = 1024,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> LinearProbe:
    r"""Fits a linear classifier on frozen vectors, against attacks on them if wanted.

    $$ \min_\psi \frac{1}{N} \sum_i \max_{|\delta_i| \le \epsilon}
       L_{ce}\big(\psi(f(x_i + \delta_i)), y_i\big) + \frac{l2}{2} |W|^2 $$

    with `f` the frozen encoder (or nothing), `\psi(v) = W v + b`, and the maximum norm for
    `\delta`. With `epsilon` 0 this is the linear evaluation protocol: a smooth convex problem,
    solved to its one minimum by L-BFGS. Otherwise Adam starts there and meets, at every update, the
    attacked vectors of that update's classifier (`pgd_attack`); the learning rate falls to 0 by a
    cosine. The maximum over `\delta` is as good as the attack: exact for two classes without an
    encoder. Where no direction withstands attacks of size `epsilon`, the minimum is at `W = 0`: a
    classifier that says the same of every vector.

    Args:
        vectors: float `[N, d]`, finite. What is attacked.
        labels: int `[N]`, at least two different ones.
        encoder: Optional function of float `[n, d]` to `[n, k]`, for instance a `ViewEncoder`. It
            is not trained.
        epsilon: Radius of the attack's ball, at least 0, in the unit of `vectors`.
        num_steps: Steps of each attack. It and `num_updates`, `batch_size`, `learning_rate` and
            `seed` are read with `epsilon` above 0 only.
        l2: Coefficient of the penalty of the kernel, above 0. The bias is not penalised.
        num_updates: Number of Adam's updates.
        batch_size: Rows an update.
        learning_rate: Adam's, relative to the size of the weights of the unattacked fit: a
            component can move up to `num_updates * learning_rate / 2` times that.
        seed: Seed of the order of rows.

    Returns:
        A `LinearProbe`.

    Raises:
        ValueError: A shape does not fit, vectors are not finite, there are fewer than two classes,
            or an argument is out of range.

    References:
        Chen, Kornblith, Norouzi, Hinton (2020), "A Simple Framework for Contrastive Learning of
        Visual Representations", section 2.3 (the linear evaluation protocol). Kim, Tack, Hwang
        (2020), "Adversarial Self-Supervised Contrastive Learning" (robust linear evaluation), who
        train by stochastic gradient descent from a random start, without a penalty.

    Example:
        >>> vectors = np.array([[-1.2, 0.3], [-0.8, -0.1], [0.9, 0.2], [1.1, -0.4]])
        >>> labels = np.array([3, 3, 7, 7])
        >>> probe = fit_linear_probe(vectors, labels)
        >>> probe.predict(vectors).tolist(), probe.accuracy(vectors, labels)
        ([3, 3, 7, 7], 1.0)
        >>> probe.accuracy(vectors, labels, epsilon=2.0)
        0.0
    """
    vectors = _check_vectors(vectors)
    labels = _check_labels(labels, len(vectors))
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(
            f"`labels` must hold at least two classes. Received: {classes.tolist()} alone"
        )
    for name, value in [("l2", l2), ("learning_rate", learning_rate)]:
        if not value > 0:
            raise ValueError(f"`{name}` must be above 0. Received: {value}")
    for name, count in [("num_updates", num_updates), ("batch_size", batch_size)]:
        if count < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {count}")
    if not epsilon >= 0:
        raise ValueError(f"`epsilon` must be at least 0. Received: {epsilon}")

    # Fitted on features of mean 0 and spread 1, so that neither solver depends on their unit.
    features = _encode(encoder, vectors)
    center = features.mean(axis=0)
    scale = float(np.sqrt(np.mean((features - center) ** 2))) or 1.0
    penalty = l2 / scale**2
    one_hot = _one_hot(labels, classes)
    kernel, bias = _fit_clean((features - center) / scale, one_hot, penalty)
    if epsilon > 0:

        def features_fn(x: Tensor) -> Tensor:
            encoded = x if encoder is None else tf.cast(encoder(x), x.dtype)
            return (encoded - tf.constant(center, x.dtype)) / tf.constant(scale, x.dtype)

        batches = itertools.islice(_batches(len(vectors), batch_size, seed), num_updates)
        kernel, bias = _fit_attacked(
            kernel.astype(vectors.dtype),
            bias.astype(vectors.dtype),
            ((vectors[rows], one_hot[rows]) for rows in batches),
            features_fn=features_fn,
            epsilon=epsilon,
            num_steps=num_steps,
            l2=penalty,
            # Relative to the weights, so that it suits vectors of any unit.
            learning_rate=tf.keras.optimizers.schedules.CosineDecay(
                learning_rate * float(np.sqrt(np.mean(kernel**2))), num_updates
            ),
        )
    return LinearProbe(
        classes=classes,
        kernel=kernel / scale,
        bias=bias - center @ kernel / scale,
        encoder=encoder,
    )
