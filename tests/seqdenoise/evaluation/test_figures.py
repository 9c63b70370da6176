import dataclasses
import io

import numpy as np
import pandas as pd
import pytest

from seqdenoise.evaluation.compare import compare, compare_arms
from seqdenoise.evaluation.drawing import OUTCOME_COLORS
from seqdenoise.evaluation.figures import (
    calibration_curves,
    metric_under_noise,
    power_curves,
    seed_differences,
    slice_differences,
)
from seqdenoise.evaluation.noise_curves import noise_curves
from seqdenoise.evaluation.power import spread_of
from seqdenoise.evaluation.probabilities import calibration_curve
from seqdenoise.evaluation.training_figures import (
    denoiser_curves,
    denoiser_types,
    learning_curves,
)


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(80), 10)
    labels = rng.random(800) < 0.4
    control, treatment = labels + rng.normal(0, 1.5, (2, 3, 800))
    result = compare(labels, users, control, treatment + 0.3 * labels, num_resamples=100)
    # Lopsided intervals, so that exchanging their ends would show.
    metrics = tuple(
        dataclasses.replace(
            metric,
            low=metric.low - 0.01,
            seeds=tuple(dataclasses.replace(one, high=one.high + 0.01) for one in metric.seeds),
        )
        for metric in result.metrics
    )
    return dataclasses.replace(result, metrics=metrics)


@pytest.fixture
def histories():
    tables = {}
    for arm, gain in (("control", 0.0), ("treatment", 0.01)):
        for seed in (3, 5):
            table = pd.DataFrame(
                {
                    "epoch": [1, 2, 3],
                    "loss": [0.6, 0.5, 0.4 - 0.01 * seed],
                    "valid_auc": [0.6, 0.7 + gain + 0.001 * seed, 0.65],
                }
            )
            if arm == "treatment":
                for kind in ("like", "click"):
                    table[f"denoiser/{kind}/loss"] = [3.0, 2.0, 1.0 + 0.1 * seed]
                    table[f"denoiser/{kind}/effective_rank"] = [10.0, 12.0, 13.0]
            tables[arm, seed] = table
    return tables


def renders(figure):
    """Drawing raises on broken text or limits; warnings are errors."""
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue().startswith(b"\x89PNG")


def interval_ends(container):
    """The ends of the error bar of one point."""
    _, _, (bars,) = container
    (segment,) = bars.get_segments()
    return segment[:, 0]


def test_seed_differences_draws_every_number(comparison):
    figure = seed_differences(comparison, seeds=[10, 11, 12])
    assert renders(figure)
    assert len(figure.axes) == 2
    for axes, metric in zip(figure.axes, comparison.metrics, strict=True):
        assert axes.get_title(loc="left") == f"{metric.metric}: {metric.outcome}"
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "seed 10",
            "seed 11",
            "seed 12",
            "all seeds",
        ]
        drawn = dict(zip(axes.get_legend_handles_labels()[1], axes.containers, strict=True))
        for name, expected in zip(
            ["seed 10", "seed 11", "seed 12", "all seeds"], [*metric.seeds, metric], strict=True
        ):
            assert drawn[name][0].get_xdata() == expected.difference
            np.testing.assert_allclose(
                interval_ends(drawn[name]), [expected.low, expected.high], rtol=1e-12
            )
        (band,) = axes.patches
        np.testing.assert_allclose(
            [band.get_x(), band.get_x() + band.get_width()],
            [-metric.detectable_effect, metric.detectable_effect],
        )
        # The first seed is on top, the sum at the bottom.
        bottom, top = axes.get_ylim()
        assert bottom > top


def test_seed_differences_wants_a_name_a_seed(comparison):
    with pytest.raises(ValueError, match=r"3 names. Received: 2"):
        seed_differences(comparison, seeds=[1, 2])


