"""The `bench metrics` job: seconds of every metric on a large table, and of scikit-learn's."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.bench_machine import machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from seqdenoise.evaluation.delong import delong
from seqdenoise.evaluation.probabilities import expected_calibration_error, normalised_entropy
from seqdenoise.evaluation.ranking import Floats, Ints, auc, gauc, log_loss
from seqdenoise.evaluation.top_k import ndcg_at_k, recall_at_k

_logger = logging.getLogger(__name__)

_ROWS_PER_USER = 50
_DISTRIBUTIONS = ("seqdenoise", "numpy", "scipy", "scikit-learn")


class Table(NamedTuple):
    """Impressions as a log has them: users' rows scattered, some scores equal.

    Attributes:
        labels: bool `[N]`.
        scores: float32 `[N]`, probabilities of four decimals.
        other: The same from another model.
        users: int64 `[N]`.
    """

    labels: NDArray[np.bool_]
    scores: NDArray[np.float32]
    other: NDArray[np.float32]
    users: Ints


def bench_table(rows: int, seed: int = 0) -> Table:
    """Simulates a table in which some users have a few rows and some have hundreds."""
    rng = np.random.default_rng(seed)
    share = rng.gamma(0.7, size=max(1, rows // _ROWS_PER_USER))
    users = rng.permutation(rng.choice(share.size, rows, p=share / share.sum()))
    logits = rng.normal(-2.5, 0.8, share.size)[users] + rng.normal(0, 0.8, rows)
    labels = rng.random(rows) < 1 / (1 + np.exp(-logits))

    def scores() -> NDArray[np.float32]:
        noisy = logits + rng.normal(0, 0.5, rows)
        return np.round(1 / (1 + np.exp(-noisy)), 4).astype(np.float32)

    return Table(labels, scores(), scores(), users.astype(np.int64))


def _ours(table: Table) -> dict[str, Callable[[], float]]:
    labels, scores, other, users = table
    return {
        "AUC": lambda: auc(labels, scores),
        "GAUC": lambda: gauc(labels, scores, users),
        "log loss": lambda: log_loss(labels, scores),
        "normalised entropy": lambda: normalised_entropy(labels, scores),
        "ECE": lambda: expected_calibration_error(labels, scores),
        "NDCG@10": lambda: ndcg_at_k(labels, scores, users, k=10),
        "recall@10": lambda: recall_at_k(labels, scores, users, k=10),
        "DeLong": lambda: delong(labels, scores, other).variance,
    }


def _of_users(table: Table, metric: Callable[[Any, Any], float], single: bool) -> float:
    """Impression-weighted mean of a metric over users, a call each; one class alone if `single`."""
    order = np.argsort(table.users, kind="stable")
    cuts = np.flatnonzero(np.diff(table.users[order])) + 1
    won = total = 0.0
    labels, scores = table.labels[order], table.scores[order]
    for rows in np.split(np.arange(order.size), cuts):
        of_user = labels[rows]
        if of_user.any() and (single or not of_user.all()):
            won += rows.size * metric(of_user, scores[rows])
            total += rows.size
    return won / total


def _theirs(table: Table) -> dict[str, Callable[[], float]]:
    """scikit-learn's metrics of a whole table."""
    from sklearn.metrics import log_loss as sk_log_loss
    from sklearn.metrics import roc_auc_score

    return {
        "AUC": lambda: roc_auc_score(table.labels, table.scores),
        "log loss": lambda: sk_log_loss(table.labels, table.scores.astype(np.float64)),
    }


def _loops(table: Table) -> dict[str, Callable[[], float]]:
    """scikit-learn's metrics in a loop over users."""
    from sklearn.metrics import ndcg_score, roc_auc_score

    def ndcg(labels: NDArray[np.bool_], scores: Floats) -> float:
        # It refuses a list of one row, whose NDCG is 1.
        return float(ndcg_score([labels], [scores], k=10)) if labels.size > 1 else 1.0

    return {
        "GAUC": lambda: _of_users(table, roc_auc_score, single=False),
        "NDCG@10": lambda: _of_users(table, ndcg, single=True),
    }


