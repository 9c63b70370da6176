import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.tfrs

TRUSTED = {"weight": 0.0, "masking": "field", "trusted": "search"}


def with_arms(config, arms, **sections):
    """The small run with some arms; `sections` replace keys of its other sections."""
    from pipelines.config import RunConfig

    raw = config.model_dump() | {"arms": arms}
    for name, keys in sections.items():
        raw[name] = raw[name] | keys
    return RunConfig.model_validate(raw)


@pytest.fixture(scope="module")
def run(config):
    return with_arms(config, {"only": {}}, denoiser=TRUSTED).arm("only")


@pytest.fixture(scope="module")
def ranker_and_features(run):
    import tensorflow as tf

    from pipelines.features import fit_features
    from pipelines.ranker import Ranker

    features = fit_features(run)
    tf.keras.utils.set_random_seed(4)
    return Ranker(features.ranker_spec(run)), features


@pytest.fixture(scope="module")
def events(run, ranker_and_features):
    from pipelines.event_scores import scored_events

    ranker, features = ranker_and_features
    return scored_events(run, features, ranker)


@pytest.fixture(scope="module")
def known(run, events):
    """The scored events with their truth and popularity."""
    from pipelines.denoising_study import read_truth, with_popularity, with_truth

    truth = read_truth(run.log_folder)
    return with_popularity(with_truth(events, truth), truth, run)


@pytest.fixture(scope="module")
def histories(run):
    """The distinct histories of the test rows, as the prepared file has them."""
    rows = pq.read_table(run.prepared_folder / "test.parquet").to_pylist()
    return list({(row["user"], row["timestamp"]): row for row in reversed(rows)}.values())[::-1]


@pytest.fixture(scope="module")
def log(run):
    """The events of the raw log, each with its truth, as plain dicts."""
    events = pq.read_table(run.log_folder / "events.parquet").to_pylist()
    truth = pq.read_table(run.log_folder / "truth.parquet").to_pylist()
    return [event | of_event for event, of_event in zip(events, truth, strict=True)]


def test_each_event_of_a_history_is_there_once_and_judged_by_its_trusted_events(events, histories):
    expected = [
        (row["user"], kind, item, time, len(row["search__item"]) > 0)
        for kind in ("cart", "click")
        for row in histories
        for item, time in zip(row[f"{kind}__item"], row[f"{kind}__timestamp"], strict=True)
    ]
    got = events[["user", "type", "item", "timestamp", "judged"]].itertuples(index=False, name=None)
    assert list(got) == expected
    assert 0 < events["judged"].mean() < 1


def test_an_event_s_truth_is_that_of_the_log(known, log):
    of_log = {}
    for event in log:
        key = tuple(event[name] for name in ("user", "type", "item", "timestamp"))
        of_log.setdefault(key, []).append((event["is_noise"], event["noise_kind"]))
    for event in known.to_dict("records"):
        key = tuple(event[name] for name in ("user", "type", "item", "timestamp"))
        assert (event["is_noise"], event["noise_kind"]) == min(of_log[key])
    assert set(known["noise_kind"]) == {"", "random", "popular", "matched"}


def test_popularity_counts_what_training_saw(run, known, log):
    until = pd.Timestamp(run.prepare.split.valid_from).value // 10**6
    counts = {}
    for event in log:
        if event["type"] in ("click", "cart") and event["timestamp"] < until:
            counts[event["item"]] = counts.get(event["item"], 0) + 1
    assert known["popularity"].tolist() == [counts.get(item, 0) for item in known["item"]]


def test_an_oracle_is_perfect_and_its_opposite_is_perfectly_wrong(known):
    from pipelines.denoising_study import measure

    real = 1.0 - known["is_noise"]
    planted = {"keep score": real, "one look": 1 - real, "largest cosine": 0.5}
    figures = measure(known.assign(**planted))
    for name in ("random noise", "popular noise", "matched noise", "carts", "clicks"):
        assert figures[name] == 1
    assert (figures["keep score"], figures["within users"]) == (1, 1)
    assert (figures["one look"], figures["largest cosine"]) == (0, 0.5)
    assert figures["coverage"] == known["judged"].mean()
    # Unjudged events have no say.
    wrong = known.assign(**planted)
    wrong.loc[~wrong["judged"], "keep score"] = 1 - real[~wrong["judged"]]
    assert measure(wrong)["keep score"] == 1


