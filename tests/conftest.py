import os

# Before TensorFlow loads: its start-up chatter hides a failing test's own output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Before POT loads: as a reference it computes in NumPy's float64, and needs no TensorFlow backend.
os.environ.setdefault("POT_BACKEND_DISABLE_TENSORFLOW", "1")

import pytest
import tensorflow as tf
from hypothesis import settings

# TensorFlow compiles a kernel at the first call of each shape, so a first example may take seconds.
settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")

LEGACY_KERAS = os.environ.get("TF_USE_LEGACY_KERAS") == "1"


def pytest_report_header() -> str:
    return f"TensorFlow {tf.__version__}, {'legacy Keras' if LEGACY_KERAS else 'Keras 3'}"


@pytest.fixture(autouse=True)
def _default_policy():
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
