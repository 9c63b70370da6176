"""The `study` job: tuned arms over several seeds and labels, compared on test rows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.arms import CONTROL, default_processes, train_arms
from pipelines.config import RunConfig
from pipelines.distribution import refuse_workers
from pipelines.noise_curve import noise_curve
from pipelines.parameter_search import require_optuna
from pipelines.run_comparison import RunScores, compare_all_runs, read_scores
from pipelines.study_config import StudyConfig
from pipelines.study_progress import StudyProgress
from pipelines.study_report import write_study
from pipelines.study_result import LabelResult, StudyResult
from pipelines.svg import write_svg
from pipelines.tuning import Tuning, number_of_trials, run_tuning, study_of
from seqdenoise.evaluation.figures import metric_under_noise
from seqdenoise.evaluation.noise_curves import NoiseCurves


def run_study(config: RunConfig) -> StudyResult:
    """Tunes all arms of a run file's study, trains them over seeds and labels, and compares them.

    Settings are searched for on validation rows (see `pipelines.tuning`); so is which arm is the
    best. Each final run scores the test rows once. Writes `study/study.json`, `study/study.md`,
    what `run_tuning` writes, and for each label `study/{label}/runs/` and, where noise is planted,
    `study/{label}/noise.svg`. What an earlier call has finished is kept.

    Args:
        config: The run.

    Returns:
        The result.

    Raises:
        ConfigError: There is no study, Optuna is not installed, options do not go together, or
            `TF_CONFIG` names workers.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
        WorkerDiedError: A process was killed.
    """
    study = study_of(config)
    refuse_workers("a study")
    require_optuna()
    total = sum(number_of_trials(config).values()) * len(study.tuning_seeds)
    total += len(study.labels) * len(config.arms) * len(study.seeds)
    folder = config.folder / "study"
    with StudyProgress(total) as progress:
        tuning = run_tuning(config, progress)
        for label in study.labels:
            train_arms(
                {arm: tuning.run(config, arm, label) for arm in config.arms},
                study.seeds,
                folder / label / "runs",
                processes=default_processes() if study.processes is None else study.processes,
                on_run=lambda kept: progress.done(kept=kept),
            )
    labels = tuple(_result(config, tuning, label) for label in study.labels)
    seconds = [_metrics(run)["seconds"] for run in _runs(config, tuning)]
    result = StudyResult(tuning, labels, float(np.sum(seconds)) / 3600, len(seconds))
    write_study(result, config, folder)
    return result


def choose_arm(valid_auc: dict[str, float], rivals: Sequence[str]) -> str:
    """The first arm of the highest validation AUC among those that are neither control nor rival.

    Args:
        valid_auc: By arm, in the run file's order.
        rivals: Their names.
    """
    own = {arm: auc for arm, auc in valid_auc.items() if arm not in {CONTROL, *rivals}}
    return max(own, key=lambda arm: own[arm])


def _result(config: RunConfig, tuning: Tuning, label: str) -> LabelResult:
    study = study_of(config)
    runs = config.folder / "study" / label / "runs"
    # How intervals are made, and over which seeds and metrics.
    compared = config.study_arm(CONTROL, label=label)
    valid_auc = {
        arm: float(
            np.mean([_metrics(runs / f"{arm}-seed{seed}")["valid"]["auc"] for seed in study.seeds])
        )
        for arm in config.arms
    }
    chosen = choose_arm(valid_auc, study.rivals)
    read = read_scores(runs, list(config.arms), compared)
    return LabelResult(
        label=label,
        valid_auc=valid_auc,
        against_control=compare_all_runs(_control_first(read), CONTROL, compared),
        chosen=chosen,
        against_rivals={
            rival: compare_all_runs(
                replace(read, scores={arm: read.scores[arm] for arm in (rival, chosen)}),
                rival,
                compared,
            ).arms[chosen]
            for rival in study.rivals
        },
        noise=_noise(config, tuning, study, label, chosen),
    )


def _control_first(read: RunScores) -> RunScores:
    return replace(read, scores={CONTROL: read.scores[CONTROL], **read.scores})


def _noise(
    config: RunConfig, tuning: Tuning, study: StudyConfig, label: str, chosen: str
) -> NoiseCurves | None:
    if not study.noise_levels:
        return None
    folder = config.folder / "study" / label
    curves = noise_curve(
        folder / "runs",
        [CONTROL, chosen],
        # Noise goes into the types that the chosen arm takes for noisy.
        tuning.run(config, chosen, label),
        control=CONTROL,
        levels=sorted({0.0, *study.noise_levels}),
        draw=config.ab.noise_draw,
    )
    write_svg(metric_under_noise(curves), folder / "noise.svg")
    return curves


def _runs(config: RunConfig, tuning: Tuning) -> list[Path]:
    """The folders of all runs of the study; a trial that repeats another has none."""
    study, folder = study_of(config), config.folder / "study"
    trials = [
        folder / "trials" / f"{arm}-trial{number}-seed{seed}"
        for arm, one in tuning.arms.items()
        for number in range(len(one.trials))
        for seed in study.tuning_seeds
    ]
    final = [
        folder / label / "runs" / f"{arm}-seed{seed}"
        for label in study.labels
        for arm in config.arms
        for seed in study.seeds
    ]
    return [*(run for run in trials if run.is_dir()), *final]


def _metrics(run: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    return metrics