def test_the_truth_of_events_that_look_alike_is_signal_if_one_is(tmp_path):
    from pipelines.denoising_study import read_truth, with_truth
    from seqdenoise.errors import DataError

    alike = {"user": 1, "item": 2, "type": "click", "timestamp": 5}
    events = pd.DataFrame([alike, alike, alike | {"item": 3}])
    events.to_parquet(tmp_path / "events.parquet")
    truth = pd.DataFrame({"is_noise": [True, False, True], "noise_kind": ["random", "", "popular"]})
    truth.to_parquet(tmp_path / "truth.parquet")
    joined = with_truth(events, read_truth(tmp_path))
    assert joined["is_noise"].tolist() == [False, False, True]
    assert joined["noise_kind"].tolist() == ["", "", "popular"]
    with pytest.raises(DataError, match=r"Received: 1 that are not, first \{'user': 9"):
        with_truth(pd.DataFrame([alike, alike | {"user": 9}]), read_truth(tmp_path))


def test_scores_are_those_of_the_embeddings(run, ranker_and_features, histories, events):
    from pipelines.event_scores import scored_events
    from seqdenoise.transport import keep_scores

    ranker, features = ranker_and_features
    # Made only now: an untrained ranker gets its weights when events are first scored.
    tables = {
        name: table.weights[0].numpy() for name, table in ranker.tables.items() if table.built
    }

    def vectors(row, kind, fields):
        parts = []
        for field in fields:
            ids = features.vocabularies[field].encode(row[f"{kind}__{field}"])
            parts.append(tables[field][ids].astype(np.float64))
        return np.concatenate(parts, axis=1)

    def cosine(x, y):
        return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))

    def one_look(x, y):
        real, signal = (np.ones([1, len(vectors)], bool) for vectors in (x, y))
        options = {"epsilon": 0.1, "relaxation": 0.3, "num_iterations": 20}
        return keep_scores(x[None], y[None], mask=real, trusted_mask=signal, **options).numpy()[0]

    of_category = scored_events(run, features, ranker, fields=["category"])
    for fields, scored in ((["category", "item"], events), (["category"], of_category)):
        cosines, firsts = [], []
        for kind in ("cart", "click"):
            for row in histories:
                x, y = (vectors(row, of, fields) for of in (kind, "search"))
                cosines += [max([cosine(event, one) for one in y], default=-1) for event in x]
                few = len(x) and len(y) and row in histories[::8]
                firsts += one_look(x, y).tolist() if few else [np.nan] * len(x)
        np.testing.assert_allclose(scored["largest cosine"], cosines, atol=1e-6)
        some = np.isfinite(firsts)
        assert some.sum() > 20
        np.testing.assert_allclose(scored["one look"][some], np.array(firsts)[some], atol=1e-4)
        # What nothing judges is kept; a second look changes what the first one said.
        unjudged = scored.loc[~scored["judged"], ["keep score", "one look"]].to_numpy()
        assert len(unjudged)
        np.testing.assert_array_equal(unjudged, 1)
        assert scored["keep score"].between(0, 1).all()
        assert (scored["keep score"] - scored["one look"]).abs().max() > 0.1


@pytest.fixture(scope="module")
def study(config, tmp_path_factory):
    """A finished study of two arms on a tiny log, and its table."""
    from pipelines.denoising_study import denoising_study

    small = with_arms(
        config,
        {"ranking_only": {}, "slower": {"train": {"learning_rate": 0.003}}},
        denoiser=TRUSTED,
        train={"epochs": 1},
        ab={"seeds": [1]},
        prepare={
            "split": {
                "valid_from": "2024-01-11T00:00:00+00:00",
                "test_from": "2024-01-12T12:00:00+00:00",
            }
        },
    )
    small = small.model_copy(update={"folder": tmp_path_factory.mktemp("study")})
    options = {"noise_rates": [0.4], "num_users": 120, "num_items": 100}
    return small, options, denoising_study(small, **options)


def test_the_study_measures_every_stage(study):
    from pipelines.denoising_study import measure, read_truth, with_popularity, with_truth
    from pipelines.event_scores import scored_events
    from pipelines.export import load_model

    small, _, table = study
    stages = ["before training", "ranking_only", "slower"]
    assert table["stage"].tolist() == [stage for stage in stages for _ in range(3)]
    assert table["fields"].tolist() == ["all", "item", "category"] * 3
    assert (table["noise rate"] == 0.4).all()
    written = pd.read_csv(small.folder / "denoising.csv")
    pd.testing.assert_frame_equal(table, written, check_dtype=False)

    at_rate = small.folder / "noise-0.4"
    truth = read_truth(at_rate / "log")
    noise = truth.groupby("type")["is_noise"].mean()
    assert noise[["purchase", "search"]].tolist() == [0, 0]
    np.testing.assert_allclose(noise[["click", "cart"]], 0.4, atol=0.02)
    run, features, model = load_model(at_rate / "runs" / "slower-seed1")
    events = with_truth(scored_events(run, features, model.ranker), truth)
    figures = measure(with_popularity(events, truth, run))
    row = table[(table["stage"] == "slower") & (table["fields"] == "all")].iloc[0]
    np.testing.assert_allclose(row[list(figures)].astype(float), list(figures.values()), rtol=1e-12)
    # Training moved the embeddings.
    assert table.loc[table["fields"] == "all", "largest cosine"].nunique() == 3


