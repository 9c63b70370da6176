"""Two workers, in a process each, train as one device does: `MultiWorkerMirroredStrategy`."""

import numpy as np
import pytest
from clusters import run_cluster
from replica_steps import LEGACY_KERAS, SYSTEMS, Trainer, fitted

SECONDS = 240


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    outputs = [folder / f"{i}.npz" for i in range(2)]
    run_cluster([["-m", "cluster_worker", str(output)] for output in outputs], seconds=SECONDS)
    results = []
    for output in outputs:
        with np.load(output) as saved:
            results.append({name: saved[name] for name in saved.files})
    return results


def compare(worker, prefix, expected, **tolerances):
    for name, one in expected.items():
        # Of singular values, which are roots of what float32 has rounded.
        loose = {"rtol": 1e-3} if name.endswith("effective_rank") else tolerances
        np.testing.assert_allclose(worker[f"{prefix}/{name}"], one, **loose, err_msg=name)


@pytest.mark.parametrize("system", ["info_nce", "moco"])
def test_two_workers_train_as_one_device_does(system, workers):
    expected = Trainer(**SYSTEMS[system]).run()
    for worker in workers:
        compare(worker, system, expected, rtol=1e-5, atol=1e-5)


def test_keras_own_steps_on_two_workers_are_fit_on_one_device(workers):
    expected = fitted()
    for worker in workers:
        compare(worker, "loop", expected, rtol=1e-5, atol=1e-6)
        if LEGACY_KERAS:
            compare(worker, "fit", expected, rtol=1e-5, atol=1e-6)
        else:
            # docs/clusters.md says so; when this fails, Keras 3 has learned it.
            assert "PerReplica" in str(worker["refused"])
