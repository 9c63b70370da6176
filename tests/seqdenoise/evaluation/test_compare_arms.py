import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seqdenoise.evaluation.compare import compare, compare_arms
from seqdenoise.evaluation.delong import delong
from seqdenoise.evaluation.metrics import find_metrics
from seqdenoise.evaluation.multiplicity import benjamini_hochberg, holm
from seqdenoise.evaluation.verdict import arms_to_dict

ALL = ("AUC", "GAUC", "log loss", "normalised entropy", "NDCG@10", "ECE", "recall@2")


def experiment(seed=0, *, gains=(0.0, 0.0), num_users=120, num_seeds=3):
    """Impressions in user clusters, and probabilities of a control and of one arm per gain."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), rng.integers(2, 20, num_users))
    taste = rng.normal(size=num_users)[users]
    logits = taste - 1.2 + rng.normal(size=users.size)
    labels = rng.random(users.size) < 1 / (1 + np.exp(-logits))

    def arm(gain):
        errors = rng.normal(size=(num_seeds, users.size)) + rng.normal(size=users.size)
        return 1 / (1 + np.exp(1.2 - 0.6 * (logits + 1.2) - 0.6 * (1 - gain) * errors))

    return labels, users, {"now": arm(0.0)} | {f"arm {i}": arm(g) for i, g in enumerate(gains)}


def run(case, **changes):
    labels, users, scores = case
    options = {"control": "now", "num_resamples": 60} | changes
    return compare_arms(labels, users, scores, **options)


def test_two_arms_are_what_compare_gives():
    labels, users, scores = experiment(gains=(0.2,))
    arms = run((labels, users, scores), metrics=ALL)
    pair = compare(labels, users, scores["now"], scores["arm 0"], num_resamples=60, metrics=ALL)
    assert arms.arms["arm 0"] == pair
    # Further metrics change nothing of the first two.
    plain = compare(labels, users, scores["now"], scores["arm 0"], num_resamples=60)
    assert plain.metrics == pair.metrics[:2]


def test_values_of_every_metric():
    labels, users, scores = experiment()
    result = run((labels, users, scores), metrics=ALL, num_resamples=5)
    for metric in find_metrics(ALL):
        for arm, comparison in result.arms.items():
            entry = comparison[metric.name]
            assert entry.larger_is_better == metric.larger_is_better
            for side, table in ((entry.control, "now"), (entry.treatment, arm)):
                each = [
                    metric.value(labels, row, users, np.ones(users.size)) for row in scores[table]
                ]
                np.testing.assert_allclose(side, np.mean(each), rtol=1e-12)


def test_neither_rows_nor_the_order_of_the_arms_matter():
    labels, users, scores = experiment(gains=(0.1, 0.3, -0.1))
    half = np.where(users % 2, "odd", "even")
    before = run((labels, users, scores), slices={"half": half})
    rows = np.random.default_rng(1).permutation(users.size)
    mixed = {arm: scores[arm][:, rows] for arm in ("arm 2", "arm 0", "now", "arm 1")}
    names = np.array([f"u{user}" for user in users])
    after = run((labels[rows], names[rows], mixed), slices={"half": half[rows]})
    assert after.arms == before.arms  # to the last bit
    assert after.slices == before.slices


def test_losses_are_better_below_0():
    case = experiment(gains=(0.5,))
    result = run(case, metrics=ALL).arms["arm 0"]
    for name in ("log loss", "normalised entropy"):
        assert result[name].high < 0
        assert result[name].outcome == "better"
    assert result["AUC"].low > 0
    assert result["AUC"].outcome == "better"
    labels, users, scores = case
    back = compare(
        labels, users, scores["arm 0"], scores["now"], num_resamples=60, metrics=["log loss", "AUC"]
    )
    assert [metric.outcome for metric in back.metrics] == ["worse", "worse"]


def test_the_spread_of_a_probability_metric_is_that_of_a_plain_user_bootstrap():
    labels, users, scores = experiment(num_users=60, num_seeds=2, gains=(0.1,))
    (metric,) = find_metrics(["normalised entropy"])
    found = run((labels, users, scores), metrics=[metric.name], num_resamples=2000)
    rng = np.random.default_rng(99)
    rows_of = [np.flatnonzero(users == user) for user in range(60)]
    drawn = []
    for _ in range(1000):
        rows = np.concatenate([rows_of[user] for user in rng.integers(60, size=60)])
        values = [
            [metric.value(labels[rows], row[rows], users[rows], np.ones(rows.size)) for row in arm]
            for arm in scores.values()
        ]
        drawn.append(np.subtract(values[1], values[0]))
    covariance = np.cov(np.array(drawn), rowvar=False) * 60 / 59
    entry = found.arms["arm 0"][metric.name]
    # A variance from 1000 draws is known to 4.5 %.
    np.testing.assert_allclose(entry.users_variance, covariance[0, 1], rtol=0.15)
    np.testing.assert_allclose(
        entry.users_variance + entry.users_by_seeds_variance, np.trace(covariance) / 2, rtol=0.15
    )


def test_p_values_and_intervals_agree():
    for confidence in (0.8, 0.95):
        for comparison in run(experiment(gains=(0.1, 0.3)), confidence=confidence).arms.values():
            for metric in comparison.metrics:
                excluded = metric.low > 0 or metric.high < 0
                assert (metric.p_value < 1 - confidence) == excluded
                assert (metric.outcome != "cannot tell") == excluded


def test_delong_stands_beside_the_auc_of_each_seed():
    labels, users, scores = experiment(gains=(0.1,))
    pair = run((labels, users, scores)).arms["arm 0"]
    for seed, entry in enumerate(pair["AUC"].seeds):
        expected = delong(labels, scores["now"][seed], scores["arm 0"][seed])
        np.testing.assert_allclose(
            [entry.delong.difference, entry.delong.low, entry.delong.high],
            [expected.difference, expected.low, expected.high],
            rtol=1e-9,
        )
        np.testing.assert_allclose(entry.delong.difference, entry.difference, atol=1e-14)
    assert all(entry.delong is None for entry in pair["GAUC"].seeds)
    weighted = run((labels, users, scores), weights=np.ones(users.size)).arms["arm 0"]
    assert all(entry.delong is None for entry in weighted["AUC"].seeds)


def test_delong_and_the_bootstrap_agree_where_every_row_is_a_user():
    rng = np.random.default_rng(0)
    labels = rng.random(1500) < 0.3
    shared = labels + rng.normal(size=1500)
    control, treatment = shared + rng.normal(0, 0.7, (2, 1, 1500))
    (seed,) = compare(labels, np.arange(1500), control, treatment, num_resamples=1000)["AUC"].seeds
    np.testing.assert_allclose(seed.high - seed.low, seed.delong.high - seed.delong.low, rtol=0.08)


def test_scores_that_are_no_probabilities_have_no_losses():
    labels, users, scores = experiment()
    scores["arm 1"] = np.log(scores["arm 1"])
    result = run((labels, users, scores))
    names = [metric.metric for metric in result.arms["arm 0"].metrics]
    assert names == ["AUC", "GAUC", "NDCG@10"]
    (note,) = (note for note in result.notes if "left out" in note)
    assert note.startswith("log loss, normalised entropy, ECE are left out: arm 1 has scores outs")
    with pytest.raises(ValueError, match=r"expected a metric.*Received: ECE is left out"):
        run((labels, users, scores), metrics=["ECE"])


def test_a_saturated_probability_costs_what_the_coarsest_type_asks():
    users = np.repeat(np.arange(30), 2)
    labels = np.arange(60) % 2
    certain = np.where(np.arange(60) == 0, 1.0, 0.5)[None]  # certain of a negative
    coarse = compare(
        labels, users, certain, certain.astype(np.float32), metrics=["log loss"], num_resamples=5
    )["log loss"]
    assert coarse.difference == 0
    np.testing.assert_allclose(coarse.control, (23 + 59) * math.log(2) / 60, rtol=1e-6)


def test_slices_are_compared_on_their_own_rows():
    labels, users, scores = experiment(gains=(0.4,), num_users=200)
    tab = np.random.default_rng(0).integers(0, 2, users.size)
    result = run((labels, users, scores), slices={"tab": tab, "one": users * 0}, num_resamples=500)
    parts = result.slices["tab"]
    assert [part.value for part in parts] == [0, 1]
    assert type(parts[0].value) is int
    for part in parts:
        rows = tab == part.value
        alone = compare(
            labels[rows],
            users[rows],
            *(table[:, rows] for table in scores.values()),
            metrics=[metric.metric for metric in result.arms["arm 0"].metrics],
            num_resamples=500,
        )
        assert (part.num_rows, part.num_users) == (alone.num_rows, alone.num_users)
        for entry, expected in zip(part.arms["arm 0"], alone.metrics, strict=True):
            found = entry.comparison
            np.testing.assert_allclose(found.difference, expected.difference, rtol=1e-9)
            # The draws differ: those of all users, as far as they are in the slice.
            np.testing.assert_allclose(found.standard_error, expected.standard_error, rtol=0.2)
    # A slice of all rows is the whole.
    ((whole,),) = (result.slices["one"],)
    for entry, expected in zip(whole.arms["arm 0"], result.arms["arm 0"].metrics, strict=True):
        np.testing.assert_allclose(
            [entry.comparison.low, entry.comparison.high], [expected.low, expected.high], rtol=1e-9
        )


def test_slices_take_no_more_than_some_of_the_draws(monkeypatch):
    monkeypatch.setattr("seqdenoise.evaluation.slices.MOST_RESAMPLES", 30)
    labels, users, scores = experiment(gains=(0.1,))
    many = run((labels, users, scores), slices={"one": users * 0}, num_resamples=60)
    few = run((labels, users, scores), num_resamples=30)
    ((whole,),) = (many.slices["one"],)
    for entry, expected in zip(whole.arms["arm 0"], few.arms["arm 0"].metrics, strict=True):
        np.testing.assert_allclose(
            entry.comparison.standard_error, expected.standard_error, rtol=1e-9
        )


@pytest.mark.parametrize(
    ("multiplicity", "correct"), [("holm", holm), ("benjamini-hochberg", benjamini_hochberg)]
)
def test_slices_are_corrected_within_treatment_and_metric(multiplicity, correct):
    labels, users, scores = experiment(gains=(0.0, 0.3), num_users=300)
    rng = np.random.default_rng(0)
    slices = {"day": rng.integers(0, 5, users.size), "tab": rng.integers(0, 3, users.size)}
    result = run(
        (labels, users, scores),
        slices=slices,
        metrics=["AUC", "log loss"],
        multiplicity=multiplicity,
    )
    assert result.multiplicity == multiplicity
    outcomes = []
    for arm in ("arm 0", "arm 1"):
        for position in (0, 1):
            family = [
                part.arms[arm][position] for parts in result.slices.values() for part in parts
            ]
            assert len(family) == 8
            assert len({entry.comparison.metric for entry in family}) == 1
            adjusted = correct([entry.comparison.p_value for entry in family])
            np.testing.assert_array_equal([e.adjusted_p_value for e in family], adjusted)
            for entry in family:
                if entry.adjusted_p_value >= 0.05:
                    assert entry.outcome == "cannot tell"
                else:
                    assert entry.outcome == entry.comparison.outcome != "cannot tell"
                outcomes.append((arm, entry.comparison.outcome, entry.outcome))
    assert ("arm 1", "better", "better") in outcomes
    assert ("arm 1", "better", "cannot tell") in outcomes  # what the correction took away


def test_slices_of_few_users_or_one_class_are_left_out_with_a_note():
    labels, users, scores = experiment()
    kind = np.where(users < 12, "rare", np.where(labels, "clicked", "not")).astype(str)
    result = run((labels, users, scores), slices={"kind": kind})
    assert [part.value for part in result.slices["kind"]] == ["clicked", "not"]
    for part in result.slices["kind"]:
        names = [entry.comparison.metric for entry in part.arms["arm 0"]]
        top = ["NDCG@10"] if part.value == "clicked" else []
        assert names == ["log loss", *top, "ECE"]
    assert "kind: fewer than 20 users, left out: rare." in result.notes
    assert "kind: AUC is left out where too few users define it: clicked, not." in result.notes
    assert "kind: NDCG@10 is left out where too few users define it: not." in result.notes


def test_a_metric_that_few_users_of_a_slice_define_is_left_out():
    labels, users, scores = experiment()
    # Users below 40 have positives alone, but for user 0: GAUC hangs on how often it is drawn.
    few = users < 40
    labels = np.where(few & (users > 0), True, labels)
    labels[:2] = [True, False]
    result = run((labels, users, scores), slices={"few": few}, metrics=["GAUC", "AUC"])
    names = [[e.comparison.metric for e in part.arms["arm 0"]] for part in result.slices["few"]]
    assert names == [["GAUC", "AUC"], []]
    assert "few: GAUC is left out where too few users define it: True." in result.notes


def test_several_treatments_get_a_note():
    assert "2 treatments" in " ".join(run(experiment()).notes)
    assert run(experiment(gains=(0.1,))).notes == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"control": "old"}, "must hold the control"),
        ({"scores": {"now": np.zeros((1, 60))}}, "at least one other arm"),
        ({"metrics": ["F1"]}, "`metrics`"),
        ({"multiplicity": "bonferroni"}, "`multiplicity`"),
        ({"slices": {"day": np.zeros(59)}}, r"`slices\['day'\]` must have the shape"),
        ({"slices": {"day": np.full(60, np.nan)}}, r"`slices\['day'\]` must not be missing"),
        ({"scores": {"now": np.zeros((1, 60)), "a": np.zeros((2, 60))}}, "the same seeds"),
        ({"scores": {"now": np.zeros((1, 60)), "a": np.zeros(60)}}, r"`scores\['a'\]` must have"),
        ({"confidence": 0.3}, "`confidence`"),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {
        "labels": np.arange(60) % 2,
        "users": np.arange(60) // 2,
        "scores": {"now": np.zeros((1, 60)), "new": np.zeros((1, 60))},
        "control": "now",
        "num_resamples": 5,
    } | change
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received:"):
        compare_arms(**arguments)


def test_a_slice_has_few_values():
    labels = np.arange(202) % 2
    scores = {"now": np.zeros((1, 202)), "new": np.zeros((1, 202))}
    with pytest.raises(ValueError, match=r"at most 100 different values. Received: 101"):
        compare_arms(labels, labels, scores, control="now", slices={"id": np.arange(202) // 2})


def test_the_result_is_plain_data_for_json():
    labels, users, scores = experiment(num_users=60)
    result = run((labels, users, scores), slices={"odd": users % 2 == 1})
    plain = arms_to_dict(result)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert list(plain["arms"]) == ["arm 0", "arm 1"]
    assert [part["value"] for part in plain["slices"]["odd"]] == [False, True]
    entry = plain["slices"]["odd"][1]["arms"]["arm 1"][0]
    assert entry["metric"] == "AUC"
    assert 0 <= entry["p_value"] <= entry["adjusted_p_value"] <= 1
    assert entry["corrected_outcome"] == "cannot tell"


def test_evaluation_needs_no_tensorflow():
    package = Path(compare_arms.__code__.co_filename).parent
    # What draws is matplotlib's alone.
    modules = sorted(
        path.stem
        for path in package.glob("*.py")
        if path.stem != "__init__" and "from matplotlib" not in path.read_text("utf-8")
    )
    assert {"compare", "slices", "top_k", "verdict"} < set(modules)
    lines = [f"import seqdenoise.evaluation.{name}" for name in modules]
    lines += ["import sys", "assert not {'tensorflow', 'matplotlib', 'sklearn'} & {*sys.modules}"]
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        check=True,
        cwd=package.parents[1],
        env={**os.environ, "SEQDENOISE_DATA_ONLY": "1"},
    )
