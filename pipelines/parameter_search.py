"""One search for settings: what to try next, given what was tried."""

import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config import ConfigError
from pipelines.study_config import Choices, Search

Values = dict[str, Any]
# Optuna draws its first ten at random, which is all that many of our searches have.
_RANDOM_TRIALS = 5


@dataclass(frozen=True)
class Trial:
    """One set of values that was tried.

    Attributes:
        values: By `section.key`.
        quality: The higher, the better; minus infinity if the training diverged.
    """

    values: Values
    quality: float


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The first of those with the highest quality."""
    return max(trials, key=lambda trial: trial.quality)


def require_optuna() -> Any:
    """The package that proposes values.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "study: a search for settings expects the package Optuna, for instance from "
            f"`pip install seqdenoise[tune]`. Received: {error}"
        ) from error
    return optuna


def searching(
    space: Mapping[str, Search],
    first: Values,
    number: int,
    *,
    seed: int,
    finished: Sequence[Trial] = (),
) -> Generator[tuple[int, Values], float, list[Trial]]:
    """A search: asks for the quality of values, a trial at a time.

    Args:
        space: What is searched, by `section.key`.
        first: What is tried before all else.
        number: Of trials, the finished ones among them.
        seed: As in `next_values`.
        finished: Trials of an earlier part of the same search.

    Yields:
        The number of the trial, from 0 on, and its values; expects their quality.

    Returns:
        All trials.
    """
    trials = list(finished)
    while len(trials) < number:
        values = next_values(space, trials, first=first, seed=seed)
        trials.append(Trial(values, (yield len(trials), values)))
    return trials


def next_values(
    space: Mapping[str, Search], finished: Sequence[Trial], *, first: Values, seed: int
) -> Values:
    """What to try next: the tree-structured Parzen estimator, given what was found so far.

    It is made anew every time from what is finished, so a search that was killed goes on as if it
    had not been.

    Args:
        space: What is searched, by `section.key`.
        finished: What was tried. Values that lie outside the space, as the first ones may, tell
            nothing of it.
        first: What is tried before all else.
        seed: Of the search. The same seed and findings give the same values, in any process.

    Returns:
        A value for each key.

    Raises:
        ConfigError: Optuna is not installed.

    References:
        Bergstra et al. (2011), "Algorithms for Hyper-Parameter Optimization", section 4; as Optuna
        has it, multivariate.
    """
    if not finished or not space:
        return dict(first)
    optuna = require_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(optuna, search) for key, search in space.items()}
    sampler = optuna.samplers.TPESampler(
        seed=zlib.crc32(f"{seed}/{len(finished)}".encode()),
        multivariate=True,
        n_startup_trials=_RANDOM_TRIALS,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in finished:
        if all(_is_within(search, trial.values[key]) for key, search in space.items()):
            study.add_trial(
                optuna.trial.create_trial(
                    params={
                        key: _to_optuna(search, trial.values[key]) for key, search in space.items()
                    },
                    distributions=distributions,
                    value=trial.quality,
                )
            )
    asked = study.ask(distributions).params
    return {
        key: search.choices[asked[key]] if isinstance(search, Choices) else asked[key]
        for key, search in space.items()
    }


def _distribution(optuna: Any, search: Search) -> Any:
    kinds = optuna.distributions
    if isinstance(search, Choices):
        # By number: Optuna's own choices may be no lists, and a run file's may.
        return kinds.CategoricalDistribution(range(len(search.choices)))
    if isinstance(search.low, int) and isinstance(search.high, int):
        return kinds.IntDistribution(search.low, search.high, log=search.log)
    return kinds.FloatDistribution(search.low, search.high, log=search.log)


def _is_within(search: Search, value: Any) -> bool:
    if isinstance(search, Choices):
        return value in search.choices
    return isinstance(value, int | float) and search.low <= value <= search.high


def _to_optuna(search: Search, value: Any) -> Any:
    return search.choices.index(value) if isinstance(search, Choices) else value
