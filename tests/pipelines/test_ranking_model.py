import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.tfrs


def test_target_attention_is_an_mlp_on_the_four_parts():
    from pipelines.ranker import TargetAttention

    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(3, 4)), rng.normal(size=(3, 5, 4))
    layer = TargetAttention([6], name="a")
    got = layer(tf.constant(q, tf.float32), tf.constant(k, tf.float32))
    event, product = layer.event.numpy(), layer.product.numpy()
    kernel, bias = (w.numpy() for w in layer.candidate.weights)
    out_kernel, out_bias = (w.numpy() for w in layer.rest.weights)
    # The one matrix on [q, k, q - k, q * k] that these weights stand for.
    stacked = np.concatenate([kernel, event, np.zeros_like(event), product])
    for i in range(3):
        for j in range(5):
            parts = np.concatenate([q[i], k[i, j], q[i] - k[i, j], q[i] * k[i, j]])
            hidden = np.maximum(parts @ stacked + bias, 0)
            np.testing.assert_allclose(
                got[i, j], hidden @ out_kernel[:, 0] + out_bias[0], rtol=1e-4
            )


@pytest.fixture(scope="module")
def batch_and_model(config):
    from pipelines.features import fit_features
    from pipelines.train import build_model

    features = fit_features(config)
    dataset = features.dataset(
        config.prepared_folder / "train.parquet", label="is_click", batch_size=64, max_length=8
    )
    batch = next(iter(dataset))
    model = build_model(config, features, seed=0)
    model(batch)
    return batch, model


def test_padding_changes_neither_a_score_nor_the_loss(batch_and_model):
    batch, model = batch_and_model
    dirty = dict(batch)
    for kind in ("click", "cart", "search"):
        real = tf.sequence_mask(batch[f"{kind}__length"], 8)
        for field in ("item", "category"):
            dirty[f"{kind}__{field}"] = tf.where(real, batch[f"{kind}__{field}"], 5)
    assert any(np.any(dirty[name].numpy() != batch[name].numpy()) for name in batch if "__" in name)
    np.testing.assert_allclose(model(dirty), model(batch), rtol=1e-5, atol=1e-6)
    losses = []
    for features in (batch, dirty):
        model.denoiser.step.assign(0)
        model(features, training=True)
        losses.append(float(model.denoiser.losses[0]))
    assert losses[0] == losses[1]


def test_the_denoiser_leaves_scores_alone(batch_and_model):
    batch, model = batch_and_model
    np.testing.assert_array_equal(model(batch), model.ranker(batch))


def test_the_side_loss_reaches_every_event_table_and_encoder_but_no_search(batch_and_model):
    batch, model = batch_and_model
    with tf.GradientTape() as tape:
        model(batch, training=True)
        loss = tf.add_n(model.denoiser.losses)
    tables = [model.ranker.tables[name].trainable_variables[0] for name in ("item", "category")]
    encoders = model.denoiser.trainable_variables
    assert len(encoders) == 8  # click and cart
    gradients = tape.gradient(loss, [*tables, *encoders])
    for table in gradients[:2]:
        assert isinstance(table, tf.IndexedSlices)
    for gradient in gradients:
        assert np.abs(tf.convert_to_tensor(gradient).numpy()).max() > 0


def test_row_weights_weigh_the_ranking_loss(batch_and_model):
    batch, model = batch_and_model
    first = tf.cast(tf.range(64) < 20, tf.float32)
    weighted = model.compute_loss({**batch, "weight": first})
    head = {name: value[:20] for name, value in batch.items()}
    # TFRS averages over rows, those of weight 0 included.
    np.testing.assert_allclose(weighted, model.compute_loss(head) * 20 / 64, rtol=1e-5)
