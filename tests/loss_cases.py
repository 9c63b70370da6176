"""Every contrastive loss with its options and its reference: the table that the contract runs over.

A batch is one mapping from an argument's name to its value, so that a test can slice, permute,
round or spoil whatever inputs a loss has.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oracles
import tensorflow as tf

from seqdenoise import (
    debiased_loss,
    hard_negative_loss,
    info_nce_loss,
    moco_loss,
    multi_positive_loss,
    n_pair_loss,
    nt_xent_loss,
    rocl_loss,
    simple_contrastive_loss,
    triplet_loss,
)

TEMPERATURES = [0.01, 0.07, 0.5, 1.0]
VECTORS = ("view_a", "view_b", "more_positives", "adversarial")  # these have a gradient
FLOATS = (*VECTORS, "queue")
BY_SLOT = ("queue", "queue_mask", "queue_ids")  # all other inputs are by row


@dataclass(frozen=True, eq=False)
class Case:
    """A loss, its options, the inputs it takes beyond those of every loss, and its reference."""

    name: str
    loss: Callable[..., Any]
    oracle: Callable[..., float]
    options: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    @property
    def parameters(self):
        return inspect.signature(self.loss).parameters

    @property
    def temperatures(self):
        return TEMPERATURES if "temperature" in self.parameters else [None]

    @property
    def takes_lengths(self):
        return self.options.get("normalize") is False

    def rounding(self, temperature):
        """Relative error that float32 leaves in exponents as large as this case's."""
        beta = self.options.get("beta", self.parameters["beta"].default if self.is_hard else 0.0)
        largest = 10.0 if self.takes_lengths else (1 + beta) / (temperature or 1.0)
        return 1e-6 * largest

    @property
    def is_hard(self):
        return "beta" in self.parameters

    def rounding_decides(self, inputs, tolerance):
        """Whether some row is so near a limit that rounding may put it on either side."""
        limit = self.options.get("max_similarity")
        vectors = [*inputs["view_a"], *inputs["view_b"]]
        vectors += [v for k in ("adversarial", "queue") for v in inputs.get(k, [])]
        if limit is not None and oracles.similarity_is_on_an_edge(
            vectors, max_similarity=limit, tolerance=tolerance
        ):
            return True
        if self.loss is triplet_loss:
            a, b, rows = _split(inputs)
            rows |= {k: v for k, v in self.options.items() if k != "mining"}
            rows.pop("weights", None)
            return oracles.triplet_is_on_an_edge(a, b, tolerance=tolerance, **rows)
        return False

    def cancels(self, inputs, temperature, tolerance):
        """Whether the loss depends on a small difference of large numbers."""
        if "tau_plus" not in self.parameters:
            return False
        a, b, rows = _split(inputs)
        rows.pop("weights", None)
        options = {"beta": 1.0} if self.is_hard else {}
        options |= {"temperature": temperature} | self.options
        return oracles.debiased_cancels(a, b, tolerance=tolerance, **rows, **options)


SIMILAR = {"max_similarity": 0.3}
OUTSIDE = {"average": "outside"}
QUEUE = ("queue", "queue_mask")
CASES = [
    Case("info_nce", info_nce_loss, oracles.info_nce),
    Case("info_nce_symmetric", info_nce_loss, oracles.info_nce, {"symmetric": True}),
    Case(
        "info_nce_symmetric_similar",
        info_nce_loss,
        oracles.info_nce,
        {"symmetric": True, **SIMILAR},
    ),
    Case("nt_xent", nt_xent_loss, oracles.nt_xent),
    Case("nt_xent_similar", nt_xent_loss, oracles.nt_xent, SIMILAR),
    Case("n_pair", n_pair_loss, oracles.n_pair),
    Case("n_pair_similar", n_pair_loss, oracles.n_pair, SIMILAR),
    Case("n_pair_products", n_pair_loss, oracles.n_pair, {"normalize": False, **SIMILAR}),
    Case("simple", simple_contrastive_loss, oracles.simple_contrastive),
    Case(
        "simple_weighted",
        simple_contrastive_loss,
        oracles.simple_contrastive,
        {"negative_weight": 0.3, **SIMILAR},
    ),
    *(
        Case(f"multi_positive_{name}", multi_positive_loss, oracles.multi_positive, options, inputs)
        for name, options, inputs in [
            ("own", {}, ()),
            ("labels", {}, ("labels",)),
            ("labels_outside", {**OUTSIDE, **SIMILAR}, ("labels",)),
            ("more", {}, ("more_positives",)),
            ("labels_more_outside", OUTSIDE, ("labels", "more_positives")),
        ]
    ),
    Case("debiased", debiased_loss, oracles.debiased),
    Case("debiased_no_prior", debiased_loss, oracles.debiased, {"tau_plus": 0.0}),
    Case(
        "debiased_more",
        debiased_loss,
        oracles.debiased,
        {"tau_plus": 0.02, **SIMILAR},
        ("more_positives",),
    ),
    Case("hard_negative", hard_negative_loss, oracles.hard_negative),
    Case(
        "hard_negative_more",
        hard_negative_loss,
        oracles.hard_negative,
        {"tau_plus": 0.02, "beta": 0.5, **SIMILAR},
        ("more_positives",),
    ),
    *(
        Case(f"triplet_{name}{suffix}", triplet_loss, oracles.triplet, options, inputs)
        for name, options in [
            ("all", {}),
            ("semi_hard", {"mining": "semi_hard", "margin": 0.5}),
            ("hard", {"mining": "hard"}),
        ]
        for suffix, inputs in [("", ()), ("_labels", ("labels",))]
    ),
    Case(
        "triplet_similar_labels",
        triplet_loss,
        oracles.triplet,
        {"margin": 1.0, **SIMILAR},
        ("labels",),
    ),
    Case("moco", moco_loss, oracles.moco, {}, QUEUE),
    Case("moco_ids", moco_loss, oracles.moco, SIMILAR, (*QUEUE, "queue_ids")),
    Case("rocl", rocl_loss, oracles.rocl, {}, ("adversarial",)),
    Case(
        "rocl_similar",
        rocl_loss,
        oracles.rocl,
        {"adversarial_weight": 0.5, "max_similarity": 0.35},
        ("adversarial",),
    ),
]


