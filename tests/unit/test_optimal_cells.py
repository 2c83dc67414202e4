"""Ordered cells against the launches they stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import cells_from_histogram, histogram_of
from stemroot_spark.optimal.buckets import config_buckets
from stemroot_spark.optimal.cells import COARSE_CELLS, exact_moments, interval_moments, ordered_cells
from stemroot_spark.optimal.model import PlanningModel, planning_model
from stemroot_spark.optimal.programme import allowed_intervals

IntArray = npt.NDArray[np.int64]
WITH_CONFIGURATIONS = PlanningModel(factor_spread=0.5, launch_noise=0.03, use_configurations=True)


def _launches(seed: int, configs: int = 4, size: int = 600) -> tuple[IntArray, IntArray]:
    """Durations and configurations whose ranges overlap and whose ids are not in the order of their means."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(configs) * 11 - 5
    config = rng.integers(0, configs, size)
    durations = np.exp(rng.normal(9.0 + 0.4 * rng.permutation(configs)[config], 0.3)).astype(np.int64)
    return durations, ids[config].astype(np.int64)


def _inside(cells_ids: IntArray, low: int, high: int, launches: tuple[IntArray, IntArray]) -> IntArray:
    durations, configs = launches
    return durations[np.isin(configs, cells_ids) & (durations >= low) & (durations <= high)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_cells", [24, 512])
def test_every_allowed_interval_has_the_moments_of_its_launches(seed: int, max_cells: int) -> None:
    launches = _launches(seed)
    model = PlanningModel(0.5, 0.03, use_configurations=True, max_cells=max_cells)
    cells = ordered_cells(histogram_of(*launches), model)
    assert len(cells) <= max_cells
    assert cells.config_ids is not None
    intervals = allowed_intervals(cells, model)
    rng = np.random.default_rng(seed)
    some = np.unique(rng.integers(0, intervals.start.size, 60))
    whole_groups = np.isin(intervals.start, cells.group_start) & np.isin(intervals.stop, cells.group_start)
    picked = np.union1d(some, np.flatnonzero(whole_groups))
    start, stop = intervals.start[picked], intervals.stop[picked]
    running, exact = interval_moments(cells, start, stop), exact_moments(cells, start, stop)
    durations, configs = launches
    for k in range(picked.size):
        groups = np.unique(np.searchsorted(cells.group_start, np.arange(start[k], stop[k]), side="right") - 1)
        ids = np.concatenate([cells.config_ids[g] for g in groups])
        low, high = int(cells.min_ns[start[k] : stop[k]].min()), int(cells.max_ns[start[k] : stop[k]].max())
        x = _inside(ids, low, high, launches).astype(np.float64)
        member = np.isin(configs, ids) & (durations >= low) & (durations <= high)
        totals = [float(durations[member & (configs == i)].sum()) for i in ids]
        between = float(np.sum(x**2)) - sum(t**2 for t in totals) / x.size
        for moments in (running, exact):
            assert moments.n[k] == x.size
            assert moments.mean_ns[k] == pytest.approx(x.mean(), rel=1e-12)
            assert moments.m2[k] == pytest.approx(float(np.sum((x - x.mean()) ** 2)), rel=1e-7, abs=1e-3)
            assert moments.between_m2[k] == pytest.approx(between, rel=1e-7, abs=1e-3)


def test_expected_variance_is_that_of_simulated_factors_and_noise() -> None:
    durations, configs = _launches(5, configs=3, size=40)
    model = PlanningModel(factor_spread=0.6, launch_noise=0.2, use_configurations=True)
    cells = ordered_cells(histogram_of(durations, configs), model)
    whole = exact_moments(cells, np.array([0]), np.array([len(cells)]))
    expected = float(model.expected_variance(*whole)[0])
    seed, draws = 20, 40_000
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    _, code = np.unique(configs, return_inverse=True)
    factors = rng.gamma(1 / 0.6**2, 0.6**2, (draws, 3))[:, code]
    noise = rng.gamma(1 / 0.2**2, 0.2**2, (draws, durations.size))
    variances = (durations * factors * noise).var(axis=1, ddof=1)
    error = variances.std() / np.sqrt(draws)
    assert abs(variances.mean() - expected) < 4 * error


def test_configurations_are_ordered_by_mean_and_cut_inside_only_one_at_a_time() -> None:
    durations, configs = _launches(1)
    cells = ordered_cells(histogram_of(durations, configs), WITH_CONFIGURATIONS)
    assert cells.config_ids is not None
    order = [int(ids[0]) for ids in cells.config_ids]
    means = [durations[configs == i].mean() for i in order]
    assert means == sorted(means)
    intervals = allowed_intervals(cells, WITH_CONFIGURATIONS)
    group = np.searchsorted(cells.group_start, intervals.start, side="right") - 1
    last = np.searchsorted(cells.group_start, intervals.stop, side="left") - 1
    spans = group != last
    assert np.isin(intervals.start[spans], cells.group_start).all()
    assert np.isin(intervals.stop[spans], cells.group_start).all()


def test_more_configurations_than_cells_are_merged_with_neighbours() -> None:
    rng = np.random.default_rng(3)
    configs = np.repeat(np.arange(90), 3)
    durations = (1_000 * 1.05**configs * rng.uniform(0.9, 1.1, configs.size)).astype(np.int64)
    model = PlanningModel(0.5, 0.0, use_configurations=True, max_cells=32)
    cells = ordered_cells(histogram_of(durations, configs), model)
    assert cells.config_ids is not None
    assert len(cells) <= 32
    assert sorted(int(i) for ids in cells.config_ids for i in ids) == list(range(90))
    assert int(cells.n.sum()) == configs.size
    squares = sum(float(durations[configs == i].sum()) ** 2 for i in range(90))
    assert float(cells.config_squares.sum()) == pytest.approx(squares, rel=1e-12)


def test_cells_stay_narrow_while_the_range_permits() -> None:
    rng = np.random.default_rng(4)
    durations = np.exp(rng.normal(13, 0.5, 20_000)).astype(np.int64)
    cells = ordered_cells(histogram_of(durations), PlanningModel())
    width = cells.max_ns / cells.min_ns - 1.0
    cv = durations.std() / durations.mean()
    assert width.max() <= min(0.01, cv / 3)
    assert COARSE_CELLS < len(cells) <= 512


@pytest.mark.parametrize("use_configurations", [False, True])
def test_coarse_cells_are_unions_of_cells(use_configurations: bool) -> None:
    durations, configs = _launches(6, size=30_000)
    model = PlanningModel(0.5, 0.03, use_configurations=use_configurations)
    frame = histogram_of(durations, configs)
    fine, coarse = ordered_cells(frame, model), ordered_cells(frame, model, coarse=True)
    assert len(coarse) <= COARSE_CELLS < len(fine)
    assert np.isin(coarse.n.cumsum(), fine.n.cumsum()).all()


def test_order_of_rows_and_splitting_by_nights_change_nothing() -> None:
    durations, configs = _launches(7)
    nights = [histogram_of(durations[k::2], configs[k::2]) for k in range(2)]
    one = ordered_cells(histogram_of(durations, configs), WITH_CONFIGURATIONS)
    shuffled = pd.concat(nights).sample(frac=1.0, random_state=1)
    two = ordered_cells(shuffled, WITH_CONFIGURATIONS)
    again = ordered_cells(pd.concat(nights[::-1]), WITH_CONFIGURATIONS)
    for name in ("n", "sum_ns", "min_ns", "max_ns", "group_start"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert np.array_equal(two.m2, again.m2)
    np.testing.assert_allclose(one.m2, two.m2, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_buckets_without_configurations_are_the_cells_of_the_histogram(seed: int) -> None:
    durations, configs = _launches(seed)
    nights = pd.concat([histogram_of(durations[k::2], configs[k::2]) for k in range(2)])
    buckets, cells = config_buckets(nights, use_configurations=False), cells_from_histogram(nights)
    for name in ("n", "sum_ns", "min_ns", "max_ns"):
        assert np.array_equal(getattr(buckets, name), getattr(cells, name)), name
    np.testing.assert_allclose(buckets.m2, cells.m2, rtol=1e-9, atol=1e-6)


def test_buckets_that_overlap_are_one() -> None:
    frame = histogram_of([1_000, 1_010, 1_020, 5_000]).assign(launch_config_id=[1, 1, 1, 2])
    squares = sum((d - int(frame["reference_ns"][0])) ** 2 for d in (1_000, 1_015))
    frame.loc[0, ["n", "sum_ns", "sum_sq", "max_ns"]] = [2, 2_015, squares, 1_015]
    buckets = config_buckets(frame, use_configurations=True)
    assert buckets.n.tolist() == [3, 1, 1]
    assert buckets.max_ns.tolist() == [1_015, 1_020, 5_000]
    x = np.array([1_000, 1_010, 1_015])
    assert buckets.m2[0] == pytest.approx(float(np.sum((x - x.mean()) ** 2)), rel=1e-9)


def test_rows_that_contradict_themselves_are_refused() -> None:
    frame = histogram_of([1_000, 2_000])
    with pytest.raises(DataError, match="1 inconsistent"):
        config_buckets(frame.assign(n=[0, 1]), use_configurations=False)
    with pytest.raises(DataError, match="nulls in min_ns"):
        config_buckets(frame.assign(min_ns=[np.nan, 2_000.0]), use_configurations=False)
    with pytest.raises(DataError, match="without rows"):
        config_buckets(frame.iloc[:0], use_configurations=False)


def test_what_a_model_or_a_histogram_must_have() -> None:
    with pytest.raises(DataError, match="launch_config_id"):
        ordered_cells(histogram_of([1, 2]).drop(columns="launch_config_id"), WITH_CONFIGURATIONS)
    with pytest.raises(DataError, match="guarantee 'all'"):
        planning_model("all", factor_spread=0.5, launch_noise=0.03)
    with pytest.raises(DataError, match="factor_spread"):
        PlanningModel(factor_spread=-1.0)
    with pytest.raises(DataError, match="max_cells"):
        PlanningModel(max_cells=1)
    assert planning_model("transfer", factor_spread=0.5, launch_noise=0.03).use_configurations
    assert planning_model("total", factor_spread=0.5, launch_noise=0.03) == PlanningModel()
