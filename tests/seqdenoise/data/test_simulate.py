import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from seqdenoise.data.simulate import EPOCH_MS, simulate_log
from seqdenoise.data.simulation_spec import SimulationSpec

DAY_MS = 86_400_000
SMALL = {"num_users": 300, "num_items": 240, "num_categories": 12, "seed": 5}


@pytest.fixture(scope="module")
def log():
    return simulate_log(seed=3)


def auc(positive, negative):
    """Share of (positive, negative) pairs in order, ties half."""
    u = stats.mannwhitneyu(positive, negative).statistic
    return u / (len(positive) * len(negative))


def columns(table):
    return {name: table[name].to_numpy() for name in table.column_names}


def real_events(log):
    return log["events"].filter(pc.invert(log["truth"]["is_noise"]))


def test_tables_have_the_contract_s_columns_and_types(log):
    assert {
        name: dict(zip(t.schema.names, t.schema.types, strict=True)) for name, t in log.items()
    } == {
        "events": {
            "user": pa.int64(),
            "item": pa.int64(),
            "type": pa.string(),
            "timestamp": pa.int64(),
        },
        "impressions": {
            "user": pa.int64(),
            "item": pa.int64(),
            "timestamp": pa.int64(),
            "is_click": pa.int8(),
            "is_purchase": pa.int8(),
            "hour": pa.int64(),
            "scene": pa.int64(),
        },
        "items": {
            "item": pa.int64(),
            "category": pa.int64(),
            "brand": pa.int64(),
            "price": pa.float64(),
        },
        "users": {"user": pa.int64(), "segment": pa.int64(), "activity": pa.string()},
        "truth": {"is_noise": pa.bool_(), "noise_kind": pa.string()},
        "truth_impressions": {"click_probability": pa.float64()},
    }
    assert all(column.null_count == 0 for table in log.values() for column in table.columns)


