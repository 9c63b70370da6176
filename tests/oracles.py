"""Plain-loop float64 references, written from the papers. They import nothing of ours."""

import math

import numpy as np


def cosine(a, b):
    norm = math.hypot(*a) * math.hypot(*b)
    return (
        sum(x / math.hypot(*a) * (y / math.hypot(*b)) for x, y in zip(a, b, strict=True))
        if norm
        else 0.0
    )


def distance(a, b):
    """Euclidean distance of the unit vectors."""
    return math.hypot(*(x / math.hypot(*a) - y / math.hypot(*b) for x, y in zip(a, b, strict=True)))


def has_direction(vector):
    return bool(np.any(vector != 0))


def valid_rows(a, b, mask):
    return [
        bool(kept) and has_direction(x) and has_direction(y)
        for x, y, kept in zip(a, b, mask, strict=True)
    ]


def negatives_of(i, a, b, valid, ids, max_similarity=None):
    """The rows `j` whose `b[j]` is a negative of `a[i]`."""
    return [
        j
        for j in range(len(valid))
        if j != i
        and valid[j]
        and (ids is None or ids[i] != ids[j])
        and (max_similarity is None or cosine(a[i], b[j]) <= max_similarity)
    ]


def positives_of(i, valid, labels):
    """The rows `j` whose `b[j]` is a positive of `a[i]`: its own, and those of its label."""
    return [
        j
        for j in range(len(valid))
        if j == i or (valid[j] and labels is not None and labels[i] == labels[j] >= 0)
    ]


def anchor_mean(loss_of, valid, weights):
    """Weighted mean of `loss_of(i)` over the valid rows of positive weight."""
    total = weight_sum = 0.0
    for i, kept in enumerate(valid):
        weight = (1.0 if weights is None else float(weights[i])) if kept else 0.0
        if weight > 0:
            total += weight * loss_of(i)
            weight_sum += weight
    return total / weight_sum if weight_sum else 0.0


def cross_entropy(positive, others):
    """Minus the log of the softmax probability of `positive` among itself and `others`."""
    highest = max([positive, *others])
    log_sum = highest + math.log(sum(math.exp(x - highest) for x in [positive, *others]))
    # By log1p where the others are far: the difference of two logarithms would lose what a small
    # loss is made of.
    gaps = [x - positive for x in others]
    if max(gaps, default=0) < 700:
        return math.log1p(sum(map(math.exp, gaps)))
    return log_sum - positive


