"""The A/B: a control and its treatments over several seeds, compared on the test rows."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.arms import CONTROL, train_arms
from pipelines.config import RunConfig
from pipelines.noise_curve import noise_curve
from pipelines.noise_curve import to_markdown as noise_to_markdown
from pipelines.noise_planting import with_train_noise
from pipelines.reporting.content import calibrations
from pipelines.reporting.page import write_report
from pipelines.run_comparison import compare_all_runs, read_scores
from pipelines.run_slices import run_slices
from seqdenoise.data.atomic import atomic_file
from seqdenoise.evaluation.results import ArmsComparison
from seqdenoise.evaluation.verdict import arms_to_dict, to_dict, to_markdown

TREATMENT = "treatment"


def ab_arms(config: RunConfig) -> dict[str, RunConfig]:
    """The arms of the A/B by name: the plug-in off, on, and whatever `ab.arms` names."""
    return {
        CONTROL: config.with_denoiser(False),
        TREATMENT: config.with_denoiser(True),
        **{name: config.arm(name) for name in config.ab.arms},
    }


def run_ab(config: RunConfig) -> ArmsComparison:
    """Trains all arms with every seed and compares them with the control.

    All arms have the same data, data order and seed; control and treatment differ in the plug-in
    alone. Runs that an earlier call finished with the same configuration and data are kept. Writes
    `ab/ab.json`, `ab/ab.md`, the page `ab/report.html`, and one folder a run under `ab/runs/` (see
    `train`).

    Args:
        config: The run.

    Returns:
        The comparison.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    noisy = with_train_noise(config, config.ab.train_noise, draw=config.ab.noise_draw)
    folder, arms = config.folder / "ab", ab_arms(noisy)
    runs, seeds = folder / "runs", config.ab.seeds
    train_arms(arms, seeds, runs, processes=config.ab.processes)
    read = read_scores(runs, list(arms), config)
    slices = run_slices(config, config.ab.slice_by) if config.ab.slices else None
    comparison = compare_all_runs(read, CONTROL, config, slices)
    curves = None
    if config.ab.noise_levels:
        curves = noise_curve(
            runs,
            list(arms),
            config,
            control=CONTROL,
            levels=sorted({0.0, *config.ab.noise_levels}),
            draw=config.ab.noise_draw,
        )
    summary = {
        "label": config.model.label,
        "confidence": config.ab.confidence,
        "arms": list(arms),
        "seeds": seeds,
        "comparison": to_dict(comparison.arms[TREATMENT]),
        "all_arms": arms_to_dict(comparison),
        "noise": None if curves is None else asdict(curves),
        "config": json.loads(config.model_dump_json()),
    }
    text = "\n".join(
        (f"# {arm}\n\n" if len(comparison.arms) > 1 else "") + to_markdown(one)
        for arm, one in comparison.arms.items()
    )
    if curves is not None:
        text += "\n" + noise_to_markdown(curves)
    with atomic_file(folder / "ab.json") as aside:
        aside.write_text(json.dumps(summary, indent=2, allow_nan=False), encoding="utf-8")
    with atomic_file(folder / "ab.md") as aside:
        aside.write_text(text, encoding="utf-8")
    write_report(
        folder,
        comparison,
        title=config.model.label,
        seeds=seeds,
        histories=_histories(runs, list(arms), seeds),
        calibration=calibrations(read.labels, read.scores, seeds, read.weights),
        noise_curve=curves,
        config=config.model_dump_json(indent=2),
        fingerprint=_fingerprint(config),
    )
    return comparison


def _histories(
    runs: Path, arms: list[str], seeds: list[int]
) -> dict[tuple[str, str], pd.DataFrame]:
    return {
        (arm, str(seed)): pd.read_csv(runs / f"{arm}-seed{seed}" / "history.csv")
        for arm in arms
        for seed in seeds
    }


def _fingerprint(config: RunConfig) -> dict[str, Any]:
    """What the page says of the data."""
    path = config.prepared_folder / "prepare.json"
    splits = json.loads(path.read_text("utf-8"))["splits"]
    return {
        split: f"{counts['rows']:,} impressions of {counts['users']:,} users, "
        f"{counts['first_timestamp']} to {counts['last_timestamp']}"
        for split, counts in splits.items()
    }
