"""First launches that differ are found and counted; chance, drift and short runs do not make any."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.first_launches import STEPS, first_steps

FloatArray = npt.NDArray[np.float64]
SEED = 41


def _steps(logs: FloatArray) -> pd.DataFrame:
    """Rows per step from log durations of shape (ranks, steps), as the aggregate makes them."""
    step = np.minimum(np.arange(logs.shape[1]), STEPS)
    rows = []
    for s in np.unique(step):
        values = logs[:, step == s]
        rows.append((s, values.size, values.mean(), values.var()))
    return pd.DataFrame(rows, columns=["step", "n", "mean_log", "variance_log"])


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("factor", [0.8, 1.3, 2.0])
def test_a_different_beginning_is_found_to_the_launch(count: int, factor: float) -> None:
    rng = np.random.default_rng(SEED)
    logs = 0.03 * rng.standard_normal((4, 100))
    logs[:, :count] += np.log(factor)
    assert first_steps(_steps(logs)) == count


def test_a_warm_up_that_fades_is_cut_where_it_is_felt() -> None:
    logs = 0.02 * np.random.default_rng(SEED).standard_normal((4, 60))
    logs[:, :4] += np.log1p([1.2, 0.6, 0.3, 0.15])
    assert 1 <= first_steps(_steps(logs)) <= 4


@pytest.mark.parametrize("spread", [0.02, 0.4])
def test_chance_makes_no_beginning(spread: float) -> None:
    """Normal and heavy-tailed noise, 400 kernels: at most 1 in 200."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    found = 0
    for number in range(400):
        shape = (2, int(rng.integers(3, 120)))
        noise = rng.standard_normal(shape) if number % 2 else np.log1p(rng.pareto(2.2, shape))
        found += first_steps(_steps(spread * noise)) > 0
    print(f"{found} of 400")
    assert found <= 2


def test_a_drift_or_a_change_in_the_middle_is_no_beginning() -> None:
    rng = np.random.default_rng(SEED)
    middle = 0.03 * rng.standard_normal((2, 64))
    middle[:, 32:] += 0.3
    assert first_steps(_steps(middle)) == 0
    late = 0.03 * rng.standard_normal((2, 300))
    late[:, 150:] += 0.3
    assert first_steps(_steps(late)) == 0
    assert first_steps(_steps(np.zeros((2, 50)))) == 0
    assert first_steps(_steps(rng.standard_normal((1, 1)))) == 0


def test_a_difference_too_small_to_matter_is_left() -> None:
    logs = 0.001 * np.random.default_rng(SEED).standard_normal((4, 100))
    logs[:, :3] += 0.03
    assert first_steps(_steps(logs)) == 0
