"""The `bench serving` job: what is left of the plug-in in a model that was stripped of it."""

import logging
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.stats import quantile_test
from tensorflow.core.protobuf import saved_model_pb2

from pipelines.bench_machine import described, machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from pipelines.serving_pairs import BARE, CHECKED_ROWS, PAIRS, STRIPPED, Pair
from seqdenoise.numerics import Tensor

_logger = logging.getLogger(__name__)

BATCH_SIZES = (1, 64, 1024)
# The bare export, loaded a second time: how far its ratio is from 1 is noise.
AGAIN = "bare, loaded again"

_SIGNATURE = "serving_default"
_RANDOM = re.compile(r"Random|Rng|Multinomial|TruncatedNormal|StatefulUniform|StatefulStandard")
# A round is at least this long, and each gets so many requests in it.
_ROUND_SECONDS = 0.4
_LEAST_REQUESTS = 9
# With fewer even the extremes do not hold a median with 95 %.
_LEAST_ROUNDS = 6


def operations(graph: Any) -> list[str]:
    """The types of all operations of a `GraphDef`, those of the functions in it included."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return [node.op for node in nodes]


def random_operations(folder: Path) -> list[str]:
    """The types of the random operations in a SavedModel, whether or not a request meets them."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    found = {op for meta in saved.meta_graphs for op in operations(meta.graph_def)}
    return sorted(op for op in found if _RANDOM.search(op))


def bench_serving(
    batch_sizes: Sequence[int] = BATCH_SIZES,
    *,
    rounds: int = 30,
    output: Path | None = None,
) -> dict[str, Any]:
    """Compares exports of models that were stripped of the plug-in with ones that never had it.

    Two models: the reference ranker, and a functional one through `denoise` and
    `strip_for_serving`; each is trained with the plug-in, stripped, exported, and loaded again. The
    bare one is exported with the same weights. In every round both, and the bare one a second time,
    are loaded anew, and requests to the three alternate call by call.

    Args:
        batch_sizes: Rows of a request, each at least 1.
        rounds: How often the latencies are measured, at least 6.
        output: The JSON file of everything measured.

    Returns:
        `machine`, `versions`, `rounds`; and `results`, by model: by `BARE` and `STRIPPED`
        `operations` (of the signature, the functions it calls included), `random_operations` (in
        the file) and `megabytes` (of the folder); `same_signature`, `same_scores` (whether both
        score to the last bit as the model did while it was plugged), and `latency`, by rows:
        `seconds` by export (medians of the rounds), and for `STRIPPED` and `AGAIN` the `ratio` to
        `BARE` (median of the rounds), its 95 % `interval` (of any distribution, from order
        statistics), and whether it `holds_one`; and `turns`, the seconds of all rounds.

    Raises:
        ConfigError: A number is out of range.
    """
    if not batch_sizes or min(batch_sizes) < 1 or rounds < _LEAST_ROUNDS:
        raise ConfigError(
            f"expected requests of at least 1 row and {_LEAST_ROUNDS} rounds. "
            f"Received: batch_sizes={list(batch_sizes)}, rounds={rounds}"
        )
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in PAIRS.items():
            _logger.info("bench: training and exporting the %s", name)
            pair = make(Path(folder) / name)
            results[name] = _compare(name, pair, batch_sizes, rounds)
    report = {
        "machine": machine(),
        "versions": versions(("seqdenoise", "tensorflow", "tensorflow-recommenders")),
        "rounds": rounds,
        "results": results,
    }
    write_json_report(report, output)
    return report


