import json
import random
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.tfrs

ARMS = {
    "control": {"denoiser": {"enabled": False}},
    "field": {"denoiser": {"masking": "field"}},
    "event": {"denoiser": {"masking": "event"}, "train": {"learning_rate": 0.007}},
    "plain": {},
}
STUDY = {
    "labels": ["is_click"],
    "seeds": [0],
    "tuning_seeds": [100, 101],
    "space": {
        "train.learning_rate": {"low": 0.001, "high": 0.1, "log": True},
        "model.dropout": {"choices": [0.1, 0.0, 0.3]},
    },
    "host_trials": 4,
    "trials": 3,
    "spaces": {
        "field": {"denoiser.weight": {"low": 0.01, "high": 1.0, "log": True}},
        "event": {
            "denoiser.weight": {"choices": [0.2, 0.1]},
            "train.epochs": {"low": 1, "high": 9},
        },
    },
}


def with_study(config, arms=ARMS, **changes):
    from pipelines.config import RunConfig

    study = {**STUDY, **changes}
    return RunConfig.model_validate({**config.model_dump(), "arms": arms, "study": study})


def quality_of(run, seed=100):
    """A quality that favours little dropout, weights near 0.05 and a learning rate near 0.03."""
    terms = [
        abs(run.train.learning_rate - 0.03),
        run.model.dropout / 10,
        abs(run.denoiser.weight - 0.05) * run.denoiser.enabled,
        (run.train.epochs - 5) ** 2 / 100,
    ]
    return 0.7 - sum(terms) + seed / 1e6


class Trials:
    """Begins trials whose quality is known at once; dies after so many."""

    def __init__(self, dies_after=None):
        self.started = []
        self.dies_after = dies_after

    def __call__(self, arm, number, run):
        if len(self.started) == self.dies_after:
            raise KeyboardInterrupt
        self.started.append((arm, number, run))
        futures = []
        for seed in (100, 101):
            futures.append(Future())
            futures[-1].set_result(quality_of(run, seed))
        return futures

    def of(self, arm):
        return [(number, run) for name, number, run in self.started if name == arm]


def test_every_arm_has_the_same_budget_upon_the_best_host(config):
    from pipelines.tuning import number_of_trials, tune

    trials, with_all = Trials(), with_study(config)
    tuning = tune(with_all, trials)
    counts = {arm: len(trials.of(arm)) for arm in ARMS}
    assert counts == {"control": 4 + 3, "field": 3, "event": 3, "plain": 0}
    assert counts == number_of_trials(with_all)
    assert counts == {arm: len(one.trials) for arm, one in tuning.arms.items()}
    assert all([number for number, _ in trials.of(arm)] == list(range(counts[arm])) for arm in ARMS)
    # The host first, and the first trial of all is what the run file says.
    assert [arm for arm, *_ in trials.started[:4]] == ["control"] * 4
    first = trials.started[0][2]
    assert (first.train, first.model) == (config.train, config.model)
    of_host = [quality_of(run) for _, run in trials.of("control")[:4]]
    best = trials.of("control")[of_host.index(max(of_host))][1]
    assert tuning.host == {
        "train.learning_rate": best.train.learning_rate,
        "model.dropout": best.model.dropout,
    }
    assert len(set(of_host)) > 1
    for arm in ("field", "event"):
        for number, run in trials.of(arm):
            assert run.model.dropout == best.model.dropout
            # What an arm's own keys say stands.
            assert run.train.learning_rate == (
                0.007 if arm == "event" else best.train.learning_rate
            )
            assert run.denoiser.masking == arm
            assert number or run.denoiser.weight == config.denoiser.weight
    # Each keeps the best of its own, and the control the best of all its trials.
    for arm, one in tuning.arms.items():
        qualities = [(quality_of(run, 100) + quality_of(run, 101)) / 2 for _, run in trials.of(arm)]
        assert [trial.quality for trial in one.trials] == pytest.approx(qualities, abs=1e-12)
        if not qualities:
            assert (one.settings, one.quality) == ({}, None)
            continue
        assert one.quality == max(trial.quality for trial in one.trials)
        kept = tuning.run(with_all, arm, "is_click")
        assert (quality_of(kept, 100) + quality_of(kept, 101)) / 2 == pytest.approx(one.quality)
        run = trials.of(arm)[qualities.index(max(qualities))][1]
        assert kept.model_dump(exclude={"ab"}) == run.model_dump(exclude={"ab"})
    assert tuning.run(with_all, "plain", "is_click").model.dropout == best.model.dropout


