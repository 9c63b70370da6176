"""The `denoising` job: do keep scores tell real events from noise, where the noise is known?"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import tensorflow as tf

from pipelines.arms import train_arms
from pipelines.config import ConfigError, RunConfig
from pipelines.event_scores import scored_events
from pipelines.export import load_model
from pipelines.prepare import prepare
from pipelines.ranker import Ranker
from pipelines.simulate import write_simulated_log
from pipelines.splits import to_ticks
from seqdenoise.data.atomic import atomic_file
from seqdenoise.data.simulation_spec import NOISE_KINDS
from seqdenoise.errors import DataError
from seqdenoise.evaluation.ranking import auc, gauc

logger = logging.getLogger(__name__)

NOISE_RATES = (0.1, 0.3, 0.5, 0.7)
BEFORE = "before training"
ALL = "all"

_SCORES = ("keep score", "one look", "largest cosine", "popularity")
_EVENT = ["user", "type", "item", "timestamp"]


def denoising_study(
    config: RunConfig,
    *,
    noise_rates: Sequence[float] = NOISE_RATES,
    num_users: int = 2000,
    num_items: int = 2000,
) -> pd.DataFrame:
    """Measures keep scores at known noise rates, before training and after that of every arm.

    For each rate it simulates a log (with one seed, so the real events are the same at all rates),
    prepares it, trains the arms over the seeds, and scores the noisy events before the test
    impressions. All of a rate is under `noise-{rate}/`; what an earlier call with the same
    configuration finished is kept. Writes `denoising.csv`, one row a run, and `denoising.md`, the
    means over the seeds.

    Args:
        config: The run, with arms that trust the same sequence types.
        noise_rates: Shares of clicks and carts that are noise, each above 0 and below 1.
        num_users: Users of the simulated logs.
        num_items: Items of the simulated logs.

    Returns:
        One row a noise rate, stage, seed and `fields` (whose embeddings make up the events'
        vectors: `all`, as in the run, or one alone), with what `measure` gives.

    Raises:
        ConfigError: A noise rate is out of range, there are no arms, or they trust none or
            different types.
        DataError: A split of a log has no rows, or one class only.
    """
    if not noise_rates or not all(0 < rate < 1 for rate in noise_rates):
        raise ConfigError(
            f"denoising: expected noise rates above 0 and below 1. Received: {list(noise_rates)}"
        )
    _check_trusted(config)
    rows: list[dict[str, Any]] = []
    for rate in noise_rates:
        at_rate = config.model_copy(update={"folder": config.folder / f"noise-{rate:g}"})
        _make_log(at_rate, {"num_users": num_users, "num_items": num_items, "noise_rate": rate})
        truth = read_truth(at_rate.log_folder)
        runs = at_rate.folder / "runs"
        train_arms({name: at_rate.arm(name) for name in at_rate.arms}, config.ab.seeds, runs)
        for key, run, events in _stages(at_rate, runs):
            figures = measure(with_popularity(with_truth(events, truth), truth, run))
            rows.append({"noise rate": rate, **key, **figures})
            if key["fields"] == ALL:
                logger.info(
                    "noise rate %g, %s, seed %d: AUC of keep score %.3f, of largest cosine %.3f",
                    *(rate, key["stage"], key["seed"]),
                    *(figures["keep score"], figures["largest cosine"]),
                )
    table = pd.DataFrame(rows)
    with atomic_file(config.folder / "denoising.csv") as aside:
        table.to_csv(aside, index=False)
    with atomic_file(config.folder / "denoising.md") as aside:
        aside.write_text(to_markdown(table) + "\n", encoding="utf-8")
    return table


def _check_trusted(config: RunConfig) -> None:
    if not config.arms:
        raise ConfigError("arms: expected at least one arm. Received: none")
    trusted = {}
    for name in config.arms:
        denoiser = config.arm(name).denoiser
        named = [denoiser.trusted] if isinstance(denoiser.trusted, str) else denoiser.trusted
        trusted[name] = sorted(named or []) if denoiser.enabled else []
    first = next(iter(trusted.values()))
    known = set(config.prepare.sequence_types)
    if not first or not set(first) <= known or any(one != first for one in trusted.values()):
        raise ConfigError(
            "denoiser.trusted: expected the same types in every arm, with the plug-in enabled, so "
            f"that all judge the same events; types among {sorted(known)}. Received: {trusted}"
        )


def _make_log(config: RunConfig, simulation: Mapping[str, Any]) -> None:
    """Simulates and prepares a log, unless an earlier call did with the same parameters."""
    made_from = {"simulate": simulation, "prepare": config.prepare.model_dump(mode="json")}
    mark = config.folder / "made_from.json"
    if mark.is_file() and json.loads(mark.read_text(encoding="utf-8")) == made_from:
        logger.info("%s: log kept from an earlier call", config.folder)
        return
    # Gone until the new log is whole, or a call that was cut off would pass for a finished one.
    mark.unlink(missing_ok=True)
    write_simulated_log(config.log_folder, **simulation)
    prepare(config)
    mark.write_text(json.dumps(made_from), encoding="utf-8")


def _stages(config: RunConfig, runs: Path) -> Iterator[tuple[dict[str, Any], RunConfig, Any]]:
    """Stage, seed and fields; the run; the scored events. Untrained first, then of each arm."""
    for stage in (BEFORE, *config.arms):
        arm = next(iter(config.arms)) if stage == BEFORE else stage
        for seed in config.ab.seeds:
            _, features, model = load_model(runs / f"{arm}-seed{seed}")
            run, ranker = config.arm(arm), model.ranker
            if stage == BEFORE:
                tf.keras.utils.set_random_seed(seed)
                ranker = Ranker(features.ranker_spec(run))
            for name in (ALL, *features.event_fields):
                fields = None if name == ALL else [name]
                key = {"stage": stage, "seed": seed, "fields": name}
                yield key, run, scored_events(run, features, ranker, fields=fields)


def read_truth(log_folder: Path) -> pd.DataFrame:
    """What each event of a simulated log is.

    Args:
        log_folder: What `simulate` wrote.

    Returns:
        `user`, `type`, `item`, `timestamp`, together unique, with `is_noise` and `noise_kind`.
        Where events have all four in common, the row is noise only if all of them are.
    """
    events = pq.read_table(log_folder / "events.parquet").to_pandas()
    truth = pq.read_table(log_folder / "truth.parquet").to_pandas()
    both = pd.concat([events[_EVENT], truth[["is_noise", "noise_kind"]]], axis=1)
    return both.sort_values("is_noise", kind="stable").drop_duplicates(_EVENT, ignore_index=True)


def with_truth(events: pd.DataFrame, truth: pd.DataFrame) -> pd.DataFrame:
    """Adds `is_noise` and `noise_kind` to events; their order stays.

    Args:
        events: Has `user`, `type`, `item` and `timestamp`.
        truth: From `read_truth`.

    Returns:
        The events with two more columns.

    Raises:
        DataError: An event is not in the log.
    """
    joined = events.merge(truth, on=_EVENT, how="left", validate="many_to_one")
    unknown = joined[joined["is_noise"].isna()]
    if len(unknown):
        raise DataError(
            "events of the prepared rows: expected all of them in the simulated log. Received: "
            f"{len(unknown)} that are not, first {unknown[_EVENT].iloc[0].to_dict()}"
        )
    return joined.astype({"is_noise": bool})


def with_popularity(events: pd.DataFrame, truth: pd.DataFrame, config: RunConfig) -> pd.DataFrame:
    """Adds `popularity`: how often the item occurs in events of training time of these types.

    Args:
        events: Has `type` and `item`.
        truth: From `read_truth`.
        config: The run, for when training time ends.

    Returns:
        The events with one more column.
    """
    until = to_ticks(config.prepare.split.valid_from, config.log.time_unit)
    counted = truth[truth["type"].isin(events["type"].unique()) & (truth["timestamp"] < until)]
    popularity = events["item"].map(counted["item"].value_counts()).fillna(0)
    return events.assign(popularity=popularity)


def measure(events: pd.DataFrame) -> dict[str, float]:
    """How well scores put real events above noise: AUC over the judged events, ties one half.

    Args:
        events: Scored events with their truth and `popularity`.

    Returns:
        By score its AUC; the keep score's AUC by kind of noise (against all real events), by type,
        and `within users` (mean over users, weighted by their events); and `coverage`, the share of
        events that are judged.
    """
    judged = events[events["judged"]]
    real = ~judged["is_noise"].to_numpy()
    keep = judged["keep score"].to_numpy()
    figures = {name: auc(real, judged[name].to_numpy()) for name in _SCORES}
    for kind in NOISE_KINDS:
        among = real | (judged["noise_kind"] == kind).to_numpy()
        figures[f"{kind} noise"] = auc(real[among], keep[among])
    for kind in sorted(judged["type"].unique()):
        among = (judged["type"] == kind).to_numpy()
        figures[f"{kind}s"] = auc(real[among], keep[among])
    figures["within users"] = gauc(real, keep, judged["user"].to_numpy())
    figures["coverage"] = float(events["judged"].mean())
    return figures


def to_markdown(table: pd.DataFrame) -> str:
    """The means over the seeds as Markdown: all fields, then the keep score of each field alone."""
    by = ["noise rate", "stage"]
    of_fields = {
        str(name): part.drop(columns=["seed", "fields"]).groupby(by, sort=False).mean()
        for name, part in table.groupby("fields", sort=False)
    }
    alone = {
        f"{name}: {score}": of_one[score]
        for name, of_one in of_fields.items()
        for score in ("keep score", "largest cosine")
        if name != ALL
    }
    return "\n\n".join(_markdown(part) for part in (of_fields[ALL], pd.DataFrame(alone)))


def _markdown(means: pd.DataFrame) -> str:
    lines = [
        "| noise | stage | " + " | ".join(means.columns) + " |",
        "| ---: | :--- |" + " ---: |" * len(means.columns),
    ]
    for key, row in zip(means.index.to_list(), means.to_numpy(), strict=True):
        cells = " | ".join(f"{figure:.3f}" for figure in row)
        lines.append(f"| {key[0]:.0%} | {key[1]} | {cells} |")
    return "\n".join(lines)
