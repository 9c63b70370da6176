"""Entropic transport by plain loops in float64, from its definition. Imports nothing of ours."""

import math

import numpy as np


def solve(cost, a, b, epsilon, relaxation=None, tolerance=1e-13, num_iterations=200_000):
    """Minimises `<P, C> + epsilon KL(P | a b^T) + relaxation (KL(P 1 | a) + KL(P^T 1 | b))`.

    Alternates the two optimality conditions on the potentials, in the log domain, until these move
    by less than `tolerance` of a unit of cost. Every mass is above 0.

    Returns:
        The plan, and the two potentials of `P_ij = a_i b_j exp((f_i + g_j - C_ij) / epsilon)`.
    """
    n, m = len(a), len(b)
    # The condition `f_i = -relaxation log(row_i / a_i)`, whose limit is `row_i = a_i`.
    damping = 1.0 if relaxation is None else relaxation / (relaxation + epsilon)
    f, g = [0.0] * n, [0.0] * m
    for _ in range(num_iterations):
        before = f
        f = [
            -damping
            * epsilon
            * log_sum_exp([math.log(b[j]) + (g[j] - cost[i][j]) / epsilon for j in range(m)])
            for i in range(n)
        ]
        g = [
            -damping
            * epsilon
            * log_sum_exp([math.log(a[i]) + (f[i] - cost[i][j]) / epsilon for i in range(n)])
            for j in range(m)
        ]
        if max(abs(x - y) for x, y in zip(f, before, strict=True)) < tolerance:
            break
    plan = [
        [a[i] * b[j] * math.exp((f[i] + g[j] - cost[i][j]) / epsilon) for j in range(m)]
        for i in range(n)
    ]
    return np.array(plan), np.array(f), np.array(g)


def log_sum_exp(values):
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(x - highest) for x in values))


def divergence(p, q):
    """`KL(p | q)` of two lists that need not have the same total; `q` above 0."""
    return math.fsum(
        (x * math.log(x / y) if x > 0 else 0.0) - x + y for x, y in zip(p, q, strict=True)
    )


def objective(plan, cost, a, b, epsilon, relaxation=None):
    """What the plan minimises; without `relaxation` the marginals are taken to be met."""
    n, m = len(a), len(b)
    cells = [(i, j) for i in range(n) for j in range(m)]
    value = math.fsum(plan[i][j] * cost[i][j] for i, j in cells)
    value += epsilon * divergence([plan[i][j] for i, j in cells], [a[i] * b[j] for i, j in cells])
    if relaxation is not None:
        rows, columns = np.sum(plan, axis=1), np.sum(plan, axis=0)
        value += relaxation * (divergence(rows, a) + divergence(columns, b))
    return value


def cosine_cost(x, y):
    """`1 - cos`; a zero vector has cosine 0 to everything."""
    return np.array([[1 - cosine(u, v) for v in y] for u in x])


def cosine(u, v):
    lengths = math.hypot(*u) * math.hypot(*v)
    return math.fsum(s * t for s, t in zip(u, v, strict=True)) / lengths if lengths else 0.0
