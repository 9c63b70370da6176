import re
from pathlib import Path

import pytest
import yaml

from pipelines.config import ConfigError, load_run_config
from pipelines.run_sections import DenoiserConfig
from seqdenoise.masking import MASKINGS
from seqdenoise.objective import LOSSES

CONFIGS = sorted((Path(__file__).parents[2] / "pipelines" / "configs").glob("*.yaml"))
MINIMAL = {
    "folder": "x",
    "prepare": {
        "sequence_types": ["click"],
        "labels": ["is_click"],
        "split": {"valid_from": 10, "test_from": 20},
    },
    "model": {"label": "is_click"},
}


def load(tmp_path, **changes):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return load_run_config(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_run_files_that_come_with_the_project_are_valid(path):
    assert load_run_config(path).folder.parts[0] == "build"


def test_defaults_and_the_folder_option(tmp_path):
    config = load(tmp_path)
    denoiser = config.denoiser
    assert (denoiser.weight, denoiser.warm_start_epochs, denoiser.masking) == (0.0, 5, "event")
    served = config.without_side_loss().denoiser
    assert (served.weight, served.warm_start_epochs) == (0.0, 0)  # no encoder to train, or to serve
    assert config.log_folder == Path("x/log")
    moved = load_run_config(tmp_path / "run.yaml", folder=tmp_path)
    assert moved.prepared_folder == tmp_path / "prepared"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"denoiser": {"wieght": 0.1}}, "denoiser.wieght: unknown key"),
        ({"modle": {}}, "modle: unknown key"),
        (
            {"denoiser": {"weight": -0.5}},
            "denoiser.weight: .*greater than or equal to 0.*Received: -0.5",
        ),
        ({"denoiser": {"masking": "nothing"}}, "denoiser.masking: .*Received: 'nothing'"),
        ({"train": {"batch_size": "many"}}, "train.batch_size: .*Received: 'many'"),
        ({"model": {"label": "is_buy"}}, r"`model.label` may only name.*Received: \['is_buy'\]"),
        ({"model": {"label": "is_click", "numeric": ["price"]}}, r"model.numeric.*\['price'\]"),
        ({"model": {}}, "model.label: Field required"),
        (
            {
                "prepare": {
                    **MINIMAL["prepare"],
                    "split": {"valid_from": "2024-01-01T00:00:00", "test_from": 2},
                }
            },
            "`valid_from` needs a time zone.*Received: 2024-01-01T00:00:00",
        ),
        (
            {
                "prepare": {**MINIMAL["prepare"], "item_fields": ["a"]},
                "model": {"label": "is_click", "event_fields": ["a"], "categorical": ["a"]},
            },
            r"once. Received: \['a'\]",
        ),
    ],
)
def test_a_bad_key_is_named_with_its_place(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as raised:
        load(tmp_path, **changes)
    assert str(tmp_path / "run.yaml") in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", "expected a YAML mapping. Received: list"), ("a: [", "expected YAML")],
)
def test_what_is_no_run_file_is_refused(tmp_path, content, message):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_run_config(path)


def test_a_missing_run_file_is_named(tmp_path):
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=re.escape(f"{path}: expected a readable run file")):
        load_run_config(path)


@pytest.mark.parametrize(("key", "known"), [("loss", LOSSES), ("masking", MASKINGS)])
def test_the_run_file_knows_every_loss_and_masking_of_the_library(key, known):
    assert set(DenoiserConfig.model_fields[key].annotation.__args__) == set(known)


def test_the_run_file_has_every_option_of_the_layer():
    import inspect

    from seqdenoise import SequenceDenoiser

    options = set(inspect.signature(SequenceDenoiser.__init__).parameters)
    # Of a run: the seed. Of the prepared data: what fields say about each other. Sequences of a
    # prepared log are named by their type.
    options -= {"self", "kwargs", "seed", "mutual_information", "types"}
    of_the_run = {"enabled", "positives", "warm_start_epochs"}
    assert set(DenoiserConfig.model_fields) == options | of_the_run


def test_an_arm_replaces_keys_and_keeps_the_others(tmp_path):
    config = load(
        tmp_path,
        denoiser={"weight": 0.3, "units": 8},
        arms={"off": {"denoiser": {"enabled": False}}, "wide": {"denoiser": {"units": 64}}},
    )
    wide = config.arm("wide")
    assert (wide.denoiser.units, wide.denoiser.weight, wide.denoiser.enabled) == (64, 0.3, True)
    assert wide.train == config.train
    assert not config.arm("off").denoiser.enabled
    with pytest.raises(ConfigError, match=r"expected one of \['off', 'wide'\]. Received: 'on'"):
        config.arm("on")


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"denoiser": {"los": "moco"}}, "arm `a`: denoiser.los: unknown key"),
        ({"denoiser": {"loss": "mocco"}}, "arm `a`: denoiser.loss: .*Received: 'mocco'"),
        ({"model": {"label": "no"}}, "arm `a`: .*`model.label` may only name columns.*'no'"),
        ({"prepare": {"max_length": 5}}, "arms.a.prepare"),
    ],
)
def test_a_bad_arm_is_named(tmp_path, arm, message):
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, arms={"a": arm})
    assert len(str(error.value)) < 400