def _compare(name: str, pair: Pair, batch_sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    served = {one: _Served(folder) for one, folder in pair.folders.items()}
    checked = pair.inputs(CHECKED_ROWS)
    scores = [one.scores(checked) for one in served.values()]
    return {
        "operations": {one: served[one].num_operations() for one in served},
        "random_operations": {
            one: random_operations(folder) for one, folder in pair.folders.items()
        },
        "megabytes": {one: _megabytes(folder) for one, folder in pair.folders.items()},
        "same_signature": served[BARE].signature() == served[STRIPPED].signature(),
        "same_scores": all(np.array_equal(one, pair.scores) for one in scores),
        "latency": _latency(name, pair, batch_sizes, rounds),
    }


class _Served:
    """A SavedModel as a server holds it."""

    def __init__(self, folder: Path) -> None:
        self._loaded = tf.saved_model.load(str(folder))
        self._function = self._loaded.signatures[_SIGNATURE]

    def scores(self, inputs: Mapping[str, Tensor]) -> np.ndarray[Any, Any]:
        """The answer to a request."""
        (output,) = self._function(**inputs).values()
        return output.numpy().ravel()

    def signature(self) -> tuple[Any, Any]:
        """Inputs and outputs by name."""
        return self._function.structured_input_signature, self._function.structured_outputs

    def num_operations(self) -> int:
        """How many there are in the signature and the functions it calls."""
        return len(operations(self._function.graph.as_graph_def()))


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def _latency(
    name: str, pair: Pair, batch_sizes: Sequence[int], rounds: int
) -> dict[str, dict[str, Any]]:
    folders = {**pair.folders, AGAIN: pair.folders[BARE]}
    requests = {rows: pair.inputs(rows) for rows in batch_sizes}
    turns: dict[int, dict[str, list[float]]] = {
        rows: {one: [] for one in folders} for rows in batch_sizes
    }
    for index in range(rounds):
        _logger.info("bench: %s, round %d of %d", name, index + 1, rounds)
        # Where a model comes to lie in memory makes it some per cent faster or slower for good: a
        # round that did not load it anew would measure that, again and again.
        first = index % len(folders)
        names = [*folders][first:] + [*folders][:first]
        served = {one: _Served(folders[one]) for one in names}
        for rows, inputs in requests.items():
            for one, seconds in _round(served, inputs).items():
                turns[rows][one].append(seconds)
    return {str(rows): _summary(of_rows) for rows, of_rows in turns.items()}


def _summary(turns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "seconds": {one: float(np.median(seconds)) for one, seconds in turns.items()}
    }
    for one in (STRIPPED, AGAIN):
        ratios = np.array(turns[one]) / np.array(turns[BARE])
        low, high = map(float, quantile_test(ratios, p=0.5).confidence_interval(0.95))
        summary[one] = {
            "ratio": float(np.median(ratios)),
            "interval": [low, high],
            "holds_one": low <= 1 <= high,
        }
    return {**summary, "turns": {one: list(seconds) for one, seconds in turns.items()}}


def _round(served: Mapping[str, _Served], inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Median seconds of a request to each; each comes first as often as any other."""
    names = list(served)
    for one in served.values():
        one.scores(inputs)
        one.scores(inputs)  # the first one loads the kernels
    seconds: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + _ROUND_SECONDS
    while len(seconds[names[0]]) < _LEAST_REQUESTS or time.perf_counter() < end:
        for first in range(len(names)):
            for name in (*names[first:], *names[:first]):
                start = time.perf_counter()
                served[name].scores(inputs)
                seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(of_one)) for name, of_one in seconds.items()}


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown: what is in the exports, then their latencies."""
    results = report["results"]
    lines = [
        "| export | operations | random ones | MB | signature and scores |",
        "| :--- | ---: | ---: | ---: | :--- |",
    ]
    for name, result in results.items():
        same = "same signature, " if result["same_signature"] else "another signature, "
        same += "scores as while plugged" if result["same_scores"] else "other scores"
        for one in (BARE, STRIPPED):
            cells = [
                f"{name}, {one}",
                f"{result['operations'][one]:,}",
                str(len(result["random_operations"][one])),
                f"{result['megabytes'][one]:.3f}",
                same,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"| a request to | rows | {BARE}, ms | {STRIPPED}, ms | ratio (interval) | 1 within "
        f"| {AGAIN}: ratio (interval) |",
        "| :--- | ---: | ---: | ---: | ---: | :--- | ---: |",
    ]
    for name, result in results.items():
        for rows, latency in result["latency"].items():
            ratios = {}
            for one in (STRIPPED, AGAIN):
                low, high = latency[one]["interval"]
                ratios[one] = f"{latency[one]['ratio']:.3f} ({low:.3f} to {high:.3f})"
            cells = [
                name,
                f"{int(rows):,}",
                *(f"{1000 * latency['seconds'][one]:.3f}" for one in (BARE, STRIPPED)),
                ratios[STRIPPED],
                "yes" if latency[STRIPPED]["holds_one"] else "no",
                ratios[AGAIN],
            ]
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Medians of {report['rounds']} rounds; intervals are of 95 %, so of many some miss the "
        f"truth. {described(report['machine'], report['versions'])}.",
    ]
    return "\n".join(lines) + "\n"
