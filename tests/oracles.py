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


def is_anchor(i, a, b, mask, weights):
    has_direction = bool(np.any(a[i] != 0)) and bool(np.any(b[i] != 0)) if mask[i] else False
    return has_direction and (weights is None or weights[i] > 0)


def info_nce(a, b, *, mask, ids=None, weights=None, temperature, symmetric=False):
    """Softmax cross-entropy of each row's positive among itself and its negatives."""
    if symmetric:
        options = {"mask": mask, "ids": ids, "weights": weights, "temperature": temperature}
        return (info_nce(a, b, **options) + info_nce(b, a, **options)) / 2
    rows = range(len(mask))
    valid = [is_anchor(i, a, b, mask, None) for i in rows]
    total = weight_sum = 0.0
    for i in rows:
        if not is_anchor(i, a, b, mask, weights):
            continue
        positive = cosine(a[i], b[i]) / temperature
        others = [
            cosine(a[i], b[j]) / temperature
            for j in rows
            if j != i and valid[j] and (ids is None or ids[i] != ids[j])
        ]
        highest = max([positive, *others])
        log_sum = highest + math.log(sum(math.exp(x - highest) for x in [positive, *others]))
        # -log softmax, but by log1p where the negatives are far: the difference of two logarithms
        # would lose what a small loss is made of.
        gaps = [x - positive for x in others]
        loss = (
            math.log1p(sum(map(math.exp, gaps)))
            if max(gaps, default=0) < 700
            else log_sum - positive
        )
        weight = 1.0 if weights is None else float(weights[i])
        total += weight * loss
        weight_sum += weight
    return total / weight_sum if weight_sum else 0.0


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
