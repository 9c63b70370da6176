"""What is varied, fitted, drawn and said; nothing looks at real times."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pipelines import bench_scaling as job
from pipelines.bench_headlines import of_scaling
from pipelines.bench_scaling import ADDED, bench_scaling, to_markdown
from pipelines.config import ConfigError
from pipelines.scaling_figure import scaling_figure
from pipelines.step_contenders import BARE, CONTENDERS, PLUGGED, make_problem

BASE = {"num_rows": 10, "length": 4, "num_types": 2, "num_fields": 1}


def costs(problem):
    """Bare: linear in rows and length. Added: the square of the rows, and of nothing else."""
    bare = 0.001 * problem["num_rows"] * problem["length"]
    return bare, bare + 1e-5 * problem["num_rows"] ** 2


@pytest.fixture
def contest(monkeypatch):
    """A contest that measures `costs`, its second round all twice as slow."""
    seen = {}

    def run_contest(contest, problems, *, rounds, memory, output):
        assert contest.contenders is CONTENDERS
        assert output is None
        seen.update(problems)
        results = {}
        for key, problem in problems.items():
            rows = {}
            for name, seconds in zip((BARE, PLUGGED), costs(problem), strict=True):
                turns = [seconds * factor for factor in (1, 2, 1)]
                rows[name] = {"turns": turns, "peak_megabytes": 100 * seconds if memory else None}
            results[key] = rows
        machine = {"cores": 2, "processor": "chip", "python": "3", "settings": {}}
        return {"machine": machine, "versions": {"tf": "1"}, "rounds": rounds, "results": results}

    monkeypatch.setattr(job, "run_contest", run_contest)
    return seen


SIZES = {"num_rows": (40, 20), "length": (2, 8), "num_types": (), "num_fields": (2,)}


def test_one_size_at_a_time_is_varied(contest):
    report = bench_scaling(SIZES, base=BASE, rounds=3)
    given = [{axis: problem[axis] for axis in BASE} for problem in contest.values()]
    assert len(given) == 1 + 2 + 2 + 1  # the base once
    assert BASE in given
    for problem in given:
        assert sum(problem[axis] != BASE[axis] for axis in BASE) <= 1
    assert {axis: one["sizes"] for axis, one in report["axes"].items()} == {
        "num_rows": [10, 20, 40], "length": [2, 4, 8], "num_fields": [1, 2],
    }  # fmt: skip


def test_exponents_are_those_of_the_costs(contest, tmp_path):
    output = tmp_path / "scaling.json"
    report = bench_scaling(SIZES, base=BASE, rounds=3, output=output)
    assert json.loads(output.read_text("utf-8")) == report
    expected = {
        "num_rows": {BARE: 1, ADDED: 2},
        "length": {BARE: 1, ADDED: 0},
        "num_fields": {BARE: 0, ADDED: 0},
    }
    for axis, by_name in expected.items():
        fits = report["axes"][axis]["fits"]
        for name, exponent in by_name.items():
            for cost in ("seconds", "megabytes"):
                law = fits[cost][name]
                assert law["exponent"] == pytest.approx(exponent, abs=1e-9)
                assert law["last_exponent"] == pytest.approx(exponent, abs=1e-9)
            time = fits["seconds"][name]
            assert time["exponent_range"] == pytest.approx([exponent, exponent], abs=1e-9)
            assert fits["megabytes"][name]["exponent_range"] is None
    rows = report["axes"]["num_rows"]
    assert rows["seconds"][ADDED] == pytest.approx([0.001, 0.004, 0.016])
    assert rows["seconds_ranges"][ADDED][1] == pytest.approx([0.004, 0.008])
    assert rows["megabytes"][PLUGGED] == pytest.approx([4.1, 8.4, 17.6])
    assert of_scaling(report).endswith(
        "power: rows of the batch, B 1.05 (added 2.00); slots of a sequence, L 0.97 (added "
        "0.00); fields of an event 0.00 (added 0.00)"
    )
    text = to_markdown(report)
    assert "| rows of the batch, B | 1.00 \u00b1 0.00 (1.00) |" in text
    assert "| 20 | 80.0 | 84.0 | 4.0 (4.0 to 8.0) | 8 | 8 | 0 |" in text
    assert "Unless varied: 10 rows, 4 length, 2 types, 1 fields." in text


def test_without_memory_there_is_none(contest, tmp_path):
    figure = tmp_path / "figures" / "scaling.svg"
    report = bench_scaling({"length": (2,)}, base=BASE, memory=False, figure=figure)
    assert "megabytes" not in report["axes"]["length"]
    assert "MB" not in to_markdown(report)
    assert ET.parse(figure).getroot().tag.endswith("svg")


def drawn(axes):
    return {
        line.get_color(): (line.get_xdata().tolist(), line.get_ydata())
        for line in axes.lines
        if line.get_marker() != "None"
    }


def test_the_figure_draws_what_was_measured(contest):
    report = bench_scaling(SIZES, base=BASE, rounds=3)
    report["axes"]["length"]["seconds"][ADDED][0] = -1.0
    figure = scaling_figure(report)
    assert len(figure.axes) == 6
    rows, length, fields = figure.axes[:3]
    points = drawn(rows)
    for name, (sizes, costs_) in zip((BARE, PLUGGED, ADDED), points.values(), strict=True):
        assert sizes == [10, 20, 40]
        milliseconds = 1000 * np.array(report["axes"]["num_rows"]["seconds"][name])
        np.testing.assert_allclose(costs_, milliseconds)
    assert [text.get_text() for text in rows.texts][::2] == ["1.00", "2.00"]
    # What is not above zero has no place there.
    assert [len(sizes) for sizes, _ in drawn(length).values()] == [3, 3, 2]
    assert fields.get_xscale() == fields.get_yscale() == "log"
    assert [axes.get_xlabel() for axes in figure.axes[3:]] == [
        "rows of the batch, B", "slots of a sequence, L", "fields of an event",
    ]  # fmt: skip


def test_a_step_that_fails_ends_the_run(monkeypatch):
    def failing(contest, problems, **options):
        row = {"turns": [1.0], "peak_megabytes": None}
        rows = {BARE: row, PLUGGED: {"error": "ResourceExhaustedError: too large"}}
        return {"results": dict.fromkeys(problems, rows)}

    monkeypatch.setattr(job, "run_contest", failing)
    with pytest.raises(RuntimeError, match=r"with the plug-in at 2 rows.*ResourceExhausted"):
        bench_scaling({"num_rows": (2,)})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"depth": (1,)}, r"expected axes of .* Received: \['depth'\]"),
        ({"num_rows": (1, 8)}, r"numbers of at least .* Received: \{'num_rows': \[1, 8\]\}"),
        ({}, "at least one axis"),
    ],
)
def test_bad_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        bench_scaling(sizes)


@pytest.fixture
def small_tables(monkeypatch):
    from pipelines import bench_step

    monkeypatch.setattr(bench_step, "_SIZES", {"item": 50, "category": 9, "user": 30})


@pytest.mark.tfrs
def test_a_problem_has_the_sizes_that_it_is_made_of(small_tables):
    problem = make_problem(num_rows=8, length=5, num_types=4, num_fields=3)
    kinds = {name.partition("__")[0] for name in problem.batch if name.endswith("__length")}
    assert kinds == {"click", "cart", "purchase", "type_3"}
    for kind in kinds:
        for field in ("item", "category", "field_2"):
            ids = problem.batch[f"{kind}__{field}"].numpy()
            assert ids.shape == (8, 5)
            assert ids.min() >= 3
            assert ids.max() < (50 if field == "item" else 9)
        assert problem.batch[f"{kind}__length"].numpy().max() <= 5


@pytest.mark.tfrs
def test_the_contenders_train_with_and_without_the_plug_in(small_tables):
    problem = make_problem(num_rows=8, length=5, num_types=1, num_fields=3)
    side = {}
    for contender in CONTENDERS:
        loss, side[contender.name], total = contender.make(problem)()
        assert total == pytest.approx(loss + side[contender.name])
    assert side[BARE] == 0
    assert side[PLUGGED] > 0.05
