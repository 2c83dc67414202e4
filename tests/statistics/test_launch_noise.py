"""Launch noise from repetitions: the scale of quantiles, and noise of known size with wild launches among it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.launch_noise import (
    ITERATION_TAIL,
    LEAST_NOISE,
    PAIR_TAIL,
    noise_of_iterations,
    noise_of_second_profile,
    noise_of_two_profiles,
    normal_range,
)

FloatArray = npt.NDArray[np.float64]
SEED = 23


def _ranges(values: list[FloatArray], tail: float, times: list[float] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "n": [v.size for v in values],
            "low": [np.quantile(v, tail) for v in values],
            "high": [np.quantile(v, 1 - tail) for v in values],
            "time_ns": times or [1.0] * len(values),
        }
    )


@pytest.mark.parametrize("tail", [PAIR_TAIL, ITERATION_TAIL])
@pytest.mark.parametrize("size", [20, 21, 50, 1_000])
def test_range_of_normal_values_is_the_mean_of_simulated_ones(tail: float, size: int) -> None:
    draws = np.random.default_rng(SEED).standard_normal((20_000, size))
    low, high = np.quantile(draws, [tail, 1 - tail], axis=1)
    width = high - low
    error = width.std() / np.sqrt(width.size)
    print(f"seed {SEED}: {width.mean():.4f} +- {error:.4f}")
    assert float(normal_range(size, tail)) == pytest.approx(width.mean(), abs=4 * error + 0.004)


@pytest.mark.parametrize("noise", [0.005, 0.03, 0.2])
def test_noise_of_two_profiles_is_that_of_both(noise: float) -> None:
    rng = np.random.default_rng(SEED)
    sigma = np.sqrt(np.log1p(noise**2))
    kernels = []
    for shift in (0.0, 0.1, -0.05):
        ratio = sigma * (rng.standard_normal(3_000) - rng.standard_normal(3_000)) + shift
        ratio[:60] = rng.uniform(1, 4, 60)  # two percent of wild launches
        kernels.append(ratio)
    measured = noise_of_second_profile(_ranges(kernels, PAIR_TAIL))
    print(f"seed {SEED}: true {noise}, measured {measured}")
    assert measured == pytest.approx(noise * np.sqrt(2), rel=0.15)


def test_kernels_count_by_their_time_between_profiles() -> None:
    rng = np.random.default_rng(SEED)
    kernels = [s * rng.standard_normal(20_000) for s in (0.01, 0.1)]
    measured = noise_of_second_profile(_ranges(kernels, PAIR_TAIL, [9.0, 1.0]))
    assert measured == pytest.approx(np.sqrt(0.9 * 0.01**2 + 0.1 * 0.1**2), rel=0.05)


def test_kernels_that_follow_their_inputs_do_not_count_as_noise_between_iterations() -> None:
    rng = np.random.default_rng(SEED)
    kernels = [2 * 0.03 * rng.standard_normal(2_000) for _ in range(5)]
    kernels += [2 * 0.4 * rng.standard_normal(2_000) for _ in range(4)]
    assert noise_of_iterations(_ranges(kernels, ITERATION_TAIL), 4) == pytest.approx(0.03, rel=0.1)


def test_few_repetitions_tell_nothing_and_equal_ones_the_least() -> None:
    few = _ranges([np.zeros(19)], PAIR_TAIL)
    assert noise_of_second_profile(few) is None
    assert noise_of_iterations(few, 4) is None
    assert noise_of_second_profile(_ranges([np.zeros(20)], PAIR_TAIL)) == LEAST_NOISE


@pytest.mark.parametrize(
    ("between", "stated", "value", "source", "known"),
    [
        (0.04, None, 0.04, "second profile", 0.04),
        (None, None, 0.03, "default", 0.03),
        (0.04, 0.03, 0.05, "option", 0.04),
        (None, 0.04, 0.05, "option", 0.03),
    ],
)
def test_a_stated_noise_comes_on_top_of_the_spread_between_profiles(
    between: float | None, stated: float | None, value: float, source: str, known: float
) -> None:
    found = noise_of_two_profiles(between, stated, 0.03)
    assert found.value == pytest.approx(value)
    assert (found.source, found.between_profiles, found.added) == (source, known, stated or 0.0)
