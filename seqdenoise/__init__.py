"""Plug-in denoising of behaviour sequences for ranking models.

>>> import seqdenoise
>>> denoiser = seqdenoise.SequenceDenoiser(weight=0.1, masking="dimension", temperature=0.1)
"""

from importlib.metadata import version

from seqdenoise.encoders import ViewEncoder
from seqdenoise.errors import DataError
from seqdenoise.layer import SequenceDenoiser
from seqdenoise.losses import info_nce_loss, negative_pairs
from seqdenoise.metrics import alignment, effective_rank, uniformity
from seqdenoise.views import complementary_mask, dimension_views, view_seed

__version__ = version("seqdenoise")

__all__ = [
    "DataError",
    "SequenceDenoiser",
    "ViewEncoder",
    "__version__",
    "alignment",
    "complementary_mask",
    "dimension_views",
    "effective_rank",
    "info_nce_loss",
    "negative_pairs",
    "uniformity",
    "view_seed",
]
