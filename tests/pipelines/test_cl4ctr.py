import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytestmark = pytest.mark.tfrs

ROWS, FIELDS, DIM = 5, 3, 4
ARRAYS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    elements=st.integers(-4, 4).map(float),
)


def loops(features):
    """Feature alignment and field uniformity, pair by pair."""
    rows, fields, _ = features.shape
    distances = [
        sum((features[i, f] - features[j, f]) ** 2)
        for f in range(fields)
        for i in range(rows)
        for j in range(rows)
    ]
    likenesses = [0.0] if fields == 1 else []
    for f in range(fields):
        for g in range(fields):
            for i in range(rows if f != g else 0):
                for j in range(rows):
                    x, y = features[i, f], features[j, g]
                    lengths = np.sqrt(sum(x * x)) * np.sqrt(sum(y * y))
                    likenesses.append(sum(x * y) / lengths if lengths else 0.0)
    return np.mean(distances), np.mean(likenesses)


@settings(max_examples=40)
@given(ARRAYS)
def test_alignment_and_uniformity_are_means_over_all_pairs(features):
    from pipelines.cl4ctr import feature_alignment, field_uniformity

    alignment, uniformity = loops(features)
    np.testing.assert_allclose(feature_alignment(features), alignment, rtol=1e-12)
    np.testing.assert_allclose(field_uniformity(features), uniformity, rtol=1e-12, atol=1e-14)


def test_alignment_of_close_vectors_far_from_zero_is_not_rounded_away():
    from pipelines.cl4ctr import feature_alignment

    features = np.float32([[[1000.0]], [[1000.0 + 2**-10]]])
    np.testing.assert_allclose(feature_alignment(features), loops(np.float64(features))[0])


def embedded():
    return np.random.default_rng(0).normal(size=(FIELDS, ROWS, DIM)).astype(np.float32)


def penalties(**settings):
    from pipelines.cl4ctr import Cl4ctr
    from pipelines.run_sections import Cl4ctrConfig

    return Cl4ctr(Cl4ctrConfig(hidden_units=6, **settings), FIELDS, DIM, seed=1)


def penalty(layer, features, seed=(3, 4), **options):
    from seqdenoise.replicas import GlobalBatch

    return layer.penalty(list(features), seed=tf.constant(seed), batch=GlobalBatch(**options))


def masked_at(layer, seed):
    """What each view's masks keep of rows of ones, scaled: `[2, B, F * D]`."""
    from seqdenoise.views import feature_dropout, fold_in

    ones, rate = tf.ones([ROWS, FIELDS * DIM]), layer.settings.mask_rate
    return [feature_dropout(ones, rate=rate, seed=fold_in(seed, n)).numpy() for n in (0, 1)]


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_penalty_equals_plain_loops(rate):
    layer, features = penalties(contrast=0.7, constraints=0.3, mask_rate=rate), embedded()
    wide = features.astype(np.float64)
    ends = []
    for masks, projection in zip(masked_at(layer, (3, 4)), layer.projections, strict=True):
        x = np.concatenate(wide, axis=1) * masks
        for dense in (layer.hidden, layer.interactions, projection):
            kernel, bias = (w.numpy().astype(np.float64) for w in dense.weights)
            x = x @ kernel + bias
            x = x if dense is projection else np.maximum(x, 0)
        ends.append(x)
    distance = np.mean([sum((a - b) ** 2) for a, b in zip(*ends, strict=True)])
    alignment, uniformity = loops(wide.transpose(1, 0, 2))
    expected = 0.7 * distance + 0.3 * (alignment + uniformity)
    np.testing.assert_allclose(penalty(layer, features), expected, rtol=1e-5)


def test_masks_differ_by_view_and_step_and_not_by_the_rows_before():
    layer, features = penalties(constraints=0.0), embedded()
    a, b = masked_at(layer, (3, 4))
    assert not np.array_equal(a, b)
    assert penalty(layer, features) == penalty(layer, features)
    assert penalty(layer, features) != penalty(layer, features, (3, 5))
    parts = [
        penalty(layer, features[:, rows], first_row=rows.start, num_rows=None) * size / ROWS
        for rows, size in ((slice(0, 2), 2), (slice(2, ROWS), ROWS - 2))
    ]
    np.testing.assert_allclose(sum(parts), penalty(layer, features), rtol=1e-5)