def test_without_a_space_of_the_host_the_control_is_as_in_the_run_file(config):
    from pipelines.tuning import tune

    trials = Trials()
    tuning = tune(with_study(config, space={}), trials)
    assert trials.of("control") == []
    assert (tuning.host, tuning.arms["control"].settings) == ({}, {})
    assert len(trials.of("field")) == 3


def test_a_search_that_was_killed_goes_on_to_the_same_values(config):
    from pipelines.tuning import tune

    whole, killed, again = Trials(), Trials(dies_after=8), Trials()
    expected = tune(with_study(config), whole)
    with pytest.raises(KeyboardInterrupt):
        tune(with_study(config), killed)
    assert killed.started == whole.started[:8]
    assert tune(with_study(config), again) == expected
    assert again.started == whole.started


def test_more_trials_begin_with_those_of_fewer(config):
    from pipelines.tuning import tune

    few, many = tune(with_study(config), Trials()), tune(with_study(config, trials=6), Trials())
    for arm, one in few.arms.items():
        assert many.arms[arm].trials[: len(one.trials)] == one.trials


def test_which_trials_end_first_changes_nothing(config):
    from pipelines.tuning import tune

    expected, draw = tune(with_study(config), Trials()), random.Random(0)

    def slow(run, seed, seconds):
        time.sleep(seconds)
        return quality_of(run, seed)

    with ThreadPoolExecutor(3) as pool:

        def start(arm, number, run):
            return [pool.submit(slow, run, seed, draw.random() / 100) for seed in (100, 101)]

        assert tune(with_study(config), start) == expected


def test_a_trial_that_fails_ends_the_searches(config):
    from pipelines.tuning import tune

    trials, waiting = Trials(), Future()

    def start(arm, number, run):
        futures = trials(arm, number, run)
        if arm == "event":
            futures = [waiting, Future()]
            futures[1].set_exception(ZeroDivisionError("of this trial"))
        return futures

    # The other seed of the trial never ends.
    with pytest.raises(ZeroDivisionError, match="of this trial"):
        tune(with_study(config), start)


class Recorder:
    """A progress that keeps what it is told."""

    def __init__(self):
        self.kept = []

    def done(self, *, kept):
        self.kept.append(kept)


def write_run(config, folder, *, seed, name, features, test):
    """In place of training: the files of a run that the search reads."""
    from pipelines.run_record import fingerprint

    metrics = {"valid": {"auc": quality_of(config, seed)}, "seconds": 1.0}
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "fingerprint.txt").write_text(fingerprint(config, seed, test=test))
    return metrics


@pytest.fixture
def trained(monkeypatch):
    """Stands in for training; the names of the runs that are trained."""
    from pipelines import tuning

    names = []

    def train(config, folder, **options):
        assert options["test"] is False
        names.append(folder.name)
        return write_run(config, folder, **options)

    monkeypatch.setattr(tuning, "train", train)
    return names


def copied(config, tmp_path):
    """A study in a folder of its own, without test rows."""
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    shutil.rmtree(tmp_path / "prepared" / "test.parquet")
    return with_study(config, processes=1).model_copy(update={"folder": tmp_path})


def test_finished_trials_are_kept_and_no_test_row_is_needed(config, tmp_path, trained):
    from pipelines.tuning import run_tuning, to_markdown

    small = copied(config, tmp_path)
    progress = Recorder()
    tuning = run_tuning(small, progress)
    expected = {
        f"{arm}-trial{n}-seed{seed}"
        for arm, number in {"control": 7, "field": 3, "event": 3}.items()
        for n in range(number)
        for seed in (100, 101)
    }
    assert len(progress.kept) == len(expected)
    assert set(trained) <= expected
    assert len(trained) == len(set(trained))
    told = json.loads((tmp_path / "study" / "tuning.json").read_text())
    assert told["host"] == tuning.host
    assert {arm: one["number_of_trials"] for arm, one in told["arms"].items()} == {
        "control": 7,
        "field": 3,
        "event": 3,
        "plain": 0,
    }
    assert told["arms"]["field"]["settings"] == tuning.arms["field"].settings
    table = to_markdown(tuning)
    assert f"{tuning.arms['field'].quality:.5f}" in table
    assert "| plain | 0 |  |  | as in the run file |" in table

    # The last trial of an arm is gone: it alone is made again, to the same values.
    before, lost = list(trained), [name for name in trained if name.startswith("field-trial2")]
    assert len(lost) == 2
    for name in lost:
        shutil.rmtree(tmp_path / "study" / "trials" / name)
    assert run_tuning(small, Recorder()) == tuning
    assert trained == [*before, *lost]


