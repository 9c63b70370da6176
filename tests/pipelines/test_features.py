import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.tfrs


def test_vocabularies_are_fitted_on_training_rows_alone(config):
    from pipelines.features import fit_features

    features = fit_features(config)
    train = pd.read_parquet(config.prepared_folder / "train.parquet")
    seen = set(train["item"])
    for kind in config.prepare.sequence_types:
        seen |= set(np.concatenate(train[f"{kind}__item"].to_numpy()))
    assert set(features.vocabularies["item"].keys) == seen
    test = pd.read_parquet(config.prepared_folder / "test.parquet")
    unseen = np.flatnonzero(~test["item"].isin(seen))
    # A log without new items would make the next line vacuous.
    batches = features.dataset(
        config.prepared_folder / "test.parquet",
        label="is_click",
        batch_size=len(test),
        max_length=8,
    )
    (batch,) = list(batches)
    np.testing.assert_array_equal(
        np.flatnonzero(batch["item"].numpy() == 1), unseen  # OOV
    )  # fmt: skip


def test_scales_standardise_the_training_column(config):
    from pipelines.features import fit_features

    features = fit_features(config)
    price = pq.read_table(config.prepared_folder / "train.parquet")["price"].to_numpy()
    x = np.sign(price) * np.log1p(np.abs(price))
    np.testing.assert_allclose(features.scales["price"].mean, x.mean(), rtol=1e-9)
    np.testing.assert_allclose(features.scales["price"].deviation, x.std(), rtol=1e-6)
    fill = features.scales["price"].fill
    np.testing.assert_allclose(np.sign(fill) * np.log1p(abs(fill)), x.mean(), rtol=1e-9)


def test_saved_and_loaded_features_are_equal(config, tmp_path):
    from pipelines.features import Features, fit_features

    features = fit_features(config)
    features.save(tmp_path / "features.json")
    assert Features.load(tmp_path / "features.json") == features


def test_a_damaged_features_file_is_named(tmp_path):
    from pipelines.features import Features
    from seqdenoise.errors import DataError

    path = tmp_path / "features.json"
    path.write_text('{"sequence_types": []')
    with pytest.raises(DataError, match=r"features.json: expected the features file.*Received"):
        Features.load(path)


def test_raw_users_reach_the_model_as_sample_ids(config):
    from pipelines.features import fit_features

    path = config.prepared_folder / "valid.parquet"
    dataset = fit_features(config).dataset(path, label="is_click", batch_size=50, max_length=8)
    batch = next(iter(dataset))
    expected = pq.read_table(path)["user"].to_numpy()[:50]
    np.testing.assert_array_equal(batch["user"].numpy(), expected)
