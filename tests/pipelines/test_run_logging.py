import contextlib
import importlib.util

import numpy as np
import pytest

from pipelines.config import ConfigError

pytestmark = pytest.mark.tfrs


def fit(callbacks):
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model.fit(np.ones((8, 2)), np.ones(8), epochs=2, verbose=0, callbacks=callbacks).history


def test_tensorboard_holds_the_curve_of_every_metric(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorflow import make_ndarray

    from pipelines.run_logging import run_logging

    with run_logging(tmp_path, "control, seed 0", tensorboard=True) as callbacks:
        history = fit(callbacks)
    logged = events.EventAccumulator(str(tmp_path / "tensorboard" / "train"))
    logged.Reload()
    curve = [float(make_ndarray(event.tensor_proto)) for event in logged.Tensors("epoch_loss")]
    np.testing.assert_allclose(curve, history["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_holds_the_last_metrics_of_a_named_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")  # where MLflow keeps runs on this machine
    from pipelines.run_logging import run_logging

    monkeypatch.chdir(tmp_path)
    options = {"run": "control, seed 0", "mlflow": "shop"}
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    # Taken up again after an error, or a kill.
    for ends_well in (False, True):
        with contextlib.suppress(KeyboardInterrupt), run_logging(tmp_path, **options) as callbacks:
            history = fit(callbacks)
            mlflow.flush_async_logging()
            if not ends_well:
                raise KeyboardInterrupt
    (run,) = mlflow.search_runs(experiment_names=["shop"], output_format="list")
    assert run.info.run_name == "control, seed 0"
    assert run.info.status == "FINISHED"
    assert run.info.run_id == (tmp_path / "mlflow_run_id.txt").read_text()
    np.testing.assert_allclose(run.data.metrics["loss"], history["loss"][-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "key"), [({"tensorboard": True}, "tensorboard"), ({"mlflow": "shop"}, "mlflow")]
)
def test_a_missing_package_is_named(options, key, tmp_path, monkeypatch):
    from pipelines.run_logging import run_logging

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = rf"train\.{key}: expected the package {key}, .*seqdenoise\[{key}\]"
    with pytest.raises(ConfigError, match=expected), run_logging(tmp_path, "run", **options):
        pass


def test_nothing_is_logged_unless_asked_for(tmp_path):
    from pipelines.run_logging import run_logging

    with run_logging(tmp_path, "run") as callbacks:
        assert callbacks == []
    assert not list(tmp_path.iterdir())
