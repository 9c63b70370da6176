"""The harm check: the plug-in against none in many settings, to find where it is worse."""

import logging
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from pipelines.ab import TREATMENT, ab_arms
from pipelines.arms import CONTROL, train_arms
from pipelines.config import ConfigError, RunConfig
from pipelines.harm_figure import harm_figure
from pipelines.low_data import with_train_fraction
from pipelines.run_comparison import compare_runs
from seqdenoise.data.atomic import atomic_file
from seqdenoise.data.files import ParquetSource
from seqdenoise.evaluation.estimates import outcome_of
from seqdenoise.evaluation.multiplicity import holm
from seqdenoise.evaluation.results import Comparison, Outcome

logger = logging.getLogger(__name__)

_METRICS = ["AUC", "GAUC"]


def harm_check(config: RunConfig) -> pd.DataFrame:
    """Trains control and treatment in every setting and compares them on its test rows.

    Control and treatment differ in the plug-in alone, and the plug-in is the same in all settings:
    that of the run file's section `denoiser`. Runs that an earlier call finished with the same
    configuration and data are kept. Writes `harm/harm.csv`, `harm/harm.md`, the figure
    `harm/harm.svg`, and one folder a run as `harm/{setting}/runs/{arm}-seed{seed}`.

    Args:
        config: The run, with settings.

    Returns:
        One row a setting: training and test rows, test users, label; of AUC, and of GAUC where a
        user has both classes, `control`, `treatment`, `difference`, `low`, `high`, `p value`,
        `detectable effect`, `outcome`, and `corrected p value` and `corrected outcome`, by Holm
        over the settings that have the metric; and `verdict`: worse if either outcome is, better if
        one is better and none worse, neither of them corrected.

    Raises:
        ConfigError: There are no settings, a fraction leaves no row, or the plug-in's options do
            not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
        WorkerDiedError: A process was killed.
    """
    if config.harm is None:
        raise ConfigError("harm: expected a section with settings in the run file. Received: none")
    folder = config.folder / "harm"
    rows = {}
    for done, (name, setting) in enumerate(config.harm.settings.items(), 1):
        of_setting = config.harm_setting(name)
        run = with_train_fraction(of_setting, setting.train_fraction)
        runs = folder / name / "runs"
        train_arms(ab_arms(run), config.harm.seeds, runs, processes=config.harm.processes)
        comparison = compare_runs(runs, CONTROL, TREATMENT, of_setting)
        with ParquetSource(run.prepared_folder / "train.parquet") as source:
            num_rows = source.num_rows
        rows[name] = {
            "train rows": num_rows,
            "test rows": comparison.num_rows,
            "test users": comparison.num_users,
            "label": run.model.label,
            **_figures(comparison),
        }
        logger.info(
            "harm: setting %d of %d, %s: AUC %+.5f, %s",
            done,
            len(config.harm.settings),
            name,
            comparison["AUC"].difference,
            _verdict(pd.Series(rows[name])),
        )
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("setting")
    table = _corrected(table, config.ab.confidence)
    table["verdict"] = table.apply(_verdict, axis=1)
    with atomic_file(folder / "harm.csv") as aside:
        table.to_csv(aside)
    with atomic_file(folder / "harm.md") as aside:
        aside.write_text(to_markdown(table, config.ab.confidence) + "\n", encoding="utf-8")
    _draw(table, folder / "harm.svg")
    return table


def _figures(comparison: Comparison) -> dict[str, float | str]:
    return {
        f"{metric.metric} {name}": getattr(metric, name.replace(" ", "_"))
        for metric in comparison.metrics
        for name in (
            "control", "treatment", "difference", "low", "high", "p value", "detectable effect",
            "outcome",
        )
    }  # fmt: skip


def _metrics_of(table: pd.DataFrame) -> list[str]:
    return [metric for metric in _METRICS if f"{metric} outcome" in table]


def _corrected(table: pd.DataFrame, confidence: float) -> pd.DataFrame:
    table = table.copy()
    for metric in _metrics_of(table):
        differences = table[f"{metric} difference"].to_numpy(np.float64)
        p_values = table[f"{metric} p value"].to_numpy(np.float64)
        known = ~np.isnan(p_values)
        adjusted = np.full(len(table), np.nan)
        adjusted[known] = holm(p_values[known])
        table[f"{metric} corrected p value"] = adjusted
        table[f"{metric} corrected outcome"] = [
            None if np.isnan(p) else outcome_of(d, True) if p < 1 - confidence else "cannot tell"
            for p, d in zip(adjusted.tolist(), differences.tolist(), strict=True)
        ]
    return table


def _verdict(row: pd.Series, kind: str = "outcome") -> Outcome:
    """Of all metrics: one that is worse is enough to be worse."""
    outcomes = {row.get(f"{metric} {kind}") for metric in _METRICS}
    for outcome in ("worse", "better"):
        if outcome in outcomes:
            return outcome
    return "cannot tell"


def to_markdown(table: pd.DataFrame, confidence: float) -> str:
    """The table as Markdown, and below it in how many settings the treatment was worse.

    Args:
        table: As `harm_check` returns it.
        confidence: Of its intervals.
    """
    metrics = _metrics_of(table)
    heads = ["setting", "training rows", "label", f"control {metrics[0]}"]
    heads += [f"{metric} difference ({100 * confidence:.6g} % interval)" for metric in metrics]
    heads += ["verdict", "corrected"]
    aligned = [":---", "---:", ":---", *["---:"] * (1 + len(metrics)), ":---", ":---"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, aligned)]
    for name, row in table.iterrows():
        cells = [str(name), f"{row['train rows']:,}", row["label"]]
        cells.append(f"{row[f'{metrics[0]} control']:.5f}")
        cells += [_difference(row, metric) for metric in metrics]
        cells += [_in_words(row, "outcome"), _in_words(row, "corrected outcome")]
        lines.append("| " + " | ".join(cells) + " |")
    corrected = table.apply(_verdict, axis=1, kind="corrected outcome")
    number = len(table)
    return "\n".join(
        [
            *lines,
            "",
            f"Corrected for {number} settings by Holm, each metric on its own: worse in "
            f"{(corrected == 'worse').sum()}, better in {(corrected == 'better').sum()}.",
            "",
            f"Significantly worse in {(table['verdict'] == 'worse').sum()} of {number} settings, "
            f"better in {(table['verdict'] == 'better').sum()}, by {' or '.join(metrics)} and "
            "without a correction for their number.",
        ]
    )


def _difference(row: pd.Series, metric: str) -> str:
    if pd.isna(row[f"{metric} difference"]):
        return ""
    middle, low, high = (row[f"{metric} {part}"] for part in ("difference", "low", "high"))
    return f"{middle:+.5f} ({low:+.5f} to {high:+.5f})"


def _in_words(row: pd.Series, kind: str) -> str:
    """The verdict, and by which metrics where not by all of them."""
    verdict = _verdict(row, kind)
    known = [metric for metric in _METRICS if isinstance(row.get(f"{metric} {kind}"), str)]
    by = [metric for metric in known if row[f"{metric} {kind}"] == verdict]
    return verdict if by == known else f"{verdict} by {' and '.join(by)}"


def _draw(table: pd.DataFrame, path: Path) -> None:
    figure = harm_figure(table, _metrics_of(table))
    # The same table gives the same file.
    with mpl.rc_context({"svg.hashsalt": path.name}), atomic_file(path) as aside:
        figure.savefig(aside, format="svg", metadata={"Date": None})
