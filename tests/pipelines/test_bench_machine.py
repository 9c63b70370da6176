import os
import platform

from pipelines.bench_machine import described, machine, versions


def test_what_makes_the_same_code_faster_is_recorded(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TF_", "OMP_")):
            monkeypatch.delenv(name)
    assert machine()["settings"] == {}
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    found = machine()
    assert found["settings"] == {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert (found["cores"], found["python"]) == (os.cpu_count(), platform.python_version())
    installed = versions(["numpy", "no-such-distribution"])
    assert list(installed) == ["numpy"]
    found |= {"cores": 2, "processor": "chip", "python": "3"}
    assert described(found, {"tensorflow": "2", "numpy": "1"}) == (
        "2 cores of chip, Python 3, TF_ENABLE_ONEDNN_OPTS=1; tensorflow 2, numpy 1"
    )