def test_default_size_and_ranges(log):
    events, impressions = columns(log["events"]), columns(log["impressions"])
    assert log["users"]["user"].to_pylist() == list(range(4000))
    assert log["items"]["item"].to_pylist() == list(range(3000))
    assert 60_000 < log["impressions"].num_rows < 80_000
    assert log["truth"].num_rows == log["events"].num_rows
    assert log["truth_impressions"].num_rows == log["impressions"].num_rows
    assert np.datetime64("2024-01-01T00:00", "ms").astype(np.int64) == EPOCH_MS
    for part in (events, impressions):
        assert (np.diff(part["timestamp"]) >= 0).all()
        assert part["timestamp"].min() >= EPOCH_MS
        assert set(part["user"]) <= set(range(4000))
        assert set(part["item"]) <= set(range(3000))
    assert impressions["timestamp"].max() < EPOCH_MS + 14 * DAY_MS
    assert set(events["type"]) == {"click", "cart", "purchase", "search"}
    np.testing.assert_array_equal(impressions["hour"], impressions["timestamp"] // 3_600_000 % 24)
    assert set(log["items"]["category"].to_pylist()) == set(range(40))
    assert log["items"]["price"].to_numpy().min() > 0


def test_same_seed_same_tables_other_seed_other_tables():
    one, two, other = (simulate_log(**{**SMALL, "seed": seed}) for seed in (5, 5, 6))
    for name in one:
        assert one[name].equals(two[name]), name
        assert not one[name].equals(other[name]), name


@pytest.mark.parametrize("noise_rate", [0.0, 0.1, 0.3, 0.7])
def test_noise_rate_is_exact_for_clicks_and_carts(noise_rate):
    log = simulate_log(**SMALL, noise_rate=noise_rate)
    events, noise = columns(log["events"]), log["truth"]["is_noise"].to_numpy()
    for name in ("click", "cart"):
        of_type = events["type"] == name
        expected = noise_rate * of_type.sum()
        # The count is a whole number, and one noise event more changes the total too.
        assert abs(noise[of_type].sum() - expected) <= 1
        assert of_type.sum() > 500
    for name in ("purchase", "search"):
        assert (events["type"] == name).sum() > 100
        assert not noise[events["type"] == name].any()


def test_noise_kinds_follow_their_weights(log):
    weights = {"random": 2.0, "matched": 6.0}
    truth = simulate_log(**SMALL, noise_kinds=weights)["truth"]
    for table, shares in (
        (truth, {"random": 0.25, "popular": 0.0, "matched": 0.75}),
        (log["truth"], dict.fromkeys(("random", "popular", "matched"), 1 / 3)),
    ):
        kind, noise = table["noise_kind"].to_numpy(), table["is_noise"].to_numpy()
        assert set(kind[~noise]) == {""}
        assert set(kind[noise]) == {name for name, share in shares.items() if share > 0}
        for name, share in shares.items():
            spread = np.sqrt(noise.sum() * share * (1 - share))
            assert abs((kind == name).sum() - noise.sum() * share) <= 4 * spread, name


def test_labels_and_real_events_do_not_depend_on_noise():
    clean = simulate_log(**SMALL, noise_rate=0.0)
    assert not clean["truth"]["is_noise"].to_numpy().any()
    for change in ({"noise_rate": 0.2}, {"noise_rate": 0.8}, {"noise_kinds": {"popular": 1.0}}):
        noisy = simulate_log(**SMALL, **change)
        assert noisy["events"].num_rows > clean["events"].num_rows
        assert real_events(noisy).equals(clean["events"].combine_chunks())
        for name in ("impressions", "truth_impressions", "items", "users"):
            assert noisy[name].equals(clean[name]), name


def test_components_draw_from_their_own_streams():
    base = simulate_log(**SMALL, noise_rate=0.0)
    fewer_searches = simulate_log(**SMALL, noise_rate=0.0, search_per_day=0.01)
    fewer_organic = simulate_log(**SMALL, noise_rate=0.0, organic_per_day=0.01)
    fewer_pages = simulate_log(**SMALL, noise_rate=0.0, pages_per_day=0.01)

    def of_types(log, *types):
        return log["events"].filter(pc.is_in(log["events"]["type"], pa.array(types)))

    for log in (fewer_searches, fewer_organic):
        assert log["impressions"].equals(base["impressions"])
    others = ("click", "cart", "purchase")
    assert of_types(fewer_searches, *others).equals(of_types(base, *others))
    assert of_types(fewer_organic, "search").equals(of_types(base, "search"))
    assert of_types(fewer_pages, "search").equals(of_types(base, "search"))
    assert fewer_pages["items"].equals(base["items"])
    assert fewer_pages["users"].equals(base["users"])
    assert fewer_pages["impressions"].num_rows < base["impressions"].num_rows / 5


def popularity_of_events(log):
    """Clicks and carts of each event's item in the whole log: what a detector would see."""
    events = columns(log["events"])
    noisy = np.isin(events["type"], ["click", "cart"])
    count = np.bincount(events["item"][noisy], minlength=log["items"].num_rows)
    kind = log["truth"]["noise_kind"].to_numpy()
    return {
        name: count[events["item"][noisy & (kind == name)]]
        for name in ("", "random", "popular", "matched")
    }


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_popularity_betrays_random_and_popular_noise_but_not_matched(seed):
    popularity = popularity_of_events(simulate_log(seed=seed))
    real = popularity[""]
    kinds = ("random", "popular", "matched")
    order = {name: auc(popularity[name], real) for name in kinds}
    distance = {name: stats.ks_2samp(popularity[name], real).statistic for name in kinds}
    assert order["random"] < 0.35
    assert order["popular"] > 0.55
    assert distance["random"] > 0.25
    assert distance["popular"] > 0.1
    # Not exactly alike: a category's best item may be less popular than the real event's item, and
    # noise itself adds to the counts of the items it falls on.
    assert abs(order["matched"] - 0.5) < 0.04
    assert distance["matched"] < 0.08


def test_noise_is_spread_over_users_and_days_like_real_events(log):
    events, noise = columns(log["events"]), log["truth"]["is_noise"].to_numpy()
    click = events["type"] == "click"
    user, day = events["user"], (events["timestamp"] - EPOCH_MS) // DAY_MS

    def expected_and_laid(value):
        real, laid = (np.bincount(value[click & side], minlength=4000) for side in (~noise, noise))
        return real * laid.sum() / real.sum(), laid

    # Hosts are uniform draws, so a user's noise count is multinomial in the real counts.
    expected, laid = expected_and_laid(user)
    often = expected >= 1
    chi_square = ((laid - expected)[often] ** 2 / expected[often]).sum()
    assert often.sum() > 2000
    assert abs(chi_square - often.sum()) < 5 * np.sqrt(2 * often.sum())
    assert laid[expected == 0].sum() == 0
    # The jitter moves a few events over midnight.
    expected, laid = (x[:14] for x in expected_and_laid(day))
    assert (np.abs(laid - expected) < 5 * np.sqrt(expected)).all()


def test_own_events_are_at_or_after_the_impression():
    log = simulate_log(**SMALL, noise_rate=0.0, organic_per_day=0.0)
    events, impressions = columns(log["events"]), columns(log["impressions"])

    def rows(kind):
        return [
            (u, i, t)
            for u, i, n, t in zip(
                events["user"], events["item"], events["type"], events["timestamp"], strict=True
            )
            if n == kind
        ]

    def pair(earlier, later):
        """Matches each later event to its own earlier one, in order of time."""
        waiting = {}
        for user, item, time in sorted(earlier, key=lambda row: row[2]):
            waiting.setdefault((user, item), []).append(time)
        for user, item, time in later:
            assert any(t <= time for t in waiting[user, item])

    clicked = impressions["is_click"] == 1
    shown = list(
        zip(*(impressions[name][clicked] for name in ("user", "item", "timestamp")), strict=True)
    )
    click, cart, purchase = rows("click"), rows("cart"), rows("purchase")
    # With no organic clicks, every click event is one impression's own.
    assert len(click) == len(shown) > 1000
    assert len(purchase) == impressions["is_purchase"].sum() > 100
    assert len(click) > len(cart) > len(purchase)
    pair(shown, click)
    pair(click, cart)
    pair(cart, purchase)
    # k clicks by a time t need k impressions by then: sorted times compare one by one.
    np.testing.assert_array_less(
        np.sort([t for *_, t in shown]), np.sort([t for *_, t in click]) + 1
    )
    # Ties are ordinary: clicks logged under the page's own time stamp.
    same = set(shown) & set(click)
    assert 0.4 < len(same) / len(click) < 0.6
    assert (impressions["is_click"] >= impressions["is_purchase"]).all()


def test_a_page_is_shown_at_one_time_without_repeats(log):
    impressions = columns(log["impressions"])
    page = list(zip(impressions["user"], impressions["timestamp"], strict=True))
    items = list(zip(page, impressions["item"], strict=True))
    assert len(set(items)) == len(items)
    assert 3.8 < len(page) / len(set(page)) <= 4


def test_click_probability_is_calibrated_and_informative(log):
    probability = log["truth_impressions"]["click_probability"].to_numpy()
    click = log["impressions"]["is_click"].to_numpy()
    assert 0 < probability.min() < probability.max() < 1
    for part in np.array_split(np.argsort(probability), 10):
        p = probability[part]
        spread = np.sqrt((p * (1 - p)).sum())
        assert abs(click[part].sum() - p.sum()) < 4.5 * spread
    assert auc(probability[click == 1], probability[click == 0]) > 0.75


def history_scores(log, *, with_noise):
    """Of the user's clicks before each impression: the share in the candidate's category."""
    category = log["items"]["category"].to_numpy()
    events, impressions = columns(log["events"]), columns(log["impressions"])
    noise = log["truth"]["is_noise"].to_numpy()
    history = {}
    for user, item, kind, time, is_noise in zip(
        events["user"], events["item"], events["type"], events["timestamp"], noise, strict=True
    ):
        if kind == "click" and (with_noise or not is_noise):
            history.setdefault(user, []).append((time, category[item]))
    last_days = impressions["timestamp"] >= EPOCH_MS + 10 * DAY_MS
    scores = []
    for user, item, time in zip(
        *(impressions[name][last_days] for name in ("user", "item", "timestamp")), strict=True
    ):
        seen = [c for t, c in history.get(user, []) if t < time]
        scores.append(sum(c == category[item] for c in seen) / (len(seen) + 1))
    return np.array(scores), last_days


def test_interest_is_learnable_beats_popularity_and_noise_hurts(log):
    clean, last_days = history_scores(log, with_noise=False)
    noisy, _ = history_scores(log, with_noise=True)
    click = log["impressions"]["is_click"].to_numpy()[last_days]
    probability = log["truth_impressions"]["click_probability"].to_numpy()[last_days]
    item = log["impressions"]["item"].to_numpy()
    popularity = np.bincount(item[~last_days], minlength=3000)[item[last_days]]

    def click_auc(score):
        return auc(score[click == 1], score[click == 0])

    assert click_auc(clean) > click_auc(popularity) + 0.1
    assert click_auc(probability) > click_auc(clean) + 0.05
    assert click_auc(noisy) < click_auc(clean) - 0.01


def test_items_have_a_long_tail(log):
    count = np.sort(np.bincount(log["impressions"]["item"].to_numpy(), minlength=3000))[::-1]
    assert count[:300].sum() > 0.35 * count.sum()
    assert count[1500:].sum() < 0.25 * count.sum()
    assert count[1500:].sum() > 0


def test_rates_of_zero_give_empty_tables_of_the_same_schema(log):
    empty = simulate_log(**SMALL, pages_per_day=0, organic_per_day=0, search_per_day=0)
    for name in ("events", "impressions", "truth", "truth_impressions"):
        assert empty[name].num_rows == 0
        assert empty[name].schema == log[name].schema


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "`seed` must be an integer of at least 0. Received: -1"),
        ({"num_users": 0}, "`num_users` must be an integer of at least 1. Received: 0"),
        ({"num_items": 2.5}, "`num_items` must be .* Received: 2.5"),
        ({"num_days": True}, "`num_days` must be .* Received: True"),
        ({"page_size": "4"}, "`page_size` must be .* Received: '4'"),
        ({"pages_per_day": float("inf")}, "`pages_per_day` must be finite .* Received: inf"),
        ({"drift_rate": 1.1}, "`drift_rate` must be between 0 and 1. Received: 1.1"),
        ({"click_bias": float("nan")}, "`click_bias` must be finite. Received: nan"),
        ({"noise_rate": 1.0}, "`noise_rate` must be at least 0 and below 1. Received: 1.0"),
        ({"noise_rate": -0.1}, "`noise_rate` must be .* Received: -0.1"),
        ({"num_categories": 3}, "`num_categories` must be above .* Received: 3 and 3"),
        ({"num_items": 39}, "`num_items` must be at least .* Received: 39 and 40"),
        (
            {"interest_exposure": 0.8, "distraction_exposure": 0.3},
            "must not add up to more than 1. Received: 0.8 and 0.3",
        ),
        ({"noise_kinds": {"rare": 1.0}}, "`noise_kinds` must map .* Received: {'rare': 1.0}"),
        ({"noise_kinds": {"random": 0.0}}, "`noise_kinds` must .* Received: {'random': 0.0}"),
        ({"noise_kinds": {"random": -1.0}}, "`noise_kinds` must .* Received: {'random': -1.0}"),
        ({"noise_kinds": ["random"]}, "`noise_kinds` must map .* Received: .'random'."),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        SimulationSpec(**change)


def test_an_unknown_parameter_is_refused():
    with pytest.raises(TypeError, match="noise"):
        simulate_log(noise=0.3)
