"""Plans made by passes over the executors are those that one process makes, whatever binds the kernels together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from stemroot_spark.histogram import histogram_of
from stemroot_spark.optimal.histogram_kernel import HISTOGRAMS, plan_histogram
from stemroot_spark.optimal.paired_kernel import PAIRS, plan_pairs
from stemroot_spark.optimal.pairs import paired_histogram_of
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions
from stemroot_spark.optimal_planning import plan_on_executors

_SEED = 11
_GUARANTEES = ("transfer", "total", "per-kernel", "worst-case")


def _kernels() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Durations in two nights and configurations of four kernels, each skewed in its own way."""
    rng = np.random.default_rng(_SEED)
    kernels = []
    for k in range(4):
        config = rng.integers(0, 2, 500)
        true = 2e4 * (k + 1) * (1 + config) * np.exp(0.2 * (k + 1) * rng.standard_normal(config.size))
        first, second = (
            np.rint(true * np.exp(0.03 * rng.standard_normal(config.size))).astype(np.int64) for _ in range(2)
        )
        kernels.append((first, second, config))
    return kernels


def _options(guarantee: str) -> PlanOptions:
    return PlanOptions(guarantee=guarantee, epsilon=0.02, max_cells=64, draws=400, calibrated=False)


def _assert_same(found: OptimalPlan, expected: OptimalPlan) -> None:
    pd.testing.assert_frame_equal(found.strata, expected.strata, check_dtype=False)
    assert len(found.strata) > 4
    assert found.coverage[:2] == expected.coverage[:2]
    assert found.sampled_time_ns == expected.sampled_time_ns
    assert found.lower_bound_ns == pytest.approx(expected.lower_bound_ns, rel=1e-12)


@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_one_profile(spark: SparkSession, guarantee: str) -> None:
    histogram = pd.concat(
        histogram_of(x, config).assign(kernel_id=k) for k, (x, _, config) in enumerate(_kernels())
    )
    histogram["sum_sq"] = histogram["sum_sq"].astype(float)
    rows = spark.createDataFrame(histogram).repartition(3)
    options = _options(guarantee)
    _assert_same(plan_on_executors(rows, HISTOGRAMS, options), plan_histogram(histogram, options))


@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_two_profiles(spark: SparkSession, guarantee: str) -> None:
    pairs = pd.concat(
        paired_histogram_of(x, x2, config).assign(kernel_id=k) for k, (x, x2, config) in enumerate(_kernels())
    )
    options = _options(guarantee)
    found = plan_on_executors(spark.createDataFrame(pairs).repartition(3), PAIRS, options)
    _assert_same(found, plan_pairs(pairs, options))
    assert found.strata["is_pps"].any()
