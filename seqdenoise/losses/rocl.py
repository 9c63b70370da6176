"""RoCL: contrastive learning against adversarial perturbations."""

import tensorflow as tf

from seqdenoise.losses.info_nce import info_nce_loss
from seqdenoise.losses.multi_positive import multi_positive_loss
from seqdenoise.losses.pairs import check_shape, unit_views
from seqdenoise.numerics import Tensor


def rocl_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    adversarial: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    temperature: float | Tensor = 0.5,
    max_similarity: float | None = None,
    adversarial_weight: float = 1 / 256,
) -> Tensor:
    r"""Small when a row, its other view and its attacked view are close to each other only.

    $$ L = L_{multi}(a; \{b, a^{adv}\}) + \lambda L_{InfoNCE}(a^{adv}; b) $$

    with `a^adv` the attacked view A: the first term is `multi_positive_loss` (average `"inside"`)
    with the attacked view as a second positive, the second `info_nce_loss` with the attacked views
    as anchors.

    An anchor is a row that is valid, has a direction in both views and a positive weight; in the
    second term, one in the attacked view as well. Rows that are not valid are neither anchors nor
    negatives and may hold anything. With no anchor the loss is exactly 0 and so is its gradient.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        adversarial: float `[B, d]`, view A after the attack (see `pgd_attack`).
        ids: Optional int or string `[B]`; rows with equal ids are not each other's negatives.
        weights: Optional non-negative float `[B]`, one per anchor. A row of weight 0 is no anchor
            but stays a negative.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        adversarial_weight: `lambda`, at least 0.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Kim, Tack, Hwang (2020), "Adversarial Self-Supervised Contrastive Learning", section 3, the
        total loss, with known false negatives left out of the sums.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> options = {"mask": tf.constant([True, True]), "temperature": 1.0}
        >>> loss = rocl_loss(a, a, adversarial=a, adversarial_weight=0.0, **options)
        >>> round(float(loss), 4)  # -log(2 e / (2 e + 1)) = log(1 + exp(-1) / 2)
        0.1688
    """
    if not adversarial_weight >= 0:
        raise ValueError(f"`adversarial_weight` must be at least 0. Received: {adversarial_weight}")
    adversarial = tf.convert_to_tensor(adversarial)
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    check_shape("adversarial", adversarial, views.a.shape, f"{views.a.shape} like `view_a`")
    # A row that is no anchor of the first term is none of the second.
    shared = {
        "mask": views.valid,
        "ids": ids,
        "weights": weights,
        "temperature": temperature,
        "max_similarity": max_similarity,
    }
    loss = multi_positive_loss(view_a, view_b, more_positives=adversarial[:, tf.newaxis], **shared)
    attacked = info_nce_loss(adversarial, view_b, **shared)
    return loss + tf.constant(adversarial_weight, loss.dtype) * attacked
