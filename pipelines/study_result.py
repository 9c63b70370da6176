"""What a study holds when it is finished: plain, frozen data."""

from dataclasses import dataclass

from pipelines.tuning import Tuning
from seqdenoise.evaluation.noise_curves import NoiseCurves
from seqdenoise.evaluation.results import ArmsComparison, Comparison


@dataclass(frozen=True)
class LabelResult:
    """What the final runs on one label say.

    Attributes:
        label: The label.
        valid_auc: By arm, the mean over the seeds.
        against_control: Every other arm compared with the control on the test rows.
        chosen: The arm of the highest validation AUC, rivals and control apart.
        against_rivals: By rival, the chosen arm compared with it on the test rows.
        noise: The control's and the chosen arm's curves under planted noise, where asked for.
    """

    label: str
    valid_auc: dict[str, float]
    against_control: ArmsComparison
    chosen: str
    against_rivals: dict[str, Comparison]
    noise: NoiseCurves | None


@dataclass(frozen=True)
class StudyResult:
    """A whole study.

    Attributes:
        tuning: The settings of all arms.
        labels: One result a label, in the run file's order.
        hours: Of training and scoring, over all runs, also of earlier calls.
        number_of_runs: How many runs those were.
    """

    tuning: Tuning
    labels: tuple[LabelResult, ...]
    hours: float
    number_of_runs: int
