"""The page with the worst of data: everything from it must stay text."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from html_page import Page
from matplotlib.figure import Figure

from pipelines.reporting import comparisons
from pipelines.reporting.content import Report, calibrations
from pipelines.reporting.page import to_html, write_report
from pipelines.svg import to_svg
from seqdenoise.evaluation.compare import compare_arms
from seqdenoise.evaluation.noise_curves import noise_curves

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}'\"&$x^2$"
NUM_SEEDS = 2


def history(name):
    table = {"epoch": [1, 2, 3], "loss": [0.6, 0.5, 0.4], "valid_auc": [0.6, 0.7, 0.65]}
    for metric in ("loss", "alignment", "uniformity", "effective_rank"):
        table[f"denoiser/{name}/{metric}"] = [3.0, 2.125, 1.0]
    table["side_gradient_ratio"] = [1.0, 0.75, 0.5]
    return pd.DataFrame(table)


def make_report(name, **options):
    """A report of two treatments in which everything that can have a name has this one."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(60), 8)
    labels = rng.random(480) < 0.4
    base = labels + rng.normal(0, 1.5, (NUM_SEEDS, 480))
    squash = {
        "now": 1 / (1 + np.exp(-base)),
        name: 1 / (1 + np.exp(-base - labels)),
        "other": 1 / (1 + np.exp(-base + 0.1 * labels)),
    }
    comparison = compare_arms(
        labels,
        users,
        squash,
        control="now",
        metrics=["AUC", "log loss", "ECE"],
        slices={name: np.where(users % 2, name, "rest"), "third": users % 3},
        num_resamples=60,
        **options,
    )
    seeds = ["0", "1"]
    noisy = {arm: np.stack([table, 0.9 * table + 0.05]) for arm, table in squash.items()}
    return Report(
        title=name,
        comparison=comparison,
        seeds=seeds,
        calibration=calibrations(labels, squash, seeds),
        noise_curve=noise_curves(labels, users, noisy, [0, 0.5], control="now", num_resamples=40),
        histories={(name, seed): history(name) for seed in seeds},
        config=f'{{"{name}": 1}}',
        fingerprint={name: name},
    )


@pytest.fixture(scope="module")
def hostile():
    return to_html(make_report(HOSTILE))


@pytest.fixture(scope="module")
def report():
    return make_report("plain")


@pytest.fixture(scope="module")
def plain(report):
    return to_html(report)


def test_what_comes_from_the_data_stays_text(hostile, plain):
    page, beside = Page(hostile), Page(plain)
    assert "<script" not in hostile.lower()
    assert page.tags == beside.tags
    assert "svg" in page.tags
    names = {name for name, _ in page.attributes}
    assert names == {name for name, _ in beside.attributes}
    assert not [name for name in names if name.startswith("on")]
    # Whole in the text, cut in the drawings: nowhere is any of it missing.
    count = beside.text.count("plain")
    assert count > 40
    assert page.text.count(SCRIPT) == count
    assert page.text.count(HOSTILE) > count / 3
    assert f"{SCRIPT}'\"\u2026" in page.text  # a name in a drawing, cut and no formula