def case_named(name):
    (case,) = (case for case in CASES if case.name == name)
    return case


def batch(case, dtype=np.float64, used=("ids", "weights")):
    """The inputs of a case, with what makes a batch awkward."""
    rng = np.random.default_rng(15)
    rows, slots, d = 9, 6, 5
    a = rng.normal(size=(rows, d))
    b = a + 0.5 * rng.normal(size=(rows, d))
    b[3] = b[5]  # a duplicate
    a[6] = 0.0  # a row without direction
    more = a[:, np.newaxis] + 0.5 * rng.normal(size=(rows, 2, d))
    more[5, 1] = 0.0  # a positive without direction
    queue = rng.normal(size=(slots, d))
    queue[4] = 0.0  # a key without direction
    inputs = {
        "view_a": a,
        "view_b": b,
        "mask": np.ones(rows, bool),
        "ids": np.array([1, 2, 3, 3, 4, 5, 6, 7, 1], np.int64),
        "weights": rng.uniform(0.1, 2.0, rows),
        "labels": np.array([0, 0, -1, 1, 0, -1, 1, 1, 1]),
        "more_positives": more,
        "adversarial": a + 0.3 * rng.normal(size=(rows, d)),
        "queue": queue,
        "queue_mask": np.array([True, True, False, True, True, True]),
        "queue_ids": np.array([4, 1, 1, 9, 8, 3], np.int64),
    }
    inputs["mask"][[1, 7]] = False
    inputs["weights"][4] = 0.0
    inputs = {k: v.astype(dtype) if k in FLOATS else v for k, v in inputs.items()}
    names = ["view_a", "view_b", "mask", *used, *case.inputs]
    if "ids" not in used and "queue_ids" in names:
        names.remove("queue_ids")  # they need the rows' ids
    return {name: inputs[name] for name in names}


def by_row(inputs, change):
    """The inputs with every one that is by row changed."""
    return {k: v if k in BY_SLOT else change(v) for k, v in inputs.items()}


def evaluate(case, inputs, *, temperature=0.1, in_a_graph=False):
    """Value and gradients by name, as NumPy arrays."""
    options = {"temperature": temperature} if "temperature" in case.parameters else {}

    def run(vectors):
        # All else is a constant of the graph, which graph optimisation folds where it can.
        return _run(case, {**inputs, **vectors}, **options)

    vectors = {k: tf.constant(v) for k, v in inputs.items() if k in VECTORS}
    return _to_numpy(tf.function(run)(vectors) if in_a_graph else run(vectors))


def evaluate_in_the_graph(case, inputs, *, jit_compile):
    """As `evaluate` at the default temperature, in the one graph that a case has."""
    return _to_numpy(_graph(case, jit_compile)({k: tf.constant(v) for k, v in inputs.items()}))


@functools.cache
def _graph(case, jit_compile):
    inputs = {k: tf.constant(v) for k, v in batch(case, np.float32).items()}
    # Without XLA the number of rows is unknown, as in training on a data set with a last batch.
    signature = {k: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for k, v in inputs.items()}
    return tf.function(
        lambda inputs: _run(case, inputs),
        jit_compile=jit_compile,
        input_signature=None if jit_compile else [signature],
    )


def _run(case, inputs, **options):
    vectors = {k: v for k, v in inputs.items() if k in VECTORS}
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        loss = case.loss(**{**inputs, **options, **case.options})
    return loss, tape.gradient(loss, vectors)


def _to_numpy(result):
    loss, gradients = result
    return loss.numpy(), {k: gradient.numpy() for k, gradient in gradients.items()}


def reference(case, inputs, *, temperature=0.1):
    """The value of the oracle."""
    a, b, rest = _split(inputs)
    if "temperature" in case.parameters:
        rest["temperature"] = temperature
    return case.oracle(a, b, **rest, **case.options)


def _split(inputs):
    rest = dict(inputs)
    return rest.pop("view_a"), rest.pop("view_b"), rest
