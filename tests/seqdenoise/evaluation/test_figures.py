import dataclasses
import io

import numpy as np
import pandas as pd
import pytest

from seqdenoise.evaluation.compare import compare
from seqdenoise.evaluation.figures import (
    denoiser_curves,
    denoiser_types,
    learning_curves,
    seed_differences,
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
