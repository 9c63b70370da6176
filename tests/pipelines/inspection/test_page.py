"""The page with the worst of data: everything from it must stay text."""

import re
from pathlib import Path

import numpy as np
import pytest
from html_page import Page

pytestmark = pytest.mark.tfrs

HOSTILE = "<script>alert('1')</script>\"&$x^2$"


def hostile_inspection(name=HOSTILE, **changes):
    from pipelines.inspection.before_after import BeforeAfter
    from pipelines.inspection.distances import TypeDistance
    from pipelines.inspection.histories import Event, History
    from pipelines.inspection.keep_scores import RowCounts
    from pipelines.inspection.page import Inspection
    from pipelines.inspection.summary import NUM_BINS, Summary, TypeSummary

    of_type = TypeSummary(events=30, judged=20, dropped=5)
    of_type.histogram[:] = np.arange(3 * NUM_BINS).reshape(3, NUM_BINS)
    of_type.auc = 0.75
    events = [
        Event(name, {name: name}, "2024-01-02 03:04", score, truth)
        for score, truth in ((0.1, 0), (0.9, 1), (0.5, -1), (np.float32(0), -1))
    ]
    history = History(
        name, name, Event(name, {name: name}), {name: events}, {name: [events[0]]}, True
    )
    options = {
        "run": name,
        "split": name,
        "trusted": [name, name],
        "settings": {name: 1, "gate": True},
        "counts": RowCounts(40, 10, 30),
        "summary": Summary({name: of_type}, 0.75, [1], [2]),
        "distances": [
            BeforeAfter(
                TypeDistance(name, name, 3, 0.4, 0.5, (2, 3), 0.6),
                TypeDistance(name, name, 3, 0.1, np.nan, (2, 3), 0.3),
            )
        ],
        "histories": {name: [history], "none": []},
    }
    return Inspection(**options | changes)


def test_what_comes_from_the_data_stays_text():
    from pipelines.inspection.page import to_html

    plain = Page(to_html(hostile_inspection("plain")))
    hostile = Page(to_html(hostile_inspection()))
    assert "script" not in hostile.tags
    assert hostile.tags == plain.tags
    count = plain.text.count("plain")
    assert count > 20
    assert hostile.text.count(HOSTILE) == count
    names = {name for name, _ in hostile.attributes}
    assert names == {name for name, _ in plain.attributes}
    assert not [name for name in names if name.startswith("on")]


def test_the_page_loads_nothing():
    from pipelines.inspection.page import to_html

    text = to_html(hostile_inspection())
    page = Page(text)
    # Names of XML's own dialects, which nothing fetches.
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    ids = [value for name, value in page.attributes if name == "id"]
    # A clip path or a marker has a hash of its content as its name.
    assert all(re.fullmatch(r"[pmC][0-9a-f_]+", name) for name in ids)
    links = [v for name, v in page.attributes if name in {"src", "href", "xlink:href"}]
    assert all(link.startswith("#") for link in links)
    styles = [v or "" for name, v in page.attributes if name == "style"]
    assert not [style for style in styles if "url(" in style and "url(#" not in style]


def test_numbers_of_the_page():
    from pipelines.inspection.page import to_html

    text = " ".join(Page(to_html(hostile_inspection("click"))).text.split())
    for words in (
        "25.0 % of click events have a keep score below 0.5 and count as dropped",
        "AUC of 0.750",
        "25.0 %of 20 judged click events dropped",
        "25.0 %of 40 rows have no trusted event",
        "20 judged, 10 more without a trusted event",
        "own, mean of 3 users0.4000.100",
        "another user's0.500",
        "all users' together, 2 and 3 events0.6000.300",
        "click: 2 kept, 2 dropped",
        "(the option gate is on)",
        "No such user.",
    ):
        assert words in text
    assert "another user's0.5000" not in text  # what is not known is left empty


def test_kept_and_dropped_and_truth_are_told_apart():
    from pipelines.inspection.page import histories_fragment

    inspection = hostile_inspection("x")
    fragment = histories_fragment(inspection.histories)
    classes = [v for name, v in Page(fragment).attributes if name == "class"]
    # Two of each, and the legend's; 0.5 is kept.
    assert classes.count("event dropped") == 3 + 1  # one is a trusted event with a score
    assert classes.count("event kept") == 2 + 1
    assert classes.count("tag real") == 2 + 1
    assert classes.count("tag noise") == 1 + 1


def test_a_history_that_was_not_judged():
    from pipelines.inspection.histories import Event, History
    from pipelines.inspection.page import histories_fragment

    events = [Event("7", {}), Event("8", {})]
    history = History("1", "", Event("9", {}), {"click": events}, {"cart": []}, False)
    page = Page(histories_fragment({"Drawn": [history]}))
    assert "click: 2, not judged" in page.text
    assert "cart (trusted): 0" in page.text
    assert "real" not in page.text  # nothing is said of a truth that is not known


def test_nothing_judged():
    from pipelines.inspection.page import to_html
    from pipelines.inspection.summary import Summary, TypeSummary

    nothing = Summary({"click": TypeSummary(events=4)}, np.nan, [], [])
    page = Page(to_html(hostile_inspection("cart", summary=nothing, distances=[])))
    assert "No event could be judged by cart and cart." in page.text
    assert "No user drawn has events of both types." in page.text
    assert "nan" not in page.text
    assert "svg" not in page.tags


@pytest.mark.parametrize("known", [True, False])
def test_histogram_bars(known):
    from pipelines.inspection.figures import keep_score_histogram
    from pipelines.inspection.summary import NUM_BINS, TypeSummary

    summary = TypeSummary()
    counts = np.arange(1, NUM_BINS + 1)
    if known:
        summary.histogram[0], summary.histogram[1] = counts, counts[::-1] * 3
    else:
        summary.histogram[-1] = counts
    (axes,) = keep_score_histogram(summary).axes
    drawn = {patch.get_label(): patch.get_data().values for patch in axes.patches}
    share = counts / counts.sum()
    if known:  # each of its own total
        np.testing.assert_allclose(drawn["real"], share)
        np.testing.assert_allclose(drawn["noise"], share[::-1])
    else:
        below = np.arange(NUM_BINS) < NUM_BINS // 2
        np.testing.assert_allclose(drawn["dropped"], share * below)
        np.testing.assert_allclose(drawn["kept"], share * ~below)


def test_a_drawing_takes_the_pages_color():
    from pipelines.inspection import page
    from pipelines.inspection.figures import distance_figure
    from pipelines.svg import to_svg

    svg = to_svg(distance_figure(hostile_inspection("click").distances), 'a "b" <c>')
    assert svg.startswith("<svg")
    assert "viewBox" in svg
    assert "currentColor" in svg
    assert "#000000" not in svg
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg
    used = set(re.findall(r"var\((--\w+)\)", svg))
    assert used
    style = Path(page.__file__).with_name("style.css").read_text("utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for variable in used:
        assert f"{variable}: #" in light
        assert f"{variable}: #" in dark
    assert svg == to_svg(distance_figure(hostile_inspection("click").distances), 'a "b" <c>')
