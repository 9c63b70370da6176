import numpy as np
import pytest

from pipelines.power_law import fit_power_law


def test_a_power_is_found():
    sizes = np.array([1, 2, 5, 30])
    law = fit_power_law(sizes, 3 * sizes**1.7)
    assert law.exponent == pytest.approx(1.7)
    assert law.scale == pytest.approx(3)
    assert law.standard_error == pytest.approx(0, abs=1e-12)
    assert law.last_exponent == pytest.approx(1.7)
    assert law.num_points == 4


def test_the_line_and_its_error_are_those_of_least_squares():
    sizes = np.array([1.0, 2, 4, 8, 16])
    costs = 5 + sizes**2  # no power law
    x = np.stack([np.log(sizes), np.ones(5)], axis=1)
    (slope, intercept), (squares,), *_ = np.linalg.lstsq(x, np.log(costs), rcond=None)
    error = np.sqrt(squares / 3 * np.linalg.inv(x.T @ x)[0, 0])
    law = fit_power_law(sizes, costs)
    assert law.exponent == pytest.approx(slope)
    assert law.standard_error == pytest.approx(error)
    assert np.log(law.scale) == pytest.approx(intercept)
    assert law.last_exponent == pytest.approx(np.log2((5 + 16**2) / (5 + 8**2)))


def test_what_has_no_logarithm_is_left_out():
    law = fit_power_law([1, 2, 4, 8], [-1.0, 4.0, 0.0, 64.0])
    assert law.exponent == pytest.approx(2)
    assert law.num_points == 2
    assert law.standard_error is None
    assert fit_power_law([1, 2, 4], [-1.0, 4.0, 0.0]) is None


@pytest.mark.parametrize(
    ("sizes", "costs"), [([1, 2], [1.0]), ([0, 1], [1.0, 1.0]), ([2, 2], [1.0, 1.0]), ([], [])]
)
def test_bad_points_are_refused(sizes, costs):
    with pytest.raises(ValueError, match=r"expected increasing sizes above 0.*Received: sizes="):
        fit_power_law(sizes, costs)
