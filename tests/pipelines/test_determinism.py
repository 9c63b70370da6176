import pytest

pytestmark = pytest.mark.tfrs


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_switch_is_turned_before_anything_is_made(deterministic, config, tmp_path, monkeypatch):
    import tensorflow as tf

    from pipelines import train as module

    # That two runs under it are the same, `test_killed_jobs` says in processes of their own: it
    # cannot be turned back in this one.
    done = []
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "enable_op_determinism", lambda: done.append("switch"))

    def stop(_):
        done.append("work")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "fit_features", stop)
    settings = config.train.model_copy(update={"deterministic": deterministic})
    with pytest.raises(KeyboardInterrupt):
        module.train(config.model_copy(update={"train": settings}), tmp_path / "run")
    assert done == (["switch", "work"] if deterministic else ["work"])
