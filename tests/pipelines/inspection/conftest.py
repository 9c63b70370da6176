import pytest


@pytest.fixture(scope="session")
def judging_config(config):
    """The small run, with carts as what clicks are judged by."""
    content = config.model_dump()
    content["denoiser"] |= {"trusted": "cart", "masking": "event"}
    # So small a rate that the weights stay the very ones that training starts from.
    content["train"] |= {"epochs": 1, "learning_rate": 1e-30, "batch_size": 4096}
    return type(config).model_validate(content)


@pytest.fixture(scope="session")
def run_folder(judging_config):
    """The folder of a finished run that says which events to trust."""
    from pipelines.train import train

    folder = judging_config.folder / "judging"
    train(judging_config, folder, seed=5)
    return folder


@pytest.fixture(scope="session")
def run(run_folder):
    from pipelines.inspection.finished_run import load_finished_run

    return load_finished_run(run_folder)


@pytest.fixture(scope="session")
def prepared(judging_config):
    return judging_config.prepared_folder / "test.parquet" / "part-00000.parquet"


@pytest.fixture(scope="session")
def keep_scores(run, prepared, tmp_path_factory):
    """The file of keep scores of the test rows, and what was counted."""
    from pipelines.inspection.keep_scores import write_keep_scores

    path = tmp_path_factory.mktemp("scores") / "keep_scores.parquet"
    return path, write_keep_scores(run, prepared, path)
