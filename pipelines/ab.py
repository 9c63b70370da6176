"""The A/B: control and treatment over several seeds, compared on the test rows."""

import json

from pipelines.arms import train_arms
from pipelines.config import RunConfig
from pipelines.run_comparison import compare_runs
from seqdenoise.data.atomic import atomic_file
from seqdenoise.evaluation.compare import Comparison
from seqdenoise.evaluation.verdict import to_dict, to_markdown

ARMS = {"control": False, "treatment": True}


def run_ab(config: RunConfig) -> Comparison:
    """Trains both arms with every seed and compares them.

    Both arms have the same model, data, data order and seed; they differ in the plug-in alone. Runs
    that an earlier call finished with the same configuration and data are kept. Writes
    `ab/ab.json`, `ab/ab.md` and one folder a run under `ab/runs/` (see `train`).

    Args:
        config: The run.

    Returns:
        The comparison.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    folder = config.folder / "ab"
    arms = {arm: config.with_denoiser(enabled) for arm, enabled in ARMS.items()}
    train_arms(arms, config.ab.seeds, folder / "runs")
    comparison = compare_runs(folder / "runs", "control", "treatment", config)
    summary = {
        "label": config.model.label,
        "confidence": config.ab.confidence,
        "arms": list(ARMS),
        "seeds": config.ab.seeds,
        "comparison": to_dict(comparison),
        "config": json.loads(config.model_dump_json()),
    }
    with atomic_file(folder / "ab.json") as aside:
        aside.write_text(json.dumps(summary, indent=2, allow_nan=False), encoding="utf-8")
    with atomic_file(folder / "ab.md") as aside:
        aside.write_text(to_markdown(comparison), encoding="utf-8")
    return comparison