def test_a_trial_like_an_earlier_one_of_its_arm_is_not_trained_again(config, tmp_path, trained):
    from pipelines.tuning import run_tuning

    small = copied(config, tmp_path)
    few = {"field": {"denoiser.masking": {"choices": ["field", "event"]}}}
    study = small.study.model_copy(update={"space": {}, "trials": 8, "spaces": {}})
    raw = study.model_dump() | {"spaces": few}
    small = with_study(config, **raw).model_copy(update={"folder": tmp_path})
    progress = Recorder()
    tuning = run_tuning(small, progress)
    assert len(tuning.arms["field"].trials) == 8
    assert len(trained) == 2 * 2
    assert sorted(progress.kept) == [False] * 4 + [True] * 12


def test_a_trial_that_diverges_is_not_the_best_and_ends_nothing(
    config, tmp_path, monkeypatch, caplog
):
    from pipelines import tuning
    from pipelines.job_errors import DivergedError
    from pipelines.parameter_search import Trial

    def train(config, folder, *, seed, **options):
        if seed == 101 and config.train.learning_rate > 0.02:
            raise DivergedError("NaN")
        return write_run(config, folder, seed=seed, **options)

    monkeypatch.setattr(tuning, "train", train)
    small = copied(config, tmp_path)
    found = tuning.run_tuning(small, Recorder())
    trials = found.arms["control"].trials
    fast = [one for one in trials if one.values["train.learning_rate"] > 0.02]
    assert fast
    assert {one.quality for one in fast} == {float("-inf")}
    assert found.host["train.learning_rate"] <= 0.02
    assert len(trials) == 7
    told = json.loads((tmp_path / "study" / "tuning.json").read_text())
    assert [one["quality"] for one in told["arms"]["control"]["trials"]] == [
        None if one in fast else one.quality for one in trials
    ]
    assert caplog.text.count("seed 101: diverged") == len(fast)
    lost = tuning.TunedArm({}, float("-inf"), (Trial({}, float("-inf")),))
    table = tuning.to_markdown(tuning.Tuning("is_click", {}, {"x": lost}))
    assert "| x | 1 | diverged | diverged |" in table


def test_a_training_that_diverges_is_one_clear_error(config, tmp_path):
    from pipelines.job_errors import DivergedError
    from pipelines.train import train

    wild = config.train.model_copy(update={"learning_rate": float("inf")})
    with pytest.raises(DivergedError, match=r"epoch 1: .* NaN for .* train.learning_rate=inf"):
        train(config.model_copy(update={"train": wild}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_file_without_a_study_is_one_clear_error(config):
    from pipelines.config import ConfigError
    from pipelines.tuning import run_tuning

    with pytest.raises(ConfigError, match="study: expected this section"):
        run_tuning(config)


def test_training_without_test_rows_reads_none(config, tmp_path):
    from pipelines.run_record import fingerprint, is_finished
    from pipelines.train import train

    small = copied(config, tmp_path).study_arm("control")
    brief = small.train.model_copy(update={"epochs": 1})
    small = small.model_copy(update={"train": brief})
    metrics = train(small, tmp_path / "run", seed=3, test=False)
    assert "test" not in metrics
    assert 0 < metrics["valid"]["auc"] < 1
    assert not (tmp_path / "run" / "scores.parquet").exists()
    assert "test" not in json.loads((tmp_path / "run" / "record.json").read_text())["data"]
    assert is_finished(tmp_path / "run", fingerprint(small, 3, test=False))
    # What a run with test rows must not be taken for.
    shutil.copytree(config.prepared_folder / "test.parquet", tmp_path / "prepared" / "test.parquet")
    assert not is_finished(tmp_path / "run", fingerprint(small, 3))
    assert is_finished(tmp_path / "run", fingerprint(small, 3, test=False))
