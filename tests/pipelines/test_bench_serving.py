"""What is compared and said of exports; nothing looks at real times."""

import json

import pytest
import tensorflow as tf

from pipelines.config import ConfigError

pytestmark = pytest.mark.tfrs


@pytest.fixture
def job(monkeypatch):
    from pipelines import bench_serving, bench_step

    monkeypatch.setattr(bench_step, "_SIZES", {"item": 50, "category": 9, "user": 30})
    monkeypatch.setattr(bench_serving, "_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(bench_serving, "_LEAST_REQUESTS", 1)
    return bench_serving


def test_nothing_of_the_plug_in_is_left(job, tmp_path):
    from pipelines.bench_headlines import of_serving

    output = tmp_path / "serving.json"
    report = job.bench_serving([1, 3], rounds=6, output=output)
    assert json.loads(output.read_text("utf-8")) == report
    assert list(report["results"]) == ["reference ranker", "functional model"]
    for result in report["results"].values():
        assert result["operations"]["stripped"] == result["operations"]["bare"] > 50
        assert result["random_operations"] == {"bare": [], "stripped": []}
        assert result["same_signature"]
        assert result["same_scores"]
        sizes = result["megabytes"]
        assert sizes["stripped"] == pytest.approx(sizes["bare"], rel=0.01)
        assert list(result["latency"]) == ["1", "3"]
        for latency in result["latency"].values():
            assert {len(turns) for turns in latency["turns"].values()} == {6}
    text = job.to_markdown(report)
    count = report["results"]["reference ranker"]["operations"]["bare"]
    assert f"| reference ranker, stripped | {count} | 0 | " in text
    assert " | same signature, scores as while plugged |" in text
    assert f"reference ranker: {count} operations, bare {count}; latency 1 rows " in (
        of_serving(report)
    )


class Scorer(tf.Module):
    """Scores by a function within a function; with noise they have another name too."""

    def __init__(self, noise):
        super().__init__()
        self.weight = tf.Variable(2.0)
        self.inner = tf.function(lambda x: tf.exp(self.weight * x))

        def score(x):
            scores = self.inner(x)
            return {"noisy": scores + tf.random.uniform([])} if noise else {"score": scores}

        signature = [tf.TensorSpec([None], tf.float32, name="x")]
        self.score = tf.function(score, input_signature=signature)


@pytest.fixture
def pair(job, tmp_path):
    """A bare export, and one that has a random operation left."""
    from pipelines.serving_pairs import Pair

    folders = {}
    for name, noise in (("bare", False), ("stripped", True)):
        folders[name] = tmp_path / name
        module = Scorer(noise)
        tf.saved_model.save(module, str(folders[name]), signatures=module.score)
    scores = tf.exp(2.0 * tf.ones([64])).numpy()
    return Pair(folders, lambda rows: {"x": tf.ones([rows])}, scores)


def test_what_is_left_is_found(job, pair):
    result = job._compare("model", pair, [1], rounds=6)
    assert result["random_operations"] == {"bare": [], "stripped": ["RandomUniform"]}
    assert result["operations"]["stripped"] > result["operations"]["bare"]
    assert not result["same_signature"]
    assert not result["same_scores"]
    report = {
        "results": {"model": result}, "rounds": 6, "versions": {},
        "machine": {"cores": 2, "processor": "chip", "python": "3", "settings": {}},
    }  # fmt: skip
    row = next(line for line in job.to_markdown(report).splitlines() if "stripped" in line)
    assert row.startswith(f"| model, stripped | {result['operations']['stripped']} | 1 | ")
    assert row.endswith(" | another signature, other scores |")
    pair.folders["stripped"] = pair.folders["bare"]
    assert job._compare("model", pair, [1], rounds=6)["same_scores"]


def test_operations_of_inner_functions_count(job, pair):
    served = job._Served(pair.folders["bare"])
    graph = served._function.graph.as_graph_def()
    found = job.operations(graph)
    assert "Exp" in found
    assert "Exp" not in [node.op for node in graph.node]
    assert served.num_operations() == len(found)


def test_ratios_are_of_rounds_and_all_are_loaded_anew(job, pair, monkeypatch):
    rounds = [(1.0, 2.0, 1.0), (2.0, 2.0, 4.0), (3.0, 9.0, 3.0)]
    seconds = iter(rounds * 2)
    orders, seen = [], []

    def turn(served, inputs):
        orders.append([*served])
        assert not {*served.values()} & {*seen}
        seen.extend(served.values())
        assert inputs["x"].shape == [5]
        return dict(zip(("bare", "stripped", job.AGAIN), next(seconds), strict=True))

    monkeypatch.setattr(job, "_round", turn)
    latency = job._latency("model", pair, [5], rounds=6)["5"]
    assert sorted(order[0] for order in orders[:3]) == sorted(["bare", "stripped", job.AGAIN])
    assert latency["seconds"] == {"bare": 2.0, "stripped": 2.0, job.AGAIN: 3.0}
    assert latency["stripped"] == {"ratio": 2.0, "interval": [1.0, 3.0], "holds_one": True}
    assert latency[job.AGAIN]["interval"] == [1.0, 2.0]
    slow = job._summary({"bare": [1.0] * 6, "stripped": [2.0] * 6, job.AGAIN: [1.0] * 6})
    assert not slow["stripped"]["holds_one"]


def test_each_comes_first_as_often_as_any_other(job):
    asked = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def scores(self, inputs):
            asked.append(self.name)

    job._round({name: Fake(name) for name in "abc"}, {})
    assert asked == [*"aabbcc", *"abcbcacab"]


def test_bad_numbers_are_refused(job):
    for sizes, rounds in (([], 6), ([0], 6), ([1], 5)):
        with pytest.raises(ConfigError, match="expected requests of at least 1 row"):
            job.bench_serving(sizes, rounds=rounds)
