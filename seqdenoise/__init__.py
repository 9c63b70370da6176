"""Plug-in denoising of behaviour sequences for ranking models.

>>> import seqdenoise
>>> denoiser = seqdenoise.SequenceDenoiser(weight=0.1, masking="event", temperature=0.1)

With `SEQDENOISE_DATA_ONLY=1` in the environment TensorFlow is not loaded, and only the parts that
need none can be used, such as `seqdenoise.data.sequences`: for data jobs of many processes, each of
which TensorFlow costs 600 MB, and for clusters without it.
"""

import os
from importlib.metadata import version

from seqdenoise.errors import DataError

if os.environ.get("SEQDENOISE_DATA_ONLY") != "1":
    from seqdenoise.adversary import pgd_attack
    from seqdenoise.alarms import Alarm
    from seqdenoise.attach import denoise
    from seqdenoise.denoisers import denoisers_in
    from seqdenoise.encoders import ViewEncoder
    from seqdenoise.event_edits import crop_mask_reorder_views
    from seqdenoise.layer import SequenceDenoiser
    from seqdenoise.losses import (
        clamped_rate,
        debiased_loss,
        hard_negative_loss,
        info_nce_loss,
        moco_loss,
        multi_positive_loss,
        n_pair_loss,
        negative_pairs,
        nt_xent_loss,
        rocl_loss,
        simple_contrastive_loss,
        triplet_loss,
    )
    from seqdenoise.masks import complementary_mask
    from seqdenoise.metrics import alignment, effective_rank, gradient_balance, uniformity
    from seqdenoise.monitor import DenoiserMonitor
    from seqdenoise.probe import LinearProbe, fit_linear_probe
    from seqdenoise.row_weighting import row_weights
    from seqdenoise.self_checking import SelfCheck, self_check
    from seqdenoise.smoothing import SmoothedPrediction, smoothed_prediction
    from seqdenoise.strip import strip_for_serving
    from seqdenoise.views import (
        correlated_field_views,
        dimension_views,
        dropout_views,
        event_dimension_views,
        event_views,
        feature_dropout,
        field_views,
        view_seed,
    )
    from seqdenoise.warm_starting import warm_start

__version__ = version("seqdenoise")

__all__ = [
    "Alarm",
    "DataError",
    "DenoiserMonitor",
    "LinearProbe",
    "SelfCheck",
    "SequenceDenoiser",
    "SmoothedPrediction",
    "ViewEncoder",
    "__version__",
    "alignment",
    "clamped_rate",
    "complementary_mask",
    "correlated_field_views",
    "crop_mask_reorder_views",
    "debiased_loss",
    "denoise",
    "denoisers_in",
    "dimension_views",
    "dropout_views",
    "effective_rank",
    "event_dimension_views",
    "event_views",
    "feature_dropout",
    "field_views",
    "fit_linear_probe",
    "gradient_balance",
    "hard_negative_loss",
    "info_nce_loss",
    "moco_loss",
    "multi_positive_loss",
    "n_pair_loss",
    "negative_pairs",
    "nt_xent_loss",
    "pgd_attack",
    "rocl_loss",
    "row_weights",
    "self_check",
    "simple_contrastive_loss",
    "smoothed_prediction",
    "strip_for_serving",
    "triplet_loss",
    "uniformity",
    "view_seed",
    "warm_start",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        raise AttributeError(
            f"expected seqdenoise.{name} in a process that loads TensorFlow. "
            "Received: SEQDENOISE_DATA_ONLY=1 in the environment"
        )
    raise AttributeError(f"module 'seqdenoise' has no attribute {name!r}")
