"""Contrastive losses: pure functions of two views, all with one signature.

`(view_a, view_b, *, mask, ids=None, weights=None, ...) -> scalar`

A loss declares the further options that it uses, `temperature` among them.
"""

from seqdenoise.losses.debiased import clamped_rate, debiased_loss, hard_negative_loss
from seqdenoise.losses.info_nce import info_nce_loss
from seqdenoise.losses.moco import moco_loss
from seqdenoise.losses.multi_positive import multi_positive_loss
from seqdenoise.losses.n_pair import n_pair_loss
from seqdenoise.losses.nt_xent import nt_xent_loss
from seqdenoise.losses.pairs import negative_pairs
from seqdenoise.losses.rocl import rocl_loss
from seqdenoise.losses.simple import simple_contrastive_loss
from seqdenoise.losses.triplet import triplet_loss

__all__ = [
    "clamped_rate",
    "debiased_loss",
    "hard_negative_loss",
    "info_nce_loss",
    "moco_loss",
    "multi_positive_loss",
    "n_pair_loss",
    "negative_pairs",
    "nt_xent_loss",
    "rocl_loss",
    "simple_contrastive_loss",
    "triplet_loss",
]