def _part(table: Table, rows: int) -> Table:
    """All rows of so many users that there are about so many rows."""
    share = min(1.0, rows / table.users.size)
    chosen = table.users < np.ceil(share * (table.users.max() + 1))
    return Table(*(column[chosen] for column in table))


def _turns(call: Callable[[], float], rounds: int) -> tuple[list[dict[str, float]], float]:
    turns = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        value = call()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        turns.append({"wall_seconds": wall, "cpu_seconds": cpu})
    return turns, float(value)


def _median(turns: Sequence[Mapping[str, float]], what: str) -> float:
    return float(np.median([turn[what] for turn in turns]))


def bench_metrics(
    *,
    rows: int = 10_000_000,
    loop_rows: int = 200_000,
    rounds: int = 3,
    output: Path | None = None,
) -> dict[str, Any]:
    """Times every metric on one table, and scikit-learn's where it has them.

    scikit-learn has no metric by user, so its GAUC and NDCG are a loop over users. That is measured
    on all rows of some users, and its seconds are those of the part times the ratio of rows; a
    loop over users grows no slower than that.

    Args:
        rows: Rows of the table, at least 1000.
        loop_rows: About how many rows the loops get, at least 1000.
        rounds: Turns of each, at least 1.
        output: The JSON file of everything measured.

    Returns:
        `machine`, `versions`, `rows`, `users`, `loop_rows` (as they came out), `rounds`, and
        `results`: by metric `value`, `turns` (`wall_seconds` and `cpu_seconds` of each) and the
        medians of these under the same names. Where scikit-learn is installed and has the metric,
        also `their_turns`, as measured, `their_cpu_seconds`, for the whole table, `cpu_ratio` of
        these to ours, and `difference` between the values on the rows that both got.

    Raises:
        ConfigError: A number is out of range.
    """
    if min(rows, loop_rows) < 1000 or rounds < 1:
        raise ConfigError(
            "expected at least 1000 rows for each and one round. "
            f"Received: rows={rows}, loop_rows={loop_rows}, rounds={rounds}"
        )
    _logger.info("bench: simulating %d rows", rows)
    table = bench_table(rows)
    part = _part(table, loop_rows)
    results: dict[str, dict[str, Any]] = {}
    for name, call in _ours(table).items():
        _logger.info("bench: %s", name)
        turns, value = _turns(call, rounds)
        results[name] = {"value": value, "turns": turns}
        for what in ("wall_seconds", "cpu_seconds"):
            results[name][what] = _median(turns, what)
    if find_spec("sklearn"):
        for on, calls in ((table, _theirs(table)), (part, _loops(part))):
            for name, call in calls.items():
                _logger.info("bench: scikit-learn, %s", name)
                turns, value = _turns(call, rounds)
                row = results[name]
                row["their_turns"] = turns
                row["their_cpu_seconds"] = _median(turns, "cpu_seconds") * rows / on.users.size
                row["cpu_ratio"] = row["their_cpu_seconds"] / row["cpu_seconds"]
                row["difference"] = abs(_ours(on)[name]() - value)
    report = {
        "machine": machine(),
        "versions": versions(_DISTRIBUTIONS),
        "rows": rows,
        "users": int(np.unique(table.users).size),
        "loop_rows": int(part.users.size),
        "rounds": rounds,
        "results": results,
    }
    write_json_report(report, output)
    return report


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown table, and a line about what it was measured on."""
    lines = [
        f"| {report['rows']:,} rows, {report['users']:,} users | wall, s | CPU, s "
        "| scikit-learn, CPU, s | ratio | difference |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in report["results"].items():
        theirs = " | | |"
        if "cpu_ratio" in row:
            theirs = (
                f" {row['their_cpu_seconds']:.3g} | {row['cpu_ratio']:.3g} "
                f"| {row['difference']:.0e} |"
            )
        lines.append(f"| {name} | {row['wall_seconds']:.3g} | {row['cpu_seconds']:.3g} |{theirs}")
    on = report["machine"]
    installed = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines += [
        "",
        f"Medians of {report['rounds']} turns. scikit-learn's GAUC and NDCG are a loop over users, "
        f"measured on {report['loop_rows']:,} of the rows and scaled to all. {on['processor']}, "
        f"one of {on['cores']} cores, Python {on['python']}; {installed}.",
    ]
    return "\n".join(lines) + "\n"
