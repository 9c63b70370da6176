"""The harm check: its section of the run file, its table, and a whole one."""

import logging
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

from pipelines.config import ConfigError, RunConfig, load_run_config

MINIMAL = {
    "folder": "x",
    "prepare": {
        "sequence_types": ["click"],
        "labels": ["is_click", "is_cart"],
        "split": {"valid_from": 10, "test_from": 20},
    },
    "model": {"label": "is_click", "embedding_dim": 4},
    "denoiser": {"weight": 0.3},
    "train": {"epochs": 5},
    "ab": {"seeds": [7], "confidence": 0.9, "arms": ["off"]},
    "arms": {"off": {"denoiser": {"enabled": False}}},
}


def load(tmp_path, **harm):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "harm": harm}))
    return load_run_config(path)


def with_settings(config, settings, **harm):
    """The small run with a harm check."""
    content = {**config.model_dump(), "harm": {"settings": settings, **harm}}
    return RunConfig.model_validate(content)


def test_a_setting_replaces_keys_and_keeps_the_others(tmp_path):
    config = load(
        tmp_path,
        settings={
            "as it is": {},
            "5 % of the rows": {
                "train_fraction": 0.05,
                "label": "is_cart",
                "model": {"dropout": 0.5},
                "train": {"epochs": 9},
            },
        },
    )
    assert config.harm.seeds == [0, 1, 2]
    small = config.harm_setting("5 % of the rows")
    assert (small.model.label, small.model.dropout, small.model.embedding_dim) == (
        "is_cart", 0.5, 4,
    )  # fmt: skip
    assert (small.train.epochs, small.train.batch_size) == (9, config.train.batch_size)
    assert small.denoiser == config.denoiser
    assert (small.ab.seeds, small.ab.confidence, small.ab.arms) == ([0, 1, 2], 0.9, [])
    same = config.harm_setting("as it is")
    assert (same.model, same.train, same.arms, same.harm) == (config.model, config.train, {}, None)
    # Neither does an arm know of the others, nor of what is done with them.
    assert not config.arm("off").denoiser.enabled
    assert (config.arm("off").harm, config.arm("off").ab.arms) == (None, [])
    with pytest.raises(ConfigError, match=r"one of \['5 % .*', 'as it is'\]. Received: 'on'"):
        config.harm_setting("on")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train_fraction": 0}, r"harm.settings.a.train_fraction: .*greater than 0.*Received: 0"),
        ({"train_fraction": 1.2}, r"harm.settings.a.train_fraction: .*Received: 1.2"),
        ({"denoiser": {"weight": 0.0}}, r"harm.settings.a.denoiser: unknown key"),
        ({"label": "no"}, r"harm setting `a`: .*`model.label` may only name columns.*\['no'\]"),
        ({"model": {"dropuot": 0.1}}, r"harm setting `a`: model.dropuot: unknown key"),
        ({"train": {"epochs": 0}}, r"harm setting `a`: train.epochs: .*Received: 0"),
        (
            {"label": "is_cart", "model": {"label": "is_click"}},
            r"harm.settings.a: expected one of `label` and `model.label`. Received: 'is_cart' and",
        ),
    ],
)
def test_a_bad_setting_is_named(setting, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, settings={"a": setting})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["a/b", "..", "a|b", ""])
def test_a_name_that_is_no_folder_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=r"harm.settings.*String should match pattern"):
        load(tmp_path, settings={name: {}})


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ({"settings": {}}, r"harm.settings: .*at least 1"),
        ({"settings": {"a": {}}, "seeds": [1, 1]}, r"`seeds` may name each once.*\[1, 1\]"),
        ({"settings": {"a": {}}, "processes": 0}, r"harm.processes: .*Received: 0"),
    ],
)
def test_a_bad_section_is_named(harm, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **harm)


@pytest.mark.tfrs
def test_without_settings_there_is_nothing_to_do(config):
    from pipelines.harm_check import harm_check

    with pytest.raises(ConfigError, match=r"a section with settings in the run file. Received: no"):
        harm_check(config)


def comparison(gain, *, user_noise=0.0, one_row_a_user=False):
    """Four seeds of a control, and of a treatment that sees more or less of the labels than it."""
    from seqdenoise.evaluation.compare import compare

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2000)
    users = np.arange(2000) if one_row_a_user else rng.integers(0, 100, 2000)
    control = labels + rng.normal(size=(4, 2000))
    treatment = control + gain * labels + 0.05 * rng.normal(size=(4, 2000))
    treatment += user_noise * rng.normal(size=users.max() + 1)[users]
    return compare(labels, users, control, treatment, num_resamples=100)


