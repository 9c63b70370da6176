"""The `tune` job: every arm's settings, searched for on validation rows with the same budget."""

import json
import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.arms import CONTROL, default_processes, worker_died
from pipelines.config import ConfigError, RunConfig
from pipelines.distribution import refuse_workers
from pipelines.features import Features, fit_features
from pipelines.job_errors import DivergedError
from pipelines.json_report import write_json_report
from pipelines.parameter_search import Trial, Values, best_trial, require_optuna, searching
from pipelines.run_record import fingerprint, is_finished
from pipelines.study_config import StudyConfig
from pipelines.study_progress import StudyProgress
from pipelines.train import train
from pipelines.training_pool import training_pool

logger = logging.getLogger(__name__)

# From an arm, the number of a trial and its run, to its quality with each tuning seed.
Start = Callable[[str, int, RunConfig], Sequence[Future[float]]]


@dataclass(frozen=True)
class TunedArm:
    """What a search found for an arm.

    Attributes:
        settings: By `section.key`; empty for an arm without a space.
        quality: Their mean validation AUC over the tuning seeds; None without a space, minus
            infinity if every trial diverged with a seed.
        trials: All that were tried, in order.
    """

    settings: Values
    quality: float | None
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Tuning:
    """What the searches found.

    Attributes:
        label: The label they were made on.
        host: Settings of the control after its first trials, which all other arms have too.
        arms: By name.
    """

    label: str
    host: Values
    arms: dict[str, TunedArm]

    def run(self, config: RunConfig, arm: str, label: str) -> RunConfig:
        """The run of an arm with its settings.

        Args:
            config: The run file that was tuned.
            arm: The arm.
            label: The label.
        """
        return config.study_arm(arm, label=label, host=self.host, own=self.arms[arm].settings)


def study_of(config: RunConfig) -> StudyConfig:
    """The section `study` of a run file.

    Raises:
        ConfigError: There is none.
    """
    if config.study is None:
        raise ConfigError("study: expected this section in the run file. Received: none")
    return config.study


def number_of_trials(config: RunConfig) -> dict[str, int]:
    """How many trials each arm has; the control's first ones are those of the host."""
    study = study_of(config)
    numbers = {arm: study.trials if study.spaces.get(arm) else 0 for arm in config.arms}
    numbers[CONTROL] = study.host_trials + study.trials if study.space else 0
    return numbers


def tune(config: RunConfig, start: Start) -> Tuning:
    """Searches for the settings of all arms.

    First the host's, on the control. Then every arm's own, upon the best of the host's, while the
    control's search goes on: it has had as many trials as the host and any arm together. An arm
    without a space keeps what the run file says, upon the host's. Every search begins with the
    values that the arm has already. The searches of the arms know nothing of each other.

    Args:
        config: The run file.
        start: Begins a trial.

    Returns:
        What was found.

    Raises:
        ConfigError: The run file has no study, or Optuna is not installed.
    """
    study, numbers = study_of(config), number_of_trials(config)
    label, seed = study.labels[0], study.tuning_seeds[0]

    def first(arm: str, keys: Mapping[str, Any], host: Values) -> Values:
        run = config.study_arm(arm, label=label, host=host)
        return {key: run.setting(key) for key in keys}

    def start_arm(host: Values) -> Callable[[str, int, Values], Sequence[Future[float]]]:
        def start_trial(arm: str, number: int, values: Values) -> Sequence[Future[float]]:
            return start(arm, number, config.study_arm(arm, label=label, host=host, own=values))

        return start_trial

    own = first(CONTROL, study.space, {})
    found: list[Trial] = []
    host = {}
    if study.space:
        search = searching(study.space, own, study.host_trials, seed=seed)
        found = _drive({CONTROL: search}, start_arm({}))[CONTROL]
        host = best_trial(found).values
    searches = {
        arm: searching(space, first(arm, space, host), numbers[arm], seed=seed)
        for arm, space in study.spaces.items()
        if numbers[arm]
    }
    if study.space:
        searches[CONTROL] = searching(study.space, own, numbers[CONTROL], seed=seed, finished=found)
    trials = _drive(searches, start_arm(host))
    arms = {}
    for arm in config.arms:
        of_arm = trials.get(arm, [])
        best = best_trial(of_arm) if of_arm else None
        arms[arm] = TunedArm(
            settings=best.values if best else {},
            quality=best.quality if best else None,
            trials=tuple(of_arm),
        )
    return Tuning(label, host, arms)


def _drive(
    searches: Mapping[str, Generator[tuple[int, Values], float, list[Trial]]],
    start: Callable[[str, int, Values], Sequence[Future[float]]],
) -> dict[str, list[Trial]]:
    """Runs searches to their ends, the trials of different ones side by side."""
    running: dict[str, Sequence[Future[float]]] = {}
    ended: dict[str, list[Trial]] = {}

    def go_on(arm: str, quality: float | None) -> None:
        try:
            # A generator that has not begun takes None alone, which `send` is not typed for.
            number, values = next(searches[arm]) if quality is None else searches[arm].send(quality)
        except StopIteration as end:
            running.pop(arm, None)
            ended[arm] = end.value
            return
        running[arm] = start(arm, number, values)

    for arm in searches:
        go_on(arm, None)
    while running:
        unfinished = [[one for one in some if not one.done()] for some in running.values()]
        if all(unfinished):
            wait([one for some in unfinished for one in some], return_when=FIRST_COMPLETED)
        for arm, futures in list(running.items()):
            # An error is raised at once, not when the other seeds of its trial are done.
            qualities = [future.result() for future in futures if future.done()]
            if len(qualities) == len(futures):
                go_on(arm, float(np.mean(qualities)))
    return ended


