import os

import pytest
import yaml

LEGACY_KERAS = os.environ.get("TF_USE_LEGACY_KERAS") == "1"


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="TFRS 0.7.7 needs legacy Keras (TF_USE_LEGACY_KERAS=1)")
    for item in items:
        if item.get_closest_marker("tfrs") and not LEGACY_KERAS:
            item.add_marker(skip)


RUN_FILE = {
    "folder": "set by the fixture",
    "prepare": {
        "sequence_types": ["click", "cart", "search"],
        "max_length": 8,
        "item_fields": ["category", "price"],
        "user_fields": ["segment"],
        "context_fields": ["hour"],
        "labels": ["is_click"],
        "split": {
            "valid_from": "2024-01-03T00:00:00+00:00",
            "test_from": "2024-01-04T00:00:00+00:00",
        },
    },
    "model": {
        "label": "is_click",
        "event_fields": ["category"],
        "categorical": ["segment"],
        "numeric": ["price", "hour"],
        "embedding_dim": 4,
        "attention_units": [8],
        "mlp_units": [16],
        "dropout": 0.1,
    },
    "denoiser": {"masking": "dimension", "weight": 0.2, "warm_start_epochs": 0},
    "train": {"batch_size": 256, "epochs": 2, "learning_rate": 0.01, "patience": 2},
    "ab": {"seeds": [0, 1], "num_resamples": 200},
}


@pytest.fixture(scope="session")
def run_file(tmp_path_factory):
    """The run file of a small simulated log that is prepared already."""
    from pipelines.config import load_run_config
    from pipelines.prepare import prepare
    from pipelines.simulate import write_simulated_log

    folder = tmp_path_factory.mktemp("run")
    write_simulated_log(folder / "log", num_users=200, num_items=150, num_days=4)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**RUN_FILE, "folder": str(folder)}))
    prepare(load_run_config(path))
    return path


@pytest.fixture(scope="session")
def config(run_file):
    from pipelines.config import load_run_config

    return load_run_config(run_file)


@pytest.fixture(scope="session")
def finished_ab(config):
    """The folder of a finished A/B, and its comparison."""
    from pipelines.ab import run_ab

    return config.folder / "ab", run_ab(config)
