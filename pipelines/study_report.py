"""What a study found, as a page of Markdown and as plain data."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.config import RunConfig
from pipelines.json_report import write_json_report
from pipelines.noise_curve import to_markdown as noise_to_markdown
from pipelines.study_result import LabelResult, StudyResult
from pipelines.tuning import number_of_trials, settings_in_words, study_of
from pipelines.tuning import to_dict as tuning_to_dict
from pipelines.tuning import to_markdown as tuning_to_markdown
from seqdenoise.data.atomic import atomic_file
from seqdenoise.evaluation.results import Comparison
from seqdenoise.evaluation.verdict import arms_to_dict, to_dict, verdict

_METRICS = ("AUC", "GAUC", "log loss")


def write_study(result: StudyResult, config: RunConfig, folder: Path) -> None:
    """Writes `study.md` and `study.json`.

    Args:
        result: The study.
        config: Its run.
        folder: Where they go.
    """
    write_json_report(_to_plain(result, config), folder / "study.json")
    with atomic_file(folder / "study.md") as aside:
        aside.write_text(to_markdown(result, config), encoding="utf-8")


def _to_plain(result: StudyResult, config: RunConfig) -> dict[str, Any]:
    study = study_of(config)
    return {
        "seeds": study.seeds,
        "tuning_seeds": study.tuning_seeds,
        "confidence": config.ab.confidence,
        "hours": result.hours,
        "number_of_runs": result.number_of_runs,
        "tuning": tuning_to_dict(result.tuning),
        "labels": {
            one.label: {
                "valid_auc": one.valid_auc,
                "against_control": arms_to_dict(one.against_control),
                "chosen": one.chosen,
                "against_rivals": {
                    rival: to_dict(comparison) for rival, comparison in one.against_rivals.items()
                },
                "noise": None if one.noise is None else asdict(one.noise),
            }
            for one in result.labels
        },
        "config": json.loads(config.model_dump_json()),
    }


def to_markdown(result: StudyResult, config: RunConfig) -> str:
    """The page: a section a label, then how the settings were found and what it took.

    Args:
        result: The study.
        config: Its run.
    """
    study = study_of(config)
    parts = [_label(one, result, config) for one in result.labels]
    seeds = f"{len(study.seeds)} seed" + ("s" if len(study.seeds) > 1 else "")
    numbers = number_of_trials(config)
    most = max(numbers.values())
    with_space = [arm for arm, number in numbers.items() if number and arm != "control"]
    without = [arm for arm, number in numbers.items() if not number]
    how = (
        f"Settings were searched for on validation rows of `{result.tuning.label}` with "
        f"{_listed('seed', study.tuning_seeds)}, and used for all labels; no test row was read. "
        f"The control had {numbers['control']} trials"
    )
    if with_space:
        how += (
            f", the first {study.host_trials} of which are those of the host that all arms share; "
            f"{', '.join(with_space)} had {study.trials} each upon that, at most {most} in all"
        )
    how += "."
    if without:
        how += f" As in the run file: {', '.join(without)}."
    final = (
        f"Every final run, {seeds} an arm and label, scored the test rows once. The chosen arm is "
        "the one of the highest validation AUC among those that are no rivals. "
        f"All of it took {result.hours:.1f} hours of computing in {result.number_of_runs} runs."
    )
    return "\n".join(
        [*parts, "# Settings\n", tuning_to_markdown(result.tuning), how, "", final, ""]
    )


def _listed(word: str, values: list[int]) -> str:
    return f"{word}{'s' if len(values) > 1 else ''} {', '.join(map(str, values))}"


def _difference(comparison: Comparison, name: str) -> str:
    metric = {one.metric: one for one in comparison.metrics}.get(name)
    if metric is None:
        return ""
    return f"{metric.difference:+.5f} ({metric.low:+.5f} to {metric.high:+.5f})"


def _label(one: LabelResult, result: StudyResult, config: RunConfig) -> str:
    comparisons = one.against_control.arms
    some = next(iter(comparisons.values()))
    percent = f"{100 * some.confidence:.6g} % interval"
    heads = [f"{name} difference ({percent})" for name in _METRICS]
    lines = [
        f"# {one.label}",
        "",
        "| arm | tuned settings | valid AUC | test AUC | " + " | ".join(heads) + " | verdict |",
        "| :--- | :--- | ---: | ---: | " + "---: | " * len(heads) + ":--- |",
    ]
    for arm, auc in one.valid_auc.items():
        words = settings_in_words(result.tuning.arms[arm].settings) or "as in the run file"
        if arm == one.against_control.control:
            cells = [f"{some['AUC'].control:.5f}", *[""] * (len(_METRICS) + 1)]
        else:
            cells = [
                f"{comparisons[arm]['AUC'].treatment:.5f}",
                *(_difference(comparisons[arm], name) for name in _METRICS),
                verdict(comparisons[arm]["AUC"]),
            ]
        lines.append(f"| {arm} | {words} | {auc:.5f} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Verdicts are those of AUC; a smaller log loss is better. {some.num_rows:,} impressions "
        f"of {some.num_users:,} users.",
    ]
    for note in one.against_control.notes:
        lines += ["", f"Note: {note}"]
    lines += ["", f"Chosen on validation rows: **{one.chosen}**.", ""]
    if one.against_rivals:
        lines += [
            f"| {one.chosen} against | rival's test AUC | " + " | ".join(heads) + " | verdict |",
            "| :--- | ---: | " + "---: | " * len(heads) + ":--- |",
        ]
        for rival, comparison in one.against_rivals.items():
            cells = [
                f"{comparison['AUC'].control:.5f}",
                *(_difference(comparison, name) for name in _METRICS),
                verdict(comparison["AUC"]),
            ]
            lines.append(f"| {rival} | " + " | ".join(cells) + " |")
        lines.append("")
    if one.noise is not None:
        lines += [
            noise_to_markdown(one.noise),
            "",
            f"![AUC under noise]({one.label}/noise.svg)",
            "",
        ]
    return "\n".join(lines)