def test_the_page_loads_nothing(hostile):
    page = Page(hostile)
    # Names of XML's own dialects, which nothing fetches.
    assert set(re.findall(r"https?://[^\"'\s<]+", hostile)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert "@import" not in hostile
    links = [v for name, v in page.attributes if name in {"src", "href", "xlink:href"}]
    assert links
    assert all(link.startswith("#") for link in links)
    styles = [v or "" for name, v in page.attributes if name == "style"]
    assert not [style for style in styles if "url(" in style and "url(#" not in style]


def test_every_part_is_there_and_linked(plain):
    page = Page(plain)
    parts = [
        "verdict", "intervals", "metrics", "slices", "calibration",
        "noise", "learning", "health", "power", "origin",
    ]  # fmt: skip
    ids = [value for name, value in page.attributes if name == "id"]
    assert [one for one in ids if one in parts] == parts
    assert [v for name, v in page.attributes if name == "href" and v[1:] in parts] == [
        f"#{part}" for part in parts
    ]


def test_the_numbers_of_the_page(report, plain):
    text = " ".join(Page(plain).text.split())
    one = report.comparison.arms["plain"]
    for metric in one.metrics:
        for number in (
            f"{metric.difference:+.5f}",
            f"{metric.low:+.5f} to {metric.high:+.5f}",
            f"{metric.detectable_effect:.5f}",
            *(f"{seed.low:+.5f} to {seed.high:+.5f}" for seed in metric.seeds),
        ):
            assert number in text
    for seed in one["AUC"].seeds:
        assert f"{seed.delong.low:+.5f} to {seed.delong.high:+.5f}" in text
    for part in report.comparison.slices["third"]:
        entry = part.arms["plain"][0]
        assert f"{part.num_rows:,}{part.num_users:,}{entry.comparison.control:.5f}" in text
        assert f"{entry.adjusted_p_value:.2g}{entry.outcome}" in text
    assert "plain against now" in text
    assert "AUCbetter" in text
    assert "log loss, smaller is better" in text
    assert "by Holm's method: the chance of any wrong verdict among them is at most 5 %" in text
    assert "Each of the 5 values" in text
    assert "Two seeds tell little" in text  # the comparison's notes
    for what, one in (
        ("fall", report.noise_curve.falls["plain"]),
        ("area", report.noise_curve.areas["plain"]),
    ):
        numbers = f"{one.control:.5f}{one.difference:+.5f}{one.low:+.5f} to {one.high:+.5f}"
        assert f"plain{what}{numbers}" in text
    assert "2.1252.1252.1250.750" in text  # health at the best epoch, the second
    curve = report.calibration["plain", "1"]
    ece = curve.weight @ abs(curve.rate - curve.probability) / curve.weight.sum()
    assert f"{ece:.5f}" in text


def test_the_other_correction_is_named():
    report = make_report("click", multiplicity="benjamini-hochberg")
    (arm,) = set(report.comparison.arms) - {"other"}
    one = replace(report.comparison.arms[arm], metrics=report.comparison.arms[arm].metrics[:1])
    shown = replace(report, comparison=replace(report.comparison, arms={arm: one}))
    text = Page(comparisons.slices(shown)).text
    assert "Benjamini and Hochberg" in text
    assert "Holm" not in text


def test_what_is_not_known_is_left_out(tmp_path):
    rng = np.random.default_rng(0)
    labels, users = rng.random(400) < 0.4, np.repeat(np.arange(50), 8)
    scores = rng.normal(0, 3, (2, 1, 400))  # no probabilities, one seed
    arms = {"old": scores[0], "new": scores[1]}
    comparison = compare_arms(labels, users, arms, control="old", num_resamples=50)
    calibration = calibrations(labels, arms, ["0"])
    page = write_report(
        tmp_path / "made", comparison, title="small", seeds=["0"], calibration=calibration
    )
    assert page == tmp_path / "made" / "report.html"
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]
    parsed = Page(page.read_text(encoding="utf-8"))
    ids = {value for name, value in parsed.attributes if name == "id"}
    assert {"verdict", "intervals", "metrics", "power"} <= ids
    assert not {"slices", "calibration", "noise", "learning", "health", "origin"} & ids
    assert "nan" not in parsed.text.lower()
    assert "cannot be told from one" in parsed.text


def test_a_drawing_takes_the_pages_colors_and_leaves_words_alone():
    def drawing():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot([0, 1], color="#0072B2")
        axes.set_title("#0072b2 #000000 \u4e2d\u6587", color="#4D4D4D")
        return figure

    svg = to_svg(drawing(), 'a "b" <c>')
    assert svg.startswith("<svg")
    assert "stroke: var(--blue)" in svg
    assert "var(--neutral)" in svg
    assert "currentColor" in svg
    (title,) = re.findall(r">([^<]*\u4e2d\u6587)<", svg)
    assert title == "#0072b2 #000000 \u4e2d\u6587"
    assert svg.count("#0072b2") == svg.count("#000000") == 1
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg
    assert svg == to_svg(drawing(), 'a "b" <c>')
