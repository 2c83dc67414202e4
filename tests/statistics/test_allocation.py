"""Allocation against enumeration of all whole-number allocations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.allocation import (
    allocate,
    normal_quantile,
    plan_figures,
    planning_variance,
    smallest_sample,
    variance_bound,
)
from stemroot_spark.errors import DataError


def _variance_by_cochran(n: np.ndarray, s: np.ndarray, m: np.ndarray) -> float:
    return float(sum(N**2 * S**2 * (1 / M - 1 / N) for N, S, M in zip(n, s, m, strict=True)))


def _cheapest_by_enumeration(n: np.ndarray, s: np.ndarray, mean: np.ndarray, bound: float) -> float:
    choices = itertools.product(*(range(1, int(k) + 1) for k in n))
    costs = (float(np.dot(m, mean)) for m in choices if planning_variance(n, s, m) <= bound)
    return min(costs)


def _random_strata(rng: np.random.Generator, strata: int, largest: int) -> tuple[np.ndarray, ...]:
    n = rng.integers(1, largest + 1, strata)
    s = np.where(n > 1, rng.lognormal(2.5, 1.0, strata) * (rng.random(strata) > 0.15), 0.0)
    mean = rng.lognormal(3.0, 1.0, strata)
    bound = variance_bound(float(np.dot(n, mean)), float(rng.choice([0.02, 0.05, 0.1, 0.2])), 0.95)
    return n, s, mean, np.array(bound)


def test_pairs_are_allocated_at_the_least_cost() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        n, s, mean, bound = _random_strata(rng, 2, 30)
        m = allocate(n, s, mean, float(bound))
        assert planning_variance(n, s, m) <= bound
        assert np.dot(m, mean) == pytest.approx(_cheapest_by_enumeration(n, s, mean, float(bound)))


def test_several_strata_cost_at_most_little_more_than_the_least() -> None:
    rng = np.random.default_rng(12)
    gaps = []
    for _ in range(60):
        n, s, mean, bound = _random_strata(rng, int(rng.integers(3, 5)), 8)
        m = allocate(n, s, mean, float(bound))
        assert planning_variance(n, s, m) <= bound
        gaps.append(np.dot(m, mean) / _cheapest_by_enumeration(n, s, mean, float(bound)) - 1)
    assert np.quantile(gaps, 0.95) < 1e-9
    assert max(gaps) < 0.05


def test_large_pair_beats_every_neighbour() -> None:
    n, s, mean = np.array([1_000_000, 40_000]), np.array([30.0, 500.0]), np.array([100.0, 900.0])
    bound = variance_bound(float(np.dot(n, mean)), 0.001, 0.95)
    m = allocate(n, s, mean, bound)
    dear = np.arange(max(1, m[1] - 3_000), m[1] + 3_000)
    with np.errstate(divide="ignore"):
        left = bound + np.dot(n, s**2) - n[1] ** 2 * s[1] ** 2 / dear
    cheap = np.ceil(np.where(left > 0, n[0] ** 2 * s[0] ** 2 / np.where(left > 0, left, 1), np.inf))
    cheap = np.where(cheap <= n[0], np.maximum(cheap, 1), np.inf)
    assert np.dot(m, mean) == pytest.approx(float((mean[1] * dear + mean[0] * cheap).min()), rel=1e-12)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 1e5), st.floats(1, 1e6)), min_size=1, max_size=12),
    st.floats(0.001, 0.5),
)
def test_bound_and_domain_hold_for_any_strata(strata: list[tuple[int, float, float]], epsilon: float) -> None:
    n, s, mean = (np.array(column) for column in zip(*strata, strict=True))
    bound = variance_bound(float(np.dot(n, mean)), epsilon, 0.95)
    m = allocate(n, s, mean, bound)
    assert m.dtype == np.int64
    assert ((m >= 1) & (m <= n)).all()
    assert planning_variance(n, np.where(n > 1, s, 0), m) <= bound


def test_result_is_never_dearer_than_the_start() -> None:
    rng = np.random.default_rng(13)
    for _ in range(20):
        n, s, mean, bound = _random_strata(rng, 6, 50)
        m = allocate(n, s, mean, float(bound), start=n)
        assert np.dot(m, mean) <= np.dot(n, mean)
        best = allocate(n, s, mean, float(bound))
        again = allocate(n, s, mean, float(bound), start=best)
        assert np.dot(again, mean) <= np.dot(best, mean)


@pytest.mark.parametrize("tiny", [2.4e-161, 1e-150, 1e-100])
def test_spread_near_the_smallest_float_is_no_obstacle(tiny: float) -> None:
    n, s, mean = [1, 2, 2, 5], [0.0, 1.0, tiny, 1e5], [1.0, 1.0, 1.0, 1e6]
    m = allocate(n, s, mean, 1.6)
    assert m.tolist() == [1, 2, 1, 5]
    assert allocate(n, s, mean, 0.0)[1] == 2


def test_zero_bound_takes_everything_that_varies_and_one_of_the_rest() -> None:
    assert allocate([10, 7, 5], [3.0, 0.0, 2.0], [1.0, 1.0, 1.0], 0.0).tolist() == [10, 1, 5]
    assert allocate([10, 7], [3.0, 0.0], [1.0, 1.0], 0.0).tolist() == [10, 1]
    assert allocate([10], [3.0], [1.0], 0.0).tolist() == [10]


def test_smallest_sample_is_the_first_that_keeps_the_bound() -> None:
    for n, s, bound in [(1, 0.0, 0.0), (9, 4.0, 100.0), (50, 7.0, 3_000.0), (50, 7.0, 1e9), (50, 7.0, 0.0)]:
        expected = next(m for m in range(1, n + 1) if planning_variance([n], [s], [m]) <= bound)
        assert smallest_sample(n, s, bound) == expected


def test_planning_variance_is_cochrans_and_handles_the_edges() -> None:
    n, s, m = np.array([20, 9]), np.array([3.0, 5.0]), np.array([4, 2])
    assert planning_variance(n, s, m) == pytest.approx(_variance_by_cochran(n, s, m))
    assert planning_variance([7, 3], [2.0, 0.0], [7, 0]) == 0.0
    assert planning_variance([7], [2.0], [0]) == np.inf
    assert planning_variance([7], [2.0], [12]) == 0.0


def test_quantile_and_bound_follow_their_definitions() -> None:
    assert normal_quantile(0.95) == pytest.approx(1.959963985, rel=1e-9)
    assert variance_bound(1_000.0, 0.05, 0.95) == pytest.approx((50 / 1.959963985) ** 2)


def test_plan_figures_report_cost_speedup_and_error() -> None:
    figures = plan_figures([10, 5], [2.0, 0.0], [100.0, 20.0], [4, 1], 0.95)
    assert figures.total_time_ns == 1_100.0
    assert figures.sampled_time_ns == 420.0
    assert figures.speedup == pytest.approx(1_100 / 420)
    assert figures.planned_relative_error == pytest.approx(
        1.959963985 * np.sqrt(100 * 4 * (1 / 4 - 1 / 10)) / 1_100
    )
    assert (figures.n_population, figures.n_samples, figures.n_strata) == (15, 5, 2)
    assert plan_figures([10], [0.0], [100.0], [0], 0.95).speedup == np.inf


@pytest.mark.parametrize(
    ("n", "s", "mean", "bound", "message"),
    [
        ([0], [1.0], [1.0], 1.0, "n_population 0"),
        ([2], [-1.0], [1.0], 1.0, "stddev_ns -1"),
        ([2], [1.0], [0.0], 1.0, "mean_ns 0"),
        ([2], [1.0], [1.0], -1.0, "negative"),
        ([2], [1.0], [1.0], float("nan"), "negative"),
        ([2, 3], [1.0], [1.0], 1.0, "shapes"),
        ([], [], [], 1.0, "shapes"),
    ],
)
def test_strata_outside_the_domain_are_refused(
    n: list[int], s: list[float], mean: list[float], bound: float, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        allocate(n, s, mean, bound)


def test_parameters_outside_the_domain_are_refused() -> None:
    with pytest.raises(DataError, match="confidence"):
        normal_quantile(1.0)
    with pytest.raises(DataError, match="epsilon"):
        variance_bound(1.0, 0.0, 0.95)
