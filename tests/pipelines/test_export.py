import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

pytestmark = pytest.mark.tfrs

SERVE = """
    import sys
    import numpy as np

    OURS = ("seqdenoise", "pipelines", "tensorflow_recommenders", "tf_keras")

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in OURS:
                raise ImportError("not in the serving process: " + name)

    sys.meta_path.insert(0, Blocked())
    import tensorflow as tf

    folder, inputs, output = sys.argv[1:]
    model = tf.saved_model.load(folder)
    with np.load(inputs, allow_pickle=False) as file:
        raw = {name: tf.constant(file[name]) for name in file.files}
    np.save(output, model.signatures["score"](**raw)["score"].numpy())
    assert "seqdenoise" not in sys.modules
"""


def raw_inputs(config, path, max_length, padding):
    """The raw columns of a prepared file as a client would send them."""
    frame = pd.read_parquet(path)
    raw = {name: frame[name].to_numpy() for name in ("item", "category", "segment")}
    raw |= {name: frame[name].to_numpy(np.float32) for name in ("price", "hour")}
    for kind in config.prepare.sequence_types:
        lists = frame[f"{kind}__item"]
        raw[f"{kind}__length"] = lists.str.len().to_numpy(np.int32)
        for field in ("item", "category"):
            ids = np.full((len(frame), max_length), padding, np.int64)
            for i, values in enumerate(frame[f"{kind}__{field}"]):
                ids[i, : len(values)] = values
            raw[f"{kind}__{field}"] = ids
    return raw


@pytest.fixture(scope="module")
def exported(finished_ab, tmp_path_factory):
    from pipelines.export import export

    folder, _ = finished_ab
    run = folder / "runs" / "treatment-seed0"
    target = tmp_path_factory.mktemp("export") / "model"
    export(run, target)
    return run, target


@pytest.mark.parametrize("padding", [0, 7])
def test_scores_are_bit_equal_in_a_process_without_seqdenoise(exported, config, tmp_path, padding):
    from pipelines.export import load_model
    from pipelines.train import score

    run, target = exported
    path = config.prepared_folder / "test.parquet"
    raw = raw_inputs(config, path, 8, padding)
    np.savez(tmp_path / "raw.npz", **raw)
    # A server need not have tf-keras, which this variable would make TensorFlow look for.
    serving_environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(SERVE),
            target,
            tmp_path / "raw.npz",
            tmp_path / "out.npy",
        ],
        check=True,
        capture_output=True,
        text=True,
        env=serving_environment,
    )
    _, features, model = load_model(run)
    rows = len(raw["item"])
    dataset = features.dataset(path, label="is_click", batch_size=rows, max_length=8)
    expected = score(model, dataset)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    # ... and these are the scores that the A/B was decided on.
    decided = pd.read_parquet(run / "scores.parquet")["score"]
    np.testing.assert_allclose(expected, decided, rtol=1e-6)


def operations(folder):
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return [node.op for node in nodes]


def test_the_graph_has_no_random_op_and_no_side_tower(exported):
    run, target = exported
    ops = operations(target)
    assert "MatMul" in ops
    assert not [op for op in ops if "Random" in op or "Dropout" in op]
    variables = tf.train.list_variables(str(target / "variables" / "variables"))
    shapes = [tuple(shape) for _, shape in variables]
    trained = dict(tf.train.list_variables(str(run / "checkpoint" / "best")))
    towers = [name for name in trained if "denoiser" in name and "_encoders" in name]
    assert towers  # they are in the checkpoint, hence could have been exported
    assert not [name for name, _ in variables if "denoiser" in name or "encoder" in name]
    ranker = [s for n, s in trained.items() if n.startswith("ranker/") and "OPTIMIZER" not in n]
    exported_weights = [shape for shape in shapes if shape != ()]
    assert sorted(exported_weights) == sorted(tuple(s) for s in ranker if s != [])


def test_control_and_treatment_export_the_same_operations(finished_ab, exported, tmp_path):
    from pipelines.export import export

    folder, _ = finished_ab
    export(folder / "runs" / "control-seed0", tmp_path / "control")
    assert sorted(operations(tmp_path / "control")) == sorted(operations(exported[1]))


def test_a_gate_is_part_of_the_export(config, tmp_path):
    from pipelines.export import export, load_model
    from pipelines.train import score, train

    gate = {"trusted": ["search", "candidate"], "gate": True}
    gated = config.model_copy(
        update={
            "denoiser": config.denoiser.model_copy(update=gate),
            "train": config.train.model_copy(update={"epochs": 1}),
        }
    )
    train(gated, tmp_path / "run", seed=0)
    export(tmp_path / "run", tmp_path / "model")
    path = config.prepared_folder / "test.parquet"
    raw = raw_inputs(config, path, 8, 0)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["score"]
    got = served(**{name: tf.constant(x) for name, x in raw.items()})["score"].numpy()
    decided = pd.read_parquet(tmp_path / "run" / "scores.parquet")["score"]
    np.testing.assert_allclose(got, decided, rtol=1e-4)
    _, features, model = load_model(tmp_path / "run")
    dataset = features.dataset(path, label="is_click", batch_size=4096, max_length=8)
    model.denoiser.gate = False
    assert np.abs(score(model, dataset) - decided).max() > 1e-3  # so the gate matters
    variables = [n for n, _ in tf.train.list_variables(str(tmp_path / "model/variables/variables"))]
    assert not [name for name in variables if "denoiser" in name or "encoder" in name]


def test_inputs_are_described(exported):
    inputs = json.loads((exported[1] / "inputs.json").read_text())
    assert inputs["click__item"] == {"dtype": "int64", "shape": [None, 8]}
    assert inputs["price"]["dtype"] == "float32"
    assert inputs["price"]["missing"] > 0
    assert "user" not in inputs
    signature = tf.saved_model.load(str(exported[1])).signatures["score"]
    assert set(signature.structured_input_signature[1]) == set(inputs)


def test_an_unfinished_run_is_named(tmp_path):
    from pipelines.export import export
    from seqdenoise.errors import DataError

    with pytest.raises(DataError, match="expected the folder of a finished training run"):
        export(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_weights_are_named(exported, tmp_path):
    import shutil

    from pipelines.export import export
    from seqdenoise.errors import DataError

    run = tmp_path / "run"
    shutil.copytree(exported[0], run)
    for path in (run / "checkpoint").glob("best.data*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="expected the run's weights"):
        export(run, tmp_path / "out")
