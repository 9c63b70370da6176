import pytest
import yaml

from pipelines.config import ConfigError, RunConfig, load_run_config
from pipelines.study_config import Choices, Span

RUN = {
    "folder": "x",
    "prepare": {
        "sequence_types": ["click"],
        "labels": ["is_click", "is_like"],
        "split": {"valid_from": 10, "test_from": 20},
    },
    "model": {"label": "is_click", "dropout": 0.3},
    "ab": {"arms": ["field"]},
    "arms": {
        "control": {"denoiser": {"enabled": False}},
        "field": {"denoiser": {"masking": "field"}, "train": {"epochs": 7}},
        "simclr": {"denoiser": {"loss": "nt_xent"}},
    },
}
STUDY = {
    "labels": ["is_like"],
    "space": {"train.learning_rate": {"low": 1e-4, "high": 0.01, "log": True}},
    "spaces": {"field": {"denoiser.temperature": {"choices": [None, 0.1]}}},
    "rivals": ["simclr"],
}


def load(tmp_path, run=RUN, **changes):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**run, "study": {**STUDY, **changes}}))
    return load_run_config(path)


def test_a_study_is_read(tmp_path):
    study = load(tmp_path, spaces={"simclr": {"denoiser.head_units": {"low": 8, "high": 64}}}).study
    assert study.seeds == [0, 1, 2, 3, 4]
    assert study.tuning_seeds == [100]
    assert study.space == {"train.learning_rate": Span(low=1e-4, high=0.01, log=True)}
    (span,) = study.spaces["simclr"].values()
    assert type(span.low) is type(span.high) is int
    kept = load(tmp_path)
    assert kept.study.spaces["field"]["denoiser.temperature"] == Choices(choices=[None, 0.1])
    assert RunConfig.model_validate_json(kept.model_dump_json()) == kept


def test_what_is_named_later_wins(tmp_path):
    config = load(tmp_path)
    host = {"model.dropout": 0.1, "train.epochs": 3, "train.learning_rate": 0.02}
    run = config.study_arm("field", label="is_like", host=host, own={"model.dropout": 0.2})
    assert run.model.label == "is_like"
    assert (run.train.learning_rate, run.train.epochs, run.model.dropout) == (0.02, 7, 0.2)
    assert run.denoiser.masking == "field"
    assert run.setting("denoiser.masking") == "field"
    assert (run.arms, run.study, run.ab.arms) == ({}, None, [])
    assert run.ab.seeds == config.study.seeds
    assert config.study_arm("control", host=host).train.epochs == 3
    with pytest.raises(ConfigError, match=r"expected one of .*Received: 'none'"):
        config.study_arm("none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["is_buy"]}, r"`study.labels` may name \['is_click', .*\['is_buy'\]"),
        ({"labels": []}, "study.labels: .*at least 1"),
        ({"rivals": ["nobody"]}, r"`study.rivals` may name \['field', 'simclr'\].*\['nobody'\]"),
        ({"rivals": ["control"]}, r"`study.rivals` may name .*\['control'\]"),
        ({"rivals": ["field", "simclr"]}, "an arm beside `control` and `rivals`"),
        ({"spaces": {"control": {}}}, r"`study.spaces` may name .*\['control'\]"),
        ({"seeds": [1, 2], "tuning_seeds": [2]}, r"`tuning_seeds` may hold none.*\[2\]"),
        ({"seeds": [1, 1]}, r"`seeds` may name each once. Received: \[1, 1\]"),
        ({"trials": 0}, "study.trials: .*Received: 0"),
        ({"space": {"train.rate": {"choices": [1]}}}, "study.space: .*Received: 'train.rate'"),
        ({"space": {"ab.seeds": {"choices": [1]}}}, "study.space: .*Received: 'ab.seeds'"),
        ({"space": {"epochs": {"choices": [1]}}}, "study.space: .*Received: 'epochs'"),
        (
            {"space": {"denoiser.weight": {"choices": [1]}}},
            r"study.space: .*\['model', 'train'\]. Received: 'denoiser.weight'",
        ),
        (
            {"spaces": {"field": {"denoiser.weight": {"low": -1, "high": 1}}}},
            "study.spaces.field: denoiser.weight: .*greater than or equal to 0.*Received: -1",
        ),
        (
            {"spaces": {"field": {"train.epochs": {"low": 1, "high": 2.5}}}},
            "study.spaces.field: train.epochs: .*integer.*Received: 2.5",
        ),
        (
            {"spaces": {"field": {"denoiser.masking": {"choices": ["field", "none"]}}}},
            "study.spaces.field: denoiser.masking: .*Received: 'none'",
        ),
        (
            {"space": {"train.epochs": {"low": 3, "high": 3}}},
            "`low` below `high`.*Received: 3 to 3",
        ),
        (
            {"space": {"train.epochs": {"low": 0, "high": 3, "log": True}}},
            "above 0 where `log` is true. Received: 0 to 3",
        ),
        ({"space": {"train.epochs": {"choices": []}}}, "study.space.train.epochs.*at least 1"),
        ({"space": {"train.epochs": {"low": 1, "hihg": 3}}}, "hihg: unknown key"),
        ({"space": {"train.epochs": [1, 2]}}, "study.space.train.epochs.*Received: "),
        ({"trails": 3}, "study.trails: unknown key"),
    ],
)
def test_an_unfair_or_impossible_study_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as raised:
        load(tmp_path, **changes)
    assert str(tmp_path / "run.yaml") in str(raised.value)


@pytest.mark.parametrize("control", [None, {}, {"denoiser": {"weight": 0.0}}])
def test_a_study_has_a_control_without_the_plug_in(tmp_path, control):
    arms = {**RUN["arms"], "control": control}
    if control is None:
        del arms["control"]
    with pytest.raises(ConfigError, match="a control without the plug-in"):
        load(tmp_path, run={**RUN, "arms": arms})