@pytest.mark.tfrs
def test_the_table_counts_what_is_worse(config, tmp_path, monkeypatch):
    from pipelines import harm_check as job

    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    made = {
        "better": comparison(0.5),
        "worse": comparison(-0.5),
        "no sessions": comparison(0.5, one_row_a_user=True),
        "same": comparison(0.0),
        # Users are told apart wrongly, and their rows better than before.
        "both": comparison(0.5, user_noise=3.0),
        # By its interval, but with "same" left to be judged it may be by chance.
        "scarcely worse": comparison(-0.003),
    }
    assert [metric.outcome for metric in made["both"].metrics] == ["worse", "better"]
    assert 0.05 / 2 < made["scarcely worse"]["AUC"].p_value < 0.05 < made["same"]["AUC"].p_value
    calls = iter(made.values())
    monkeypatch.setattr(job, "train_arms", lambda *_, **__: None)
    monkeypatch.setattr(job, "compare_runs", lambda *_: next(calls))
    settings = {name: {} for name in made} | {"worse": {"train_fraction": 0.2}}
    table = job.harm_check(with_settings(config, settings).model_copy(update={"folder": tmp_path}))

    assert list(table.index) == list(made)
    assert table["train rows"].tolist() == [433, 87, 433, 433, 433, 433]
    assert table["verdict"].tolist() == [
        "better", "worse", "better", "cannot tell", "worse", "worse",
    ]  # fmt: skip
    for name, compared in made.items():
        for metric in compared.metrics:
            for part in ("control", "treatment", "difference", "low", "high", "outcome"):
                assert table.loc[name, f"{metric.metric} {part}"] == getattr(metric, part)
    assert table.loc["no sessions", [n for n in table if n.startswith("GAUC")]].isna().all()
    # Holm by hand: the smallest p value times their number, the next times one less, and so on.
    for metric in ("AUC", "GAUC"):
        p = {
            name: c[metric].p_value
            for name, c in made.items()
            if metric in [m.metric for m in c.metrics]
        }
        largest = 0.0
        for place, name in enumerate(sorted(p, key=p.get)):
            largest = max(largest, min(1.0, (len(p) - place) * p[name]))
            assert table.loc[name, f"{metric} corrected p value"] == pytest.approx(largest)
    assert table["AUC corrected outcome"].tolist() == [
        "better", "worse", "better", "cannot tell", "worse", "cannot tell",
    ]  # fmt: skip
    lines = (tmp_path / "harm" / "harm.md").read_text().splitlines()
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert lines[4].startswith("| no sessions | 433 | is_click | 0.")
    assert lines[4].endswith(" |  | better | better |")
    assert lines[6].endswith(") | worse by AUC | worse by AUC |")
    assert lines[7].endswith(") | worse by AUC | cannot tell |")
    assert lines[9].endswith("worse in 2, better in 2.")
    assert lines[11].startswith(
        "Significantly worse in 3 of 6 settings, better in 2, by AUC or GAU"
    )
    again = pd.read_csv(tmp_path / "harm" / "harm.csv", index_col="setting")
    pd.testing.assert_frame_equal(again, table, check_dtype=False, check_exact=False)
    # In a figure text is drawn as outlines, each named in a comment.
    drawn = (tmp_path / "harm" / "harm.svg").read_text()
    assert {"scarcely worse", "difference in GAUC"} <= {*re.findall(r"<!-- (.*?) -->", drawn)}


@pytest.mark.tfrs
def test_settings_are_trained_and_finished_runs_are_kept(
    finished_ab, config, tmp_path, monkeypatch, caplog
):
    from pipelines import arms
    from pipelines.harm_check import harm_check

    caplog.set_level(logging.INFO)
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    for arm in ("control", "treatment"):
        name = f"{arm}-seed0"
        shutil.copytree(
            finished_ab[0] / "runs" / name, tmp_path / "harm" / "as it is" / "runs" / name
        )
    few = {"train_fraction": 0.2, "train": {"epochs": 1}}
    run = with_settings(config, {"as it is": {}, "few": few}, seeds=[0], processes=1)
    run = run.model_copy(update={"folder": tmp_path})
    table = harm_check(run)
    kept = [f"{arm}, seed 0: kept from an earlier call" for arm in ("control", "treatment")]
    assert [line for line in caplog.messages if "kept" in line] == kept
    number = len(pd.read_parquet(tmp_path / "prepared" / "train.parquet", columns=["user"]))
    assert table["train rows"].tolist() == [number, round(0.2 * number)]
    for setting in table.index:
        metrics = [
            pd.read_json(
                tmp_path / "harm" / setting / "runs" / f"{arm}-seed0" / "metrics.json",
                typ="series",
            )["test"]
            for arm in ("control", "treatment")
        ]
        for metric, key in (("AUC", "auc"), ("GAUC", "gauc")):
            for arm, values in zip(("control", "treatment"), metrics, strict=True):
                assert table.loc[setting, f"{metric} {arm}"] == pytest.approx(values[key])
    assert table.loc["few", "AUC difference"] != 0
    runs = tmp_path / "harm" / "few" / "runs"
    of_few = {
        arm: yaml.safe_load((runs / f"{arm}-seed0" / "run.json").read_text())
        for arm in ("control", "treatment")
    }
    assert [of_few[arm]["denoiser"]["enabled"] for arm in of_few] == [False, True]
    assert of_few["treatment"]["denoiser"] == config.model_dump(mode="json")["denoiser"]
    assert of_few["treatment"]["folder"] == str(tmp_path / "train-fraction" / "0.2-seed0")

    monkeypatch.setattr(arms, "train", lambda *_, **__: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(harm_check(run), table)
