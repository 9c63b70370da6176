import re
from pathlib import Path

import pytest
import yaml

from pipelines.config import ConfigError, load_run_config

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
    assert config.denoiser.weight == 0.1
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