def info_nce(
    a,
    b,
    *,
    mask,
    ids=None,
    weights=None,
    temperature,
    max_similarity=None,
    max_negatives=None,
    symmetric=False,
):
    if symmetric:
        options = {"mask": mask, "ids": ids, "weights": weights, "temperature": temperature}
        options |= {"max_similarity": max_similarity, "max_negatives": max_negatives}
        return (info_nce(a, b, **options) + info_nce(b, a, **options)) / 2
    valid = valid_rows(a, b, mask)
    blocks = 1 if max_negatives is None else math.ceil(len(a) / (max_negatives + 1))
    size = math.ceil(len(a) / blocks)

    def loss_of(i):
        negatives = negatives_of(i, a, b, valid, ids, max_similarity)
        met = [j for j in negatives if j // size == i // size]
        others = [cosine(a[i], b[j]) / temperature for j in met]
        return cross_entropy(cosine(a[i], b[i]) / temperature, others)

    return anchor_mean(loss_of, valid, weights)


def nt_xent(a, b, *, mask, ids=None, weights=None, temperature, max_similarity=None):
    valid = valid_rows(a, b, mask)

    def loss_of_anchor(i, mine, other):
        others = [
            cosine(mine[i], view[j]) / temperature
            for view in (mine, other)
            for j in negatives_of(i, mine, view, valid, ids, max_similarity)
        ]
        return cross_entropy(cosine(mine[i], other[i]) / temperature, others)

    return anchor_mean(
        lambda i: (loss_of_anchor(i, a, b) + loss_of_anchor(i, b, a)) / 2, valid, weights
    )


def n_pair(a, b, *, mask, ids=None, weights=None, max_similarity=None, normalize=True):
    valid = valid_rows(a, b, mask)

    def product(i, j):
        return cosine(a[i], b[j]) if normalize else math.fsum(a[i] * b[j])

    def loss_of(i):
        negatives = negatives_of(i, a, b, valid, ids, max_similarity)
        return cross_entropy(product(i, i), [product(i, j) for j in negatives])

    return anchor_mean(loss_of, valid, weights)


def simple_contrastive(
    a, b, *, mask, ids=None, weights=None, max_similarity=None, negative_weight=None
):
    valid = valid_rows(a, b, mask)

    def loss_of(i):
        others = [cosine(a[i], b[j]) for j in negatives_of(i, a, b, valid, ids, max_similarity)]
        factor = 1 / max(len(others), 1) if negative_weight is None else negative_weight
        return factor * sum(others) - cosine(a[i], b[i])

    return anchor_mean(loss_of, valid, weights)


def multi_positive(
    a,
    b,
    *,
    mask,
    ids=None,
    weights=None,
    labels=None,
    more_positives=None,
    temperature,
    max_similarity=None,
    average="inside",
):
    valid = valid_rows(a, b, mask)

    def loss_of(i):
        rows = positives_of(i, valid, labels)
        more = [] if more_positives is None else filter(has_direction, more_positives[i])
        positives = [cosine(a[i], v) / temperature for v in [*(b[j] for j in rows), *more]]
        negatives = [
            cosine(a[i], b[j]) / temperature
            for j in negatives_of(i, a, b, valid, ids, max_similarity)
            if j not in rows
        ]
        if average == "inside":
            # Each negative over the sum of the positives is one of `cross_entropy`'s gaps.
            highest = max(positives)
            summed = highest + math.log(sum(math.exp(x - highest) for x in positives))
            return cross_entropy(summed, negatives)
        return sum(
            cross_entropy(p, [*positives[:k], *positives[k + 1 :], *negatives])
            for k, p in enumerate(positives)
        ) / len(positives)

    return anchor_mean(loss_of, valid, weights)


def rocl(
    a,
    b,
    *,
    mask,
    adversarial,
    ids=None,
    weights=None,
    temperature,
    max_similarity=None,
    adversarial_weight=1 / 256,
):
    valid = np.array(valid_rows(a, b, mask))
    options = {"ids": ids, "weights": weights, "temperature": temperature}
    options["max_similarity"] = max_similarity
    instance = multi_positive(a, b, mask=valid, more_positives=adversarial[:, None], **options)
    return instance + adversarial_weight * info_nce(adversarial, b, mask=valid, **options)


def moco(
    a,
    b,
    *,
    mask,
    queue,
    queue_mask,
    ids=None,
    queue_ids=None,
    weights=None,
    temperature,
    max_similarity=None,
):
    valid = valid_rows(a, b, mask)

    def loss_of(i):
        others = [
            cosine(a[i], key) / temperature
            for k, key in enumerate(queue)
            if queue_mask[k]
            and has_direction(key)
            and (queue_ids is None or ids[i] != queue_ids[k])
            and (max_similarity is None or cosine(a[i], key) <= max_similarity)
        ]
        return cross_entropy(cosine(a[i], b[i]) / temperature, others)

    return anchor_mean(loss_of, valid, weights)


def debiased_parts(
    i, a, b, *, valid, ids, more_positives, temperature, max_similarity, tau_plus, beta
):
    """The number of negatives, the estimate `g` before its floor, and the positive's exponential.

    As printed, which float64 can hold down to a temperature of 0.01.
    """

    def expectation(cosines):
        weights = [math.exp(beta * x / temperature) for x in cosines]
        terms = [w * math.exp(x / temperature) for w, x in zip(weights, cosines, strict=True)]
        return sum(terms) / sum(weights)

    others = [cosine(a[i], b[j]) for j in negatives_of(i, a, b, valid, ids, max_similarity)]
    more = [] if more_positives is None else filter(has_direction, more_positives[i])
    own = cosine(a[i], b[i])
    positives = [own, *(cosine(a[i], v) for v in more)]
    observed = expectation(others) if others else 0.0
    estimate = (observed - tau_plus * expectation(positives)) / (1 - tau_plus)
    return len(others), estimate, math.exp(own / temperature)


def hard_negative(
    a,
    b,
    *,
    mask,
    ids=None,
    weights=None,
    more_positives=None,
    temperature,
    max_similarity=None,
    tau_plus=0.1,
    beta=1.0,
):
    valid = valid_rows(a, b, mask)
    options = {"more_positives": more_positives, "max_similarity": max_similarity, "ids": ids}
    options |= {"tau_plus": tau_plus, "beta": beta, "temperature": temperature, "valid": valid}

    def loss_of(i):
        count, estimate, positive = debiased_parts(i, a, b, **options)
        if tau_plus > 0:  # with a prior of 0 the estimate is a mean, which is above the floor
            estimate = max(estimate, math.exp(-1 / temperature))
        return math.log1p(count * estimate / positive)

    return anchor_mean(loss_of, valid, weights)


def debiased(a, b, **options):
    return hard_negative(a, b, beta=0.0, **options)


def clamped_rate(
    a,
    b,
    *,
    mask,
    ids=None,
    more_positives=None,
    temperature,
    tau_plus,
    beta=0.0,
    max_similarity=None,
):
    valid = valid_rows(a, b, mask)
    options = {"more_positives": more_positives, "max_similarity": max_similarity, "ids": ids}
    options |= {"tau_plus": tau_plus, "beta": beta, "temperature": temperature, "valid": valid}

    def clamped(i):
        count, estimate, _ = debiased_parts(i, a, b, **options)
        return float(count > 0 and estimate < math.exp(-1 / temperature))

    return anchor_mean(clamped, valid, None)


SAME = 1e-12  # Distances no further apart than float64 rounding are equal.


def triplets(a, b, *, mask, ids=None, labels=None, max_similarity=None):
    """All triplets, as (anchor, distance to the positive, distance to the negative)."""
    valid = valid_rows(a, b, mask)
    found = []
    for i in range(len(valid)):
        positives = positives_of(i, valid, labels) if valid[i] else []
        negatives = negatives_of(i, a, b, valid, ids, max_similarity) if valid[i] else []
        for p in positives:
            for n in negatives:
                if n not in positives:
                    found.append((i, distance(a[i], b[p]), distance(a[i], b[n])))
    return found


def triplet(
    a,
    b,
    *,
    mask,
    ids=None,
    weights=None,
    labels=None,
    max_similarity=None,
    margin=0.2,
    mining="all",
):
    total = weight_sum = 0.0
    rows = {"mask": mask, "ids": ids, "labels": labels, "max_similarity": max_similarity}
    for i, to_positive, to_negative in triplets(a, b, **rows):
        gap = to_negative - to_positive
        loss = max(margin - gap, 0.0)
        kinds = {"all": loss > 0, "semi_hard": gap > SAME and loss > 0, "hard": gap < -SAME}
        mined = kinds[mining]
        if mined:
            weight = 1.0 if weights is None else float(weights[i])
            total += weight * loss
            weight_sum += weight
    return total / weight_sum if weight_sum else 0.0


def triplet_is_on_an_edge(a, b, *, tolerance, margin=0.2, **rows):
    """Whether rounding may decide if some triplet is mined. A tie is no such case."""
    gaps = [to_negative - to_positive for _, to_positive, to_negative in triplets(a, b, **rows)]
    return any(SAME < abs(gap) < tolerance or abs(gap - margin) < tolerance for gap in gaps)


def similarity_is_on_an_edge(vectors, *, max_similarity, tolerance):
    """Whether rounding may decide if the cosine of some two vectors exceeds the limit."""
    vectors = [v for v in vectors if np.isfinite(v).all() and has_direction(v)]
    return any(
        abs(cosine(vectors[i], vectors[j]) - max_similarity) < tolerance
        for i in range(len(vectors))
        for j in range(i)
    )


def debiased_cancels(a, b, *, mask, ids=None, tolerance, **options):
    """Whether the false negatives' part of some anchor's sum is almost all of it, or its floor.

    What is left is then a small difference of large numbers, of which float32 keeps little.
    """
    valid = valid_rows(a, b, mask)
    rows = {"more_positives": None, "max_similarity": None, "beta": 0.0, "tau_plus": 0.1}
    for i in range(len(valid)):
        if valid[i]:
            rows |= options | {"valid": valid, "ids": ids}
            count, estimate, _ = debiased_parts(i, a, b, **rows)
            _, observed, _ = debiased_parts(i, a, b, **{**rows, "tau_plus": 0.0})
            if count and abs(estimate) < tolerance * observed:
                return True
    return False


def alignment(a, b, mask):
    distances = [
        sum((x - y) ** 2 for x, y in zip(a[i], b[i], strict=True))
        for i in range(len(mask))
        if mask[i]
    ]
    return sum(distances) / len(distances) if distances else 0.0


def uniformity(vectors, mask):
    rows = [v for v, kept in zip(vectors, mask, strict=True) if kept]
    terms = [
        math.exp(-2 * sum((x - y) ** 2 for x, y in zip(rows[i], rows[j], strict=True)))
        for i in range(len(rows))
        for j in range(len(rows))
        if i != j
    ]
    return math.log(sum(terms) / len(terms)) if terms else 0.0


def effective_rank(vectors):
    singular = np.linalg.svd(np.asarray(vectors, np.float64), compute_uv=False)
    share = singular / singular.sum()
    return math.exp(-sum(p * math.log(p) for p in share if p > 1e-300))