class TrialRuns:
    """Trains the trials of a study, each seed into a folder of its own; finished ones are kept.

    Trials of an arm that are the same run are trained once.

    Args:
        folder: Where the runs go, as `{arm}-trial{number}-seed{seed}`.
        seeds: The tuning seeds.
        executor: What trains them.
        progress: Told of each run.
    """

    def __init__(
        self, folder: Path, seeds: Sequence[int], executor: Executor, progress: StudyProgress
    ) -> None:
        self._folder = folder
        self._seeds = seeds
        self._executor = executor
        self._progress = progress
        self._features: dict[str, Features] = {}
        self._started: dict[tuple[str, str], Future[float]] = {}

    def start(self, arm: str, number: int, config: RunConfig) -> list[Future[float]]:
        """Begins a trial, see `Start`."""
        return [self._start_run(arm, number, config, seed) for seed in self._seeds]

    def _start_run(self, arm: str, number: int, config: RunConfig, seed: int) -> Future[float]:
        mark = fingerprint(config, seed, test=False)
        name = f"{arm}-trial{number}"
        folder = self._folder / f"{name}-seed{seed}"
        earlier = self._started.get((arm, mark))
        if earlier is not None:
            self._progress.done(kept=True)
            return earlier
        if is_finished(folder, mark):
            future: Future[float] = Future()
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            future.set_result(float(metrics["valid"]["auc"]))
            self._progress.done(kept=True)
        else:
            features = self._features_of(config)
            future = self._executor.submit(_quality, config, folder, seed, name, features)
            future.add_done_callback(partial(self._tell, f"{name}, seed {seed}"))
        self._started[arm, mark] = future
        return future

    def _tell(self, run: str, future: Future[float]) -> None:
        if not future.cancelled() and future.exception() is None:
            if future.result() == -math.inf:
                logger.warning("%s: diverged, so its settings are not the best", run)
            self._progress.done(kept=False)

    def _features_of(self, config: RunConfig) -> Features:
        which = {"event_fields", "categorical", "numeric", "min_count"}
        key = config.model.model_dump_json(include=which)
        if key not in self._features:
            self._features[key] = fit_features(config)
        return self._features[key]


def _quality(config: RunConfig, folder: Path, seed: int, name: str, features: Features) -> float:
    try:
        metrics = train(config, folder, seed=seed, features=features, name=name, test=False)
    except DivergedError:
        return -math.inf
    return float(metrics["valid"]["auc"])


def run_tuning(config: RunConfig, progress: StudyProgress | None = None) -> Tuning:
    """Searches for the settings of all arms of a run file's study.

    No test row is read. Writes `study/tuning.json`, and a folder a training run under
    `study/trials/`. What an earlier call has finished is kept, and a search that was killed goes on
    to the same settings. A trial that diverges is never the best, and ends nothing.

    Args:
        config: The run.
        progress: Told of each run; a new one by default.

    Returns:
        What was found.

    Raises:
        ConfigError: There is no study, Optuna is not installed, options do not go together, or
            `TF_CONFIG` names workers.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
        WorkerDiedError: A process was killed.
    """
    study = study_of(config)
    refuse_workers("a search for settings")
    require_optuna()
    folder = config.folder / "study"
    if progress is None:
        total = sum(number_of_trials(config).values()) * len(study.tuning_seeds)
        with StudyProgress(total) as progress:
            return run_tuning(config, progress)
    processes = default_processes() if study.processes is None else study.processes
    try:
        with training_pool(processes) as pool:
            trials = TrialRuns(folder / "trials", study.tuning_seeds, pool, progress)
            tuning = tune(config, trials.start)
    except BrokenProcessPool as error:
        raise worker_died(folder / "trials") from error
    write_json_report(to_dict(tuning), folder / "tuning.json")
    return tuning


def to_dict(tuning: Tuning) -> dict[str, Any]:
    """What was found, as plain data for JSON."""
    arms = {
        arm: {**asdict(one), "number_of_trials": len(one.trials)}
        for arm, one in tuning.arms.items()
    }
    for arm in arms.values():
        for one in (arm, *arm["trials"]):
            if one["quality"] == -math.inf:
                one["quality"] = None  # JSON has no infinities
    return {"label": tuning.label, "host": tuning.host, "arms": arms}


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Settings as `key value, key value`, without their sections and numbers rounded."""

    def plain(value: Any) -> str:
        if isinstance(value, Mapping):
            return " ".join(f"{key} {plain(part)}" for key, part in value.items())
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{key.partition('.')[2]} {plain(value)}" for key, value in settings.items())


def to_markdown(tuning: Tuning) -> str:
    """A table of the arms: trials, validation AUC of the first and of the best one, settings."""
    lines = [
        f"Settings of the host: {settings_in_words(tuning.host) or 'as in the run file'}.",
        "",
        "| arm | trials | valid AUC, first trial | valid AUC, best trial | settings |",
        "| :--- | ---: | ---: | ---: | :--- |",
    ]
    for arm, one in tuning.arms.items():
        first, best = "", ""
        if one.quality is not None:
            first, best = (
                "diverged" if quality == -math.inf else f"{quality:.5f}"
                for quality in (one.trials[0].quality, one.quality)
            )
        words = settings_in_words(one.settings) or "as in the run file"
        lines.append(f"| {arm} | {len(one.trials)} | {first} | {best} | {words} |")
    return "\n".join(lines) + "\n"
