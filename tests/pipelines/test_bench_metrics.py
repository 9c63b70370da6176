import json

import numpy as np
import pytest

from pipelines.bench_metrics import bench_metrics, bench_table, to_markdown
from pipelines.config import ConfigError
from seqdenoise.evaluation.ranking import gauc


def test_the_table_has_what_makes_the_task_hard():
    labels, scores, other, users = bench_table(20_000)
    sizes = np.bincount(users)
    assert sizes[sizes > 0].min() <= 3
    assert sizes.max() > 200
    assert (np.diff(users) < 0).mean() > 0.4  # scattered
    positives = np.bincount(users, labels)
    assert ((positives == 0) | (positives == sizes)).sum() > 10  # users of one class
    assert np.unique(scores).size < 9000  # ties
    assert not np.array_equal(scores, other)


def test_a_small_bench(tmp_path):
    output = tmp_path / "metrics.json"
    report = bench_metrics(rows=4000, loop_rows=1500, rounds=2, output=output)
    assert json.loads(output.read_text("utf-8")) == report
    assert 1000 < report["loop_rows"] < 2000
    table = bench_table(4000)
    results = report["results"]
    assert results["GAUC"]["value"] == gauc(table.labels, table.scores, table.users)
    for name, row in results.items():
        assert len(row["turns"]) == 2
        assert row["cpu_seconds"] == np.median([turn["cpu_seconds"] for turn in row["turns"]])
        assert row["wall_seconds"] == np.median([turn["wall_seconds"] for turn in row["turns"]])
        if name in ("AUC", "GAUC", "log loss", "NDCG@10"):
            assert row["difference"] < 1e-12
            assert row["cpu_ratio"] == row["their_cpu_seconds"] / row["cpu_seconds"]
        else:
            assert "cpu_ratio" not in row
    scale = {"GAUC": 4000 / report["loop_rows"], "AUC": 1.0}
    for name, factor in scale.items():
        measured = np.median([turn["cpu_seconds"] for turn in results[name]["their_turns"]])
        np.testing.assert_allclose(results[name]["their_cpu_seconds"], measured * factor)
    text = to_markdown(report)
    row = results["GAUC"]
    assert f"| GAUC | {row['wall_seconds']:.3g} | {row['cpu_seconds']:.3g} |" in text
    assert f" | {row['cpu_ratio']:.3g} | " in text
    assert f"on {report['loop_rows']:,} of the rows" in text
    assert "| ECE |" in text


@pytest.mark.parametrize("change", [{"rows": 999}, {"loop_rows": 10}, {"rounds": 0}])
def test_bad_numbers_are_refused(change):
    with pytest.raises(ConfigError, match=r"at least 1000 rows.*Received:"):
        bench_metrics(**({"rows": 1000, "loop_rows": 1000, "rounds": 1} | change))