def test_learning_curves_draw_every_run(histories):
    figure = learning_curves(histories)
    assert renders(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "valid_auc"]
    for axes, column in zip(figure.axes, ["loss", "valid_auc"], strict=True):
        lines = {line.get_label(): line for line in axes.lines if len(line.get_xdata()) > 1}
        assert len(lines) == 4
        for (arm, seed), history in histories.items():
            line = lines[f"{arm}, seed {seed}"]
            np.testing.assert_array_equal(line.get_xdata(), history["epoch"])
            np.testing.assert_array_equal(line.get_ydata(), history[column])
        colors = {arm: lines[f"{arm}, seed 3"].get_color() for arm in ("control", "treatment")}
        assert colors["control"] != colors["treatment"]
        assert lines["control, seed 5"].get_color() == colors["control"]
    marks = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 1]
    assert [mark.get_xdata()[0] for mark in marks] == [2, 2, 2, 2]
    assert [mark.get_ydata()[0] for mark in marks] == [
        history["valid_auc"].max() for history in histories.values()
    ]
    assert all(len(line.get_xdata()) == 3 for line in figure.axes[0].lines)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "control (a line a seed)",
        "treatment (a line a seed)",
        "highest valid_auc",
    ]


def test_learning_curves_want_the_column(histories):
    with pytest.raises(ValueError, match=r"no history has the column 'valid_ndcg'.*Received:"):
        learning_curves(histories, columns=["loss", "valid_ndcg"])


