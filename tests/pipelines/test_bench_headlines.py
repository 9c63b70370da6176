"""Headlines of reports as the benchmarks make them, with numbers that are easy to follow."""

from contextlib import contextmanager

from pipelines import bench_headlines as headlines
from pipelines import contest
from pipelines.contest import Contender, Contest, run_contest


def contest_report(monkeypatch, seconds, baseline, *, memory=False):
    """The report of a contest whose turns take so long, of a contender each; one of them fails."""

    class Scripted:
        def __init__(self, name):
            self.name = name

        def prepare(self, problem, results=None):
            return {"error": "boom"} if seconds[self.name] is None else {"seconds": 1.0}

        def ask(self, do):
            return {"megabytes": 30.4} if do == "memory" else {"seconds": seconds[self.name]}

    @contextmanager
    def worker(module, contender, **environment):
        yield Scripted(contender.name)

    monkeypatch.setattr(contest, "worker", worker)
    monkeypatch.setattr(contest, "_PAUSE_SECONDS", 0)
    contenders = [Contender(name, print) for name in seconds]
    return run_contest(
        Contest("somebodys.contenders", contenders, baseline, None, ()),
        {"512": {"num_rows": 512}, "1,024": {"num_rows": 1024}},
        rounds=1,
        memory=memory,
        output=None,
    )


def test_step():
    ratios = {"ratio": 1.5, "ratio_range": [1.25, 2.0]}
    results = {
        "8": {**ratios, "few_negatives_ratio": None},
        "2000": {
            **ratios,
            "few_negatives_ratio": 1.125,
            "few_negatives_ratio_range": [1.0, 1.5],
        },
    }
    assert headlines.of_step({"results": results}) == (
        "a training step with the plug-in, ratio to one without: 8 rows 1.50 (1.25 to 2.00); "
        "2,000 rows 1.50 (1.25 to 2.00), with few negatives 1.12 (1.00 to 1.50)"
    )


def test_losses(monkeypatch):
    seconds = {"products": 2.0, "seqdenoise": 3.0, "seqdenoise, XLA": 1.0, "TFRS": 1.0}
    report = contest_report(monkeypatch, seconds, "products", memory=True)
    assert headlines.of_losses(report) == (
        "loss and gradient, ratio to products: seqdenoise: 512 rows 1.50, 1,024 rows 1.50; "
        "seqdenoise, XLA: 512 rows 0.50, 1,024 rows 0.50; 30 MB at 1,024 rows"
    )
    report = contest_report(monkeypatch, seconds, "products")
    assert headlines.of_losses(report).endswith("1,024 rows 0.50")


def test_transport(monkeypatch):
    seconds = {"seqdenoise, XLA": 0.002, "seqdenoise": 0.001, "POT": 0.02, "OTT": 0.01, "GL": None}
    report = contest_report(monkeypatch, seconds, "seqdenoise, XLA")
    assert headlines.of_transport(report) == (
        "Sinkhorn, loss and gradient: 512: 2 ms, the fastest other (OTT) 5.0 times that; "
        "1,024: 2 ms, the fastest other (OTT) 5.0 times that"
    )
    alone = contest_report(monkeypatch, {"seqdenoise, XLA": 0.002}, "seqdenoise, XLA")
    assert headlines.of_transport(alone) == "Sinkhorn, loss and gradient: 512: 2 ms; 1,024: 2 ms"


def test_metrics():
    from pipelines.bench_metrics import bench_metrics

    report = bench_metrics(rows=1000, loop_rows=1000, rounds=1)
    report["results"]["AUC"] = {"cpu_seconds": 0.5}
    report["results"]["GAUC"] |= {"cpu_seconds": 0.25, "cpu_ratio": 123.4}
    assert headlines.of_metrics(report) == (
        "1,000 rows: AUC 0.5 s; GAUC 0.25 s, scikit-learn 123 times that"
    )


def test_scaling():
    law = {"exponent": 1.234}
    fits = {"bare": law, "with the plug-in": law, "added by the plug-in": None}
    report = {"axes": {"num_rows": {"label": "rows", "fits": {"seconds": fits}}}}
    assert headlines.of_scaling(report) == (
        "a step's time grows with the power: rows 1.23 (added none)"
    )