def test_the_study_is_written_as_two_tables_of_means(study):
    from pipelines.denoising_study import to_markdown

    small, _, table = study
    assert (small.folder / "denoising.md").read_text() == to_markdown(table) + "\n"
    again = table.assign(seed=2, **{"keep score": 1 - table["keep score"]})
    whole, alone = to_markdown(pd.concat([table, again])).split("\n\n")
    first = whole.splitlines()
    assert first[0].startswith("| noise | stage | keep score | one look | largest cosine |")
    assert first[2].startswith("| 40% | before training | 0.500 | ")
    assert len(first) == len(alone.splitlines()) == 5
    assert "| item: keep score | item: largest cosine | category: keep score |" in alone
    assert {line.count("|") for line in first} == {first[0].count("|")}


def test_what_an_earlier_call_finished_is_kept(study, tmp_path, monkeypatch):
    from pipelines import arms, denoising_study

    small, options, table = study
    shutil.copytree(small.folder, tmp_path, copy_function=shutil.copy2, dirs_exist_ok=True)
    moved = small.model_copy(update={"folder": tmp_path})
    made = []
    monkeypatch.setattr(arms, "train", lambda config, folder, **_: made.append(folder.name))
    write = denoising_study.write_simulated_log
    monkeypatch.setattr(
        denoising_study,
        "write_simulated_log",
        lambda folder, **parameters: made.append(parameters) or write(folder, **parameters),
    )
    pd.testing.assert_frame_equal(denoising_study.denoising_study(moved, **options), table)
    assert made == []
    # Other parameters make another log; one that was cut off is not taken for finished.
    monkeypatch.setattr(denoising_study, "prepare", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        denoising_study.denoising_study(moved, **options | {"num_users": 110})
    assert made == [{"num_users": 110, "num_items": 100, "noise_rate": 0.4}]
    assert not (tmp_path / "noise-0.4" / "made_from.json").exists()


@pytest.mark.parametrize(
    ("arms", "rates", "message"),
    [
        ({}, [0.3], r"arms: expected at least one arm\. Received: none"),
        ({"a": {}}, [0.3, 1.0], r"expected noise rates above 0 and below 1\. Received: \[0.3, 1"),
        ({"a": {}}, [], r"expected noise rates above 0 and below 1\. Received: \[\]"),
        ({"a": {"denoiser": {"trusted": None}}}, [0.3], r"same types in every arm.*\{'a': \[\]\}"),
        ({"a": {"denoiser": {"enabled": False}}}, [0.3], r"same types in every arm.*\{'a': \[\]\}"),
        ({"a": {}, "b": {"denoiser": {"trusted": "cart"}}}, [0.3], r"'b': \['cart'\]"),
        ({"a": {"denoiser": {"trusted": "candidate"}}}, [0.3], r"among \['cart', 'click', 'sea"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(config, tmp_path, arms, rates, message):
    from pipelines.config import ConfigError
    from pipelines.denoising_study import denoising_study

    bad = with_arms(config, arms, denoiser=TRUSTED).model_copy(update={"folder": tmp_path})
    with pytest.raises(ConfigError, match=message):
        denoising_study(bad, noise_rates=rates)
    assert list(tmp_path.iterdir()) == []


def test_the_run_file_is_a_run_of_three_stages():
    from pathlib import Path

    from pipelines.config import load_run_config
    from pipelines.denoising_study import _check_trusted

    path = Path(__file__).parents[2] / "pipelines" / "configs" / "denoising.yaml"
    config = load_run_config(path)
    _check_trusted(config)
    assert list(config.arms) == ["ranking_only", "side_loss", "side_loss_and_alignment"]
    assert config.arm("ranking_only").denoiser.weight == 0
    assert config.arm("side_loss").denoiser.alignment is None
    assert config.arm("side_loss_and_alignment").denoiser.alignment == "type"
