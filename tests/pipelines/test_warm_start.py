import json

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.tfrs


def changed(config, **sections):
    raw = config.model_dump()
    for section, keys in sections.items():
        raw[section] = {**raw[section], **keys}
    return type(config).model_validate(raw)


@pytest.fixture
def warm(config):
    """A run with a warm start and no side loss after it."""
    return changed(
        config,
        denoiser={"masking": "event", "weight": 0.0, "warm_start_epochs": 2},
        train={"epochs": 1},
    )


def batches_and_model(config, seed=0):
    import tensorflow as tf

    from pipelines.features import fit_features
    from pipelines.train import build_model

    features = fit_features(config)
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    model = build_model(config, features, seed=seed)
    dataset = features.dataset(
        config.prepared_folder / "train.parquet",
        label=config.model.label,
        batch_size=config.train.batch_size,
        max_length=config.prepare.max_length,
    )
    batches = list(dataset)
    model(batches[0])
    model.compile(tf.keras.optimizers.Adam(config.train.learning_rate))
    model.optimizer.build(model.trainable_variables)
    return batches, model


def trained(model, batches, *, is_warming):
    """The batches' losses, in a graph as in the training job."""
    import tensorflow as tf

    model.is_warming = is_warming
    train_on_next = model.make_train_function(force=True)
    iterator = iter(tf.data.Dataset.from_tensor_slices(batches_together(batches)).batch(256))
    return [float(train_on_next(iterator)["loss"]) for _ in batches]


def batches_together(batches):
    return {key: np.concatenate([batch[key].numpy() for batch in batches]) for key in batches[0]}


@pytest.mark.parametrize("joint_weight", [0.0, 0.3])
def test_its_steps_are_those_of_the_library(warm, joint_weight):
    import tensorflow as tf

    import seqdenoise

    # The weight, its warm-up and its step say how the loss stands beside the ranking loss.
    config = changed(warm, denoiser={"weight": joint_weight, "warmup_steps": 100})
    batches, ours = batches_and_model(config)
    losses = trained(ours, batches, is_warming=True)
    _, theirs = batches_and_model(config)
    theirs.is_joint = True  # else there is no side loss in what the library runs
    optimizer = tf.keras.optimizers.Adam(config.train.learning_rate)
    (epoch,) = seqdenoise.warm_start(theirs, batches, epochs=1, optimizer=optimizer)
    assert np.mean(losses) == pytest.approx(epoch["side_loss"], rel=1e-5)
    pairs = list(zip(ours.trainable_variables, theirs.trainable_variables, strict=True))
    assert any("encoder" in variable.name for variable, _ in pairs)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=one.name)


def test_the_ranker_but_for_its_tables_stays_and_after_it_the_encoders_do(warm):
    batches, model = batches_and_model(warm)
    denoised = {"item_table", "category_table"}

    def state():
        return {v.name: v.numpy() for v in model.trainable_variables}

    def moved(before, after):
        return {name for name in before if not np.array_equal(before[name], after[name])}

    start = state()
    trained(model, batches, is_warming=True)
    middle = state()
    in_warm_start = moved(start, middle)
    tables = {name for name in in_warm_start if "_table" in name}
    assert {part for name in tables for part in name.split("/") if "_table" in part} == denoised
    assert all("table" in name or "encoder" in name for name in in_warm_start)
    assert any("encoder" in name for name in in_warm_start)
    trained(model, batches, is_warming=False)
    in_ranking = moved(middle, state())
    assert not any("encoder" in name for name in in_ranking)
    assert in_ranking - in_warm_start  # the rest of the ranker


def test_a_run_with_a_warm_start_alone(warm, config, tmp_path, caplog):
    from pipelines.train import train

    with caplog.at_level("INFO", logger="pipelines.train"):
        metrics = train(warm, tmp_path / "run", seed=1)
    said = [line for line in caplog.messages if "warm start, epoch" in line]
    losses = [float(line.split("side loss ")[1].split(",")[0]) for line in said]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert metrics["epochs"] == 1
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    assert len(history) == 1
    assert "side_gradient_ratio" not in history
    # It is another run than the one without, and the same every time.
    again = train(warm, tmp_path / "again", seed=1)
    assert again["test"] == metrics["test"]
    control = train(warm.with_denoiser(False), tmp_path / "control", seed=1)
    assert control["test"] != metrics["test"]
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["denoiser"]["warm_start_epochs"]
        == 2
    )


def test_the_ranking_sees_the_rows_in_the_order_of_the_control(warm, tmp_path, monkeypatch):
    from pipelines import train as job
    from pipelines.features import Features

    orders = []
    original = Features.dataset

    def dataset(self, path, **options):
        if "shuffle_seed" in options:
            orders.append((options["shuffle_seed"], options["first_step"]))
        return original(self, path, **options)

    monkeypatch.setattr(Features, "dataset", dataset)
    job.train(warm, tmp_path / "warm", seed=5)
    job.train(warm.with_denoiser(False), tmp_path / "control", seed=5)
    in_warm_start, ranking, control = orders
    assert ranking == control == (5, 0)
    assert in_warm_start[0] != 5


@pytest.mark.parametrize("is_warming", [True, False])
def test_compiled_steps_are_the_same_steps(warm, is_warming):
    config = changed(warm, denoiser={"weight": 0.2}, model={"embedding_l2": 0.01})
    batches, plain = batches_and_model(config)
    _, compiled = batches_and_model(changed(config, train={"jit_compile": True}))
    losses = trained(plain, batches[:3], is_warming=is_warming)
    np.testing.assert_allclose(
        trained(compiled, batches[:3], is_warming=is_warming), losses, rtol=1e-4
    )
    for one, other in zip(plain.trainable_variables, compiled.trainable_variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3, err_msg=one.name)


def test_ids_that_are_text_do_not_stop_the_compiler(warm):
    import tensorflow as tf

    config = changed(warm, denoiser={"weight": 0.2}, train={"jit_compile": True})
    batches, model = batches_and_model(config)
    _, other = batches_and_model(config)
    named = [{**batch, "user": tf.strings.as_string(batch["user"])} for batch in batches[:2]]
    losses = trained(model, named, is_warming=False)
    np.testing.assert_allclose(losses, trained(other, batches[:2], is_warming=False), rtol=1e-6)


def test_without_a_plug_in_there_is_nothing_to_warm_up(warm):
    batches, model = batches_and_model(warm.with_denoiser(False))
    with pytest.raises(ValueError, match="without plug-in"):
        trained(model, batches[:1], is_warming=True)
