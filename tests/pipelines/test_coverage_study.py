import json

import numpy as np
import pytest

from pipelines.config import ConfigError
from pipelines.coverage_study import Scenario, coverage_study, simulate_ab, to_markdown

SMALL = Scenario("small", num_users=60)


def test_arms_without_a_gain_are_drawn_alike():
    differences = []
    for number in range(60):
        labels, users, *arms = simulate_ab(SMALL, 0.0, np.random.default_rng(number))
        assert arms[0].shape == (3, labels.size) == (3, users.size)
        assert 0 < np.min(arms) < np.max(arms) < 1
        means = [arm[:, labels].mean() - arm[:, ~labels].mean() for arm in arms]
        differences.append(means[1] - means[0])
    error = np.std(differences) / np.sqrt(60)
    assert abs(np.mean(differences)) < 3 * error
    # A gain is added to the log odds of positives, the rest stays.
    labels, _, control, plain = simulate_ab(SMALL, 0.0, np.random.default_rng(5))
    _, _, same, gained = simulate_ab(SMALL, 0.5, np.random.default_rng(5))
    np.testing.assert_array_equal(control, same)
    ratio = gained / (1 - gained) / (plain / (1 - plain))
    np.testing.assert_allclose(ratio, np.broadcast_to(np.exp(0.5 * labels), plain.shape))


def test_users_are_clusters():
    labels, users, control, _ = simulate_ab(
        Scenario("many", num_users=2000), 0.0, np.random.default_rng(0)
    )
    rate = np.bincount(users, labels) / np.bincount(users)
    independent = labels.mean() * (1 - labels.mean()) * np.mean(1 / np.bincount(users))
    assert np.var(rate) > 1.3 * independent
    assert np.corrcoef(control[0], control[1])[0, 1] > 0.8


def test_intervals_cover_and_a_promised_gain_is_found(tmp_path):
    """Few A/Bs and wide limits; the defaults are the study at its full size."""
    output = tmp_path / "coverage.json"
    scenarios = [Scenario("users", users_luck=0.6, seeds_luck=0.1, num_users=60)]
    report = coverage_study(
        scenarios,
        metrics=["AUC", "GAUC", "log loss"],
        num_experiments=120,
        num_resamples=100,
        output=output,
    )
    assert json.loads(output.read_text("utf-8")) == report
    (result,) = report["results"]
    assert result["gain"] > 0
    for metric in ("AUC", "GAUC", "log loss"):
        row = result["metrics"][metric]
        # At a true 95 %, less than 88 % of 120 happens once in 500 times.
        assert 0.88 <= row["coverage"] < 1
        assert (row["true_difference"] > 0) == (metric != "log loss")
        # Three standard deviations of a share of 80 % of 120.
        assert abs(row["found"] - row["promised"]) < 0.11
        assert row["mean_width"] > row["detectable"]
    # The gain was planted to be about the effect detectable in AUC.
    auc = result["metrics"]["AUC"]
    np.testing.assert_allclose(auc["true_difference"], auc["detectable"], rtol=0.15)
    np.testing.assert_allclose(auc["promised"], 0.8, atol=0.1)
    lines = to_markdown(report).splitlines()
    assert lines[2].startswith(f"| users | AUC | {100 * auc['coverage']:.1f} % |")
    assert "120 simulated A/Bs" in lines[-1]


def test_too_few_experiments_are_refused():
    with pytest.raises(ConfigError, match=r"at least 20.*Received: 19"):
        coverage_study(num_experiments=19)
