import dataclasses
import json

import pytest

from seqdenoise.evaluation.compare import Comparison, MetricComparison, SeedResult
from seqdenoise.evaluation.results import ArmsComparison, SliceComparison, SliceMetric
from seqdenoise.evaluation.verdict import (
    headline,
    slices_to_markdown,
    to_dict,
    to_markdown,
    verdict,
)


def metric(num_seeds=3, **changes):
    entry = MetricComparison(
        metric="AUC",
        larger_is_better=True,
        control=0.7,
        treatment=0.7012,
        difference=0.0012,
        low=-0.0004,
        high=0.0028,
        standard_error=0.0005,
        p_value=0.06,
        detectable_effect=0.0021,
        outcome="cannot tell",
        users_needed=3.21,
        seeds_needed=7,
        both_needed=None,
        users_variance=1e-7,
        users_by_seeds_variance=1e-7,
        seeds_variance=1e-7,
        seeds=(SeedResult(0.7, 0.7012, 0.0012, -0.001, 0.003),) * num_seeds,
    )
    return dataclasses.replace(entry, **changes)


def comparison(*metrics, notes=()):
    return Comparison(metrics, 12_345, 678, 3, 0.95, 2000, 0, notes)


SETTLE = "would be needed to settle a difference this size"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": "better"}, "better"),
        ({"outcome": "worse"}, "worse"),
        ({}, f"cannot tell: about 3.3 times this many users, or 7 seeds, {SETTLE}"),
        (
            {"users_needed": 1234.0, "seeds_needed": None},
            "cannot tell: about 1,300 times this many users (more seeds alone would not do) "
            + SETTLE,
        ),
        (
            {"users_needed": 1.3, "seeds_needed": None, "num_seeds": 1},
            f"cannot tell: about 1.3 times this many users and more than one seed {SETTLE}",
        ),
        (
            {"users_needed": None, "seeds_needed": 1200},
            f"cannot tell: 1,200 seeds {SETTLE} (more users alone would not do)",
        ),
        (
            {"users_needed": None, "seeds_needed": None},
            "cannot tell: no practical number of users and seeds would settle a difference this "
            "size",
        ),
        (
            {"users_needed": None, "seeds_needed": None, "both_needed": (4.21, 9)},
            f"cannot tell: about 4.3 times this many users with 9 seeds {SETTLE} (neither alone "
            "would do)",
        ),
        (
            {"difference": 0.0, "users_needed": None, "seeds_needed": None},
            "cannot tell: no difference was measured",
        ),
    ],
)
def test_words(changes, words):
    assert verdict(metric(**changes)) == words


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1.0, "1.0"), (1.01, "1.1"), (9.81, "9.9"), (9.95, "10"), (10.0, "10"), (12.1, "13")],
)
def test_factors_are_rounded_up(factor, words):
    assert f"about {words} times" in verdict(metric(users_needed=factor))


def test_table():
    better = metric(metric="GAUC", outcome="better", low=0.0001)
    text = to_markdown(comparison(metric(), better, notes=("One thing.",)))
    assert text == (
        "| metric | control | treatment | difference | 95 % interval | detectable effect | verdict "
        "|\n"
        "| :--- | ---: | ---: | ---: | :---: | ---: | :--- |\n"
        "| AUC | 0.70000 | 0.70120 | +0.00120 | -0.00040 to +0.00280 | 0.00210 | cannot tell: "
        "about 3.3 times this many users, or 7 seeds, would be needed to settle a difference this "
        "size |\n"
        "| GAUC | 0.70000 | 0.70120 | +0.00120 | +0.00010 to +0.00280 | 0.00210 | better |\n"
        "\n"
        "12,345 impressions of 678 users, 3 seeds, 2,000 draws of the users.\n"
        "\n"
        "Note: One thing.\n"
    )


def test_headline():
    assert headline(comparison(metric(outcome="worse"), notes=("One thing.",))) == (
        "AUC: worse; +0.00120 (95 % interval -0.00040 to +0.00280)\nNote: One thing."
    )


def test_dict_holds_everything_and_survives_json():
    one = comparison(metric(users_needed=None, both_needed=(2.0, 9)), notes=("One thing.",))
    plain = to_dict(one)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["num_users"] == 678
    assert plain["notes"] == ["One thing."]
    (entry,) = plain["metrics"]
    assert entry["verdict"] == verdict(one.metrics[0])
    assert entry["users_needed"] is None
    assert entry["both_needed"] == [2.0, 9]
    assert entry["seeds"][0]["difference"] == 0.0012
    named = {field.name for field in dataclasses.fields(MetricComparison)}
    assert set(entry) == named | {"verdict"}


def test_table_says_where_smaller_is_better():
    loss = metric(metric="log loss", larger_is_better=False, outcome="worse", low=0.0001)
    assert "| log loss (smaller is better) | 0.70000 |" in to_markdown(comparison(loss))


def test_slices_table():
    def part(name, value, *metrics):
        entries = tuple(SliceMetric(one, 0.0312, "better") for one in metrics)
        return SliceComparison(name, value, 1234, 56, {"new": entries, "other": ()})

    gauc = metric(metric="GAUC")
    arms = ArmsComparison(
        "now",
        {"new": comparison(metric(), gauc)},
        {
            "day": (part("day", 1, metric(), gauc), part("day", 2, gauc)),
            "a|b": (part("a|b", "x\n|<i>", metric(low=0.0001)),),
        },
        "holm",
        (),
    )
    assert slices_to_markdown(arms, "new", "AUC") == (
        "| slice | value | impressions | users | control | difference in AUC | 95 % interval "
        "| corrected p | verdict |\n"
        "| :--- | :--- | ---: | ---: | ---: | ---: | :---: | ---: | :--- |\n"
        "| day | 1 | 1,234 | 56 | 0.70000 | +0.00120 | -0.00040 to +0.00280 | 0.031 | better |\n"
        "| a\\|b | x \\|<i> | 1,234 | 56 | 0.70000 | +0.00120 | +0.00010 to +0.00280 | 0.031 "
        "| better |\n"
        "\n"
        "p values and verdicts are corrected over these 2 slices by Holm; the intervals are each "
        "slice's own.\n"
    )
