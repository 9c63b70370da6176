import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config import ConfigError
from pipelines.parameter_search import Trial, best_trial, next_values, searching
from pipelines.study_config import Choices, Span

SPACE = {
    "train.learning_rate": Span(low=1e-4, high=1e-1, log=True),
    "denoiser.queue_size": Span(low=1, high=64, log=True),
    "model.mlp_units": Choices(choices=[[64], [128, 64], None]),
}
FIRST = {"train.learning_rate": 1e-2, "denoiser.queue_size": 8, "model.mlp_units": [64]}


def is_in(space, values):
    """Whether every value may be proposed, whole numbers as whole numbers."""
    for key, search in space.items():
        if isinstance(search, Choices):
            if values[key] not in search.choices:
                return False
            continue
        whole = isinstance(search.low, int) and isinstance(search.high, int)
        if type(values[key]) is not (int if whole else float):
            return False
        if not search.low <= values[key] <= search.high:
            return False
    return values.keys() == space.keys()


def run(space, number, quality, first=FIRST, seed=0, finished=()):
    """A whole search, with what was asked for."""
    search = searching(space, first, number, seed=seed, finished=finished)
    asked = []
    try:
        asked.append(next(search))
        while True:
            asked.append(search.send(quality(asked[-1][1])))
    except StopIteration as end:
        return end.value, asked


def quality(values):
    return -abs(math.log10(values["train.learning_rate"]) + 3)


@given(
    rates=st.lists(st.floats(1e-4, 1e-1), max_size=12),
    sizes=st.lists(st.integers(1, 64), min_size=12, max_size=12),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=10, deadline=None)
def test_values_lie_in_the_space_and_follow_from_seed_and_findings(rates, sizes, seed):
    finished = [
        Trial(
            {
                "train.learning_rate": rate,
                "denoiser.queue_size": size,
                "model.mlp_units": [[64], [128, 64], None][size % 3],
            },
            quality=rate,
        )
        for rate, size in zip(rates, sizes, strict=False)
    ]
    values = next_values(SPACE, finished, first=FIRST, seed=seed)
    if finished:
        assert is_in(SPACE, values)
    else:
        assert values == FIRST
    assert next_values(SPACE, finished, first=FIRST, seed=seed) == values


def test_the_first_trial_may_lie_outside_the_space_and_counts():
    first = {**FIRST, "train.learning_rate": 0.5, "model.mlp_units": [7]}
    trials, asked = run(SPACE, 3, lambda values: values["train.learning_rate"], first)
    assert trials[0] == Trial(first, 0.5)
    assert len(trials) == 3
    assert all(is_in(SPACE, trial.values) for trial in trials[1:])
    assert [number for number, _ in asked] == [0, 1, 2]
    assert best_trial(trials) == trials[0]


def test_a_search_goes_on_from_any_trial_as_if_it_had_not_stopped():
    whole, _ = run(SPACE, 9, quality)
    for kept in (1, 6, 8):
        again, asked = run(SPACE, 9, quality, finished=whole[:kept])
        assert again == whole
        assert [number for number, _ in asked] == list(range(kept, 9))
    assert run(SPACE, 9, quality, seed=1)[0] != whole


def test_finished_trials_teach_it_where_to_look():
    trials, _ = run({"train.learning_rate": SPACE["train.learning_rate"]}, 30, quality)
    qualities = [trial.quality for trial in trials]
    assert sum(qualities[20:]) / 10 > sum(qualities[1:6]) / 5 + 0.3
    assert best_trial(trials).quality > -0.1


def test_equal_trials_are_won_by_the_first():
    assert best_trial([Trial({"a": 1}, 0.5), Trial({"a": 2}, 0.5)]).values == {"a": 1}


def test_without_optuna_there_is_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert next_values(SPACE, [], first=FIRST, seed=0) == FIRST
    with pytest.raises(ConfigError, match=r"expects the package Optuna.*seqdenoise\[tune\]"):
        next_values(SPACE, [Trial(FIRST, 0.5)], first=FIRST, seed=0)