def test_denoiser_curves_draw_the_treatment(histories):
    assert denoiser_types(histories) == ["click", "like"]
    figure = denoiser_curves(histories, metrics=("loss", "effective_rank"))
    assert renders(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "click: loss",
        "click: effective rank",
        "like: loss",
        "like: effective rank",
    ]
    assert [line.get_label() for line in figure.axes[0].lines] == [
        "treatment, seed 3",
        "treatment, seed 5",
    ]
    np.testing.assert_array_equal(
        figure.axes[3].lines[1].get_ydata(),
        histories["treatment", 5]["denoiser/like/effective_rank"],
    )
    # An arm keeps its colour from figure to figure.
    assert (
        figure.axes[0].lines[0].get_color()
        == learning_curves(histories).axes[0].lines[2].get_color()
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["treatment (a line a seed)"]


def test_denoiser_curves_want_a_denoiser(histories):
    control = {run: table for run, table in histories.items() if run[0] == "control"}
    assert denoiser_types(control) == []
    with pytest.raises(ValueError, match=r"no history has a column `denoiser/.*Received:"):
        denoiser_curves(control)


def test_types_may_have_slashes_in_their_names():
    table = pd.DataFrame({"epoch": [1], "denoiser/a/b/loss": [1.0], "denoiser/loss": [1.0]})
    assert denoiser_types({("treatment", 0): table}) == ["a/b"]
    figure = denoiser_curves({("treatment", 0): table}, metrics=["loss"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a/b: loss"]


def test_an_arm_without_the_column_keeps_the_others_colours(histories):
    for (arm, _), table in histories.items():
        if arm == "treatment":
            table["ratio"] = [3.0, 2.0, 1.0]
    (axes,) = (figure := learning_curves(histories, ["ratio"], width=4.6)).axes
    assert axes.lines[0].get_color() == learning_curves(histories).axes[0].lines[2].get_color()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["treatment (a line a seed)"]


def test_delongs_interval_stands_beside_the_seeds(comparison):
    of_auc, of_gauc = seed_differences(comparison).axes
    drawn = [lines.get_segments()[0] for lines in of_auc.collections if len(lines.get_segments())]
    flat = [segment for segment in drawn if segment[0, 1] % 1 == pytest.approx(0.22)]
    np.testing.assert_allclose(
        [segment[:, 0] for segment in flat],
        [[seed.delong.low, seed.delong.high] for seed in comparison["AUC"].seeds],
    )
    assert len(of_gauc.collections) == len(of_auc.collections) - 3


@pytest.fixture(scope="module")
def arms():
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(90), 8)
    labels = rng.random(720) < 0.4
    scores = labels + rng.normal(0, 1.5, 720) + rng.normal(0, 0.1, (2, 3, 720))
    scores[1] += labels * (users % 3 == 0)
    slices = {"third": users % 3, "$x$": np.where(users < 45, "_low", "a very " * 9)}
    return compare_arms(
        labels,
        users,
        {"old": scores[0], "new": scores[1]},
        control="old",
        metrics=["AUC", "GAUC"],
        slices=slices,
        num_resamples=60,
    )


def test_slice_differences_draw_every_slice(arms):
    figure = slice_differences(arms, "new", "GAUC", width=4.6)
    assert renders(figure)
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:6] == ["all rows", "third", "0", "1", "2", "$x$"]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    assert len(names[7]) <= 28  # a long name is cut
    parts = [part for values in arms.slices.values() for part in values]
    entries = [(arms.arms["new"]["GAUC"], arms.arms["new"]["GAUC"].outcome)]
    entries += [(part.arms["new"][1].comparison, part.arms["new"][1].outcome) for part in parts]
    assert {outcome for _, outcome in entries} == {"better", "cannot tell"}
    rows = [0, 2, 3, 4, 6, 7]
    for row, (one, outcome), container in zip(rows, entries, axes.containers, strict=True):
        point = container[0]
        assert (point.get_xdata()[0], point.get_ydata()[0]) == (one.difference, row)
        assert point.get_color() == OUTCOME_COLORS[outcome]
        np.testing.assert_allclose(interval_ends(container), [one.low, one.high], rtol=1e-12)


def test_slice_differences_want_slices(arms):
    with pytest.raises(KeyError, match="GAUC"):
        slice_differences(arms, "new", "ECE")
    with pytest.raises(ValueError, match=r"no slice has the AUC. Received: slices \[\]"):
        slice_differences(dataclasses.replace(arms, slices={}), "new", "AUC")


def test_power_curves_are_those_of_the_calculator(comparison):
    figure = power_curves(comparison, width=4.6)
    assert renders(figure)
    for axes, metric in zip(figure.axes, comparison.metrics, strict=True):
        spread = spread_of(metric, comparison.num_users)
        sizes = [(1, 3), (4, 3), (1, 9), (4, 9)]
        for (users, seeds), line in zip(sizes, axes.lines, strict=False):
            x, y = line.get_data()
            larger = spread.with_more(users, seeds)
            assert y[12] == pytest.approx(100 * larger.power(x[12], 0.95))
        assert axes.lines[4].get_ydata()[0] == pytest.approx(80)
        assert axes.lines[5].get_xdata()[0] == abs(metric.difference)
    (legend,) = figure.legends
    assert legend.get_texts()[2].get_text() == "1 x the users, 9 seeds"
    one = dataclasses.replace(comparison, num_seeds=1)
    assert len(power_curves(one).legends[0].get_texts()) == 2


def test_calibration_curves_draw_the_bins():
    labels, p = [0, 1, 0, 1, 1, 0], np.array([0.1, 0.2, 0.3, 0.7, 0.8, 0.4])
    curves = {("a", 0): calibration_curve(labels, p, num_bins=2)}
    curves["b", 0] = calibration_curve(labels, p / 2, num_bins=3)
    figure = calibration_curves(curves)
    assert renders(figure)
    diagonal, *lines = figure.axes[0].lines
    assert diagonal.get_xdata()[1] == diagonal.get_ydata()[1]
    for line, curve in zip(lines, curves.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), curve.probability)
        np.testing.assert_array_equal(line.get_ydata(), curve.rate)


def test_metric_under_noise_draws_means_and_intervals():
    rng = np.random.default_rng(0)
    users, labels = np.repeat(np.arange(60), 6), rng.random(360) < 0.4
    error = rng.normal(size=(2, 360))
    levels = {"a": [labels + error, labels + 2 * error], "b": [labels + error] * 2}
    curves = noise_curves(labels, users, levels, [0, 0.5], control="a", num_resamples=40)
    figure = metric_under_noise(curves)
    assert renders(figure)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "AUC"
    for line, band, points in zip(
        axes.lines, axes.collections, curves.curves.values(), strict=True
    ):
        np.testing.assert_array_equal(line.get_xdata(), [0, 50])
        np.testing.assert_array_equal(line.get_ydata(), [one.value for one in points])
        corners = band.get_paths()[0].vertices[:, 1]
        assert corners.min() == min(one.low for one in points)
        assert corners.max() == max(one.high for one in points)