def ranking_models(config, arms):
    """Models of one run with other `cl4ctr` sections, from one random state each; a batch."""
    from pipelines.features import fit_features
    from pipelines.train import build_model

    features = fit_features(config)
    dataset = features.dataset(
        config.prepared_folder / "train.parquet", label="is_click", batch_size=64, max_length=8
    )
    batch, models = next(iter(dataset)), []
    for cl4ctr in arms:
        arm = config.with_denoiser(False)
        arm = arm.model_copy(update={"model": arm.model.model_copy(update={"cl4ctr": cl4ctr})})
        tf.keras.backend.clear_session()  # Keras numbers layers anew.
        tf.keras.utils.set_random_seed(0)
        models.append((arm, build_model(arm, features, seed=0)))
        models[-1][1](batch)
    return features, batch, models


@pytest.fixture(scope="module")
def control_and_rival(config):
    from pipelines.run_sections import Cl4ctrConfig

    return ranking_models(config, [None, Cl4ctrConfig()])


def names(model):
    return [variable.name for variable in model.ranker.variables]


def test_the_ranker_is_the_same_with_and_without(control_and_rival):
    _, batch, ((_, control), (_, rival)) = control_and_rival
    own = [name for name in names(rival) if name.startswith("cl4ctr/")]
    assert len(own) == 8  # kernels and biases of two layers and two projections
    assert [name for name in names(rival) if name not in own] == names(control)
    theirs = [v for v in rival.ranker.variables if v.name not in own]
    for one, other in zip(control.ranker.variables, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(control(batch), rival(batch))
    np.testing.assert_array_equal(control(batch, training=True), rival(batch, training=True))
    assert control.ranker.losses == []
    assert len(rival.ranker.losses) == 1


def test_gradients_reach_embeddings_of_candidate_and_side_features_and_the_encoder(
    control_and_rival,
):
    _, batch, (_, (_, rival)) = control_and_rival
    ranker = rival.ranker
    with tf.GradientTape() as tape:
        rival(batch, training=True)
        (loss,) = ranker.losses
    tables = [ranker.tables[name].embeddings for name in ("item", "category", "segment")]
    kernels = [v for v in ranker.cl4ctr.trainable_variables if v.name.endswith("kernel:0")]
    for gradient in tape.gradient(loss, [*tables, *kernels]):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0


def test_training_steps_bring_the_penalty_down(control_and_rival):
    _, batch, (_, (_, rival)) = control_and_rival
    rival.compile(tf.keras.optimizers.Adam(0.02))
    step = tf.function(rival.train_step)
    added = [float(step(batch)["regularization_loss"]) for _ in range(15)]
    assert np.mean(added[-3:]) < 0.7 * np.mean(added[:3])


def test_a_loaded_run_has_nothing_of_it(control_and_rival, tmp_path):
    from pipelines.export import load_model

    features, batch, ((_, control), (arm, rival)) = control_and_rival
    (tmp_path / "run.json").write_text(arm.model_dump_json())
    features.save(tmp_path / "features.json")
    tf.train.Checkpoint(ranker=rival.ranker).write(str(tmp_path / "checkpoint" / "best"))
    tf.keras.backend.clear_session()
    loaded_arm, _, loaded = load_model(tmp_path)
    assert loaded_arm.model.cl4ctr == arm.model.cl4ctr is not None
    assert names(loaded) == names(control)
    np.testing.assert_array_equal(loaded.probabilities(batch), rival.probabilities(batch))


def test_a_run_file_names_it_in_an_arm(config):
    from pipelines.config import RunConfig
    from pipelines.run_sections import Cl4ctrConfig

    raw = config.model_dump()
    off = {"denoiser": {"enabled": False}}
    arms = {"control": off, "cl4ctr": {**off, "model": {"cl4ctr": {"contrast": 0.1}}}}
    run = RunConfig.model_validate({**raw, "arms": arms})
    assert run.arm("control").model.cl4ctr is None
    assert run.arm("cl4ctr").model.cl4ctr == Cl4ctrConfig(contrast=0.1)
    for wrong in ({"alpha": 1}, {"mask_rate": 1.0}, {"contrast": -1}):
        arms["cl4ctr"]["model"]["cl4ctr"] = wrong
        with pytest.raises(ValueError, match=r"arm `cl4ctr`: model\.cl4ctr"):
            RunConfig.model_validate({**raw, "arms": arms})
