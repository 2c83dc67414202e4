"""The dynamic programme of one kernel against enumeration of its partitions."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import histogram_of
from stemroot_spark.optimal.candidates import stratum_variance
from stemroot_spark.optimal.cells import ordered_cells
from stemroot_spark.optimal.histogram_kernel import HISTOGRAMS
from stemroot_spark.optimal.local import LocalWork
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.programme import (
    FRONTIER_COLUMNS,
    SingleLaunch,
    allowed_intervals,
    best_samples,
    lagrangian,
    solve,
)

MODELS = (PlanningModel(), PlanningModel(0.5, 0.05, use_configurations=True))


def _work(frame: pd.DataFrame, model: PlanningModel) -> LocalWork:
    return LocalWork.of_rows(frame, HISTOGRAMS, model)


def _kernel(seed: int, size: int = 14) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    durations = np.round(np.exp(rng.normal(8, 1, size)), -2).astype(np.int64) + 100
    return histogram_of(durations, rng.integers(0, 3, size)).assign(kernel_id=5)


def _figures(rows: pd.DataFrame) -> pd.DataFrame:
    """Cost and variance of each solution."""
    frame = rows.assign(cost=rows["n_samples"] * rows["mean_ns"], variance=stratum_variance(rows))
    return frame.groupby("solution")[["cost", "variance"]].sum()


def _partitions(intervals: set[tuple[int, int]], cells: int) -> list[list[tuple[int, int]]]:
    found = []
    for size in range(cells):
        for cuts in combinations(range(1, cells), size):
            bounds = (0, *cuts, cells)
            strata = list(pairwise(bounds))
            if all(s in intervals for s in strata):
                found.append(strata)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_programme_finds_the_least_of_all_partitions(seed: int, model: PlanningModel) -> None:
    frame = _kernel(seed)
    cells = ordered_cells(frame, model)
    table = allowed_intervals(cells, model)
    place = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(table.start, table.stop, strict=True))}
    partitions = _partitions(set(place), len(cells))
    total = float((frame["sum_ns"]).sum())
    for multiplier in np.array([0.0, 0.01, 1.0, 30.0, 1e4]) * total / (0.05 * total) ** 2:
        costs = lagrangian(table, multiplier, best_samples(table, multiplier))
        least = min(sum(costs[place[s]] for s in strata) for strata in partitions)
        assert solve(table, multiplier).dual_ns == pytest.approx(least, rel=1e-12)


def test_best_samples_are_the_cheapest_whole_numbers() -> None:
    model = PlanningModel(0.0, 0.1)
    table = allowed_intervals(ordered_cells(_kernel(1, size=60), model), model)
    for multiplier in (1e-7, 1e-5, 1e-3):
        samples = best_samples(table, multiplier)
        for k in range(0, table.n.size, 7):
            m = np.arange(1, int(table.n[k]) + 1)
            values = m * table.mean_ns[k] + multiplier * table.spread[k] * (1 / m - 1 / table.n[k])
            assert values[int(samples[k]) - 1] == pytest.approx(values.min(), rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_the_launches_they_describe_and_carry_the_dual(model: PlanningModel) -> None:
    rng = np.random.default_rng(8)
    config = rng.integers(0, 4, 2_000)
    durations = np.exp(rng.normal(9 + 0.2 * config, 0.4)).astype(np.int64)
    frame = histogram_of(durations, config).assign(kernel_id=-3)
    total = float(durations.sum())
    multipliers = [0.0, *(total / (0.05 * total) ** 2 * 4.0 ** -np.arange(5.0))]
    rows = _work(frame, model).frontier(multipliers, False)
    assert tuple(rows.columns) == FRONTIER_COLUMNS
    figures = _figures(rows)
    heads = rows.groupby("solution").first()
    np.testing.assert_allclose(
        heads["dual_ns"], figures["cost"] + heads["multiplier"] * figures["variance"], rtol=1e-9
    )
    assert figures["variance"].iloc[1:].is_monotonic_increasing
    for _, strata in rows.groupby("solution"):
        seen = np.zeros(durations.size, dtype=int)
        for row in strata.to_dict("records"):
            ids = row["launch_config_ids"]
            assert (ids is None) is not model.use_configurations
            inside = (durations >= row["lower_ns"]) & (durations <= row["upper_ns"])
            if ids is not None:
                inside &= np.isin(config, ids)
            seen += inside
            x = durations[inside]
            assert (x.size, x.min(), x.max()) == (row["n_population"], row["lower_ns"], row["upper_ns"])
            assert row["mean_ns"] == pytest.approx(x.mean(), rel=1e-12)
            assert row["stddev_ns"] == pytest.approx(x.std(ddof=1) if x.size > 1 else 0.0, rel=1e-9)
            assert 1 <= row["n_samples"] <= x.size
        assert (seen == 1).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_kernel_is_skipped_only_where_its_programme_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    durations = rng.integers(1_000, 3_000, 40)
    cells = ordered_cells(histogram_of(durations), PlanningModel())
    alone, table = SingleLaunch(cells, PlanningModel()), allowed_intervals(cells, PlanningModel())
    total = float(durations.sum())
    skipped = 0
    for multiplier in np.geomspace(1e-4, 10, 30) * total / (0.05 * total) ** 2:
        solution = alone.solution(multiplier)
        if solution is not None:
            skipped += 1
            assert solve(table, multiplier).dual_ns == pytest.approx(solution.dual_ns, rel=1e-12)
    assert 0 < skipped < 30


def test_equal_durations_need_one_launch_and_have_no_variance() -> None:
    frame = histogram_of([7_000] * 50).assign(kernel_id=1)
    rows = _work(frame, PlanningModel()).frontier([0.0, 1e9], False)
    assert rows["n_samples"].tolist() == [1, 1]
    assert rows["model_stddev_ns"].tolist() == [0.0, 0.0]
    # Launch noise gives equal durations a variance, and then one launch is not enough for any multiplier.
    assert _work(frame, PlanningModel(0.0, 0.1)).frontier([1e9], False)["n_samples"].sum() == 50


def test_alternatives_are_undominated_and_within_the_excess() -> None:
    frame = _kernel(11, size=40)
    total = float(frame["sum_ns"].sum())
    multiplier = 0.2 * total / (0.05 * total) ** 2
    excess = 0.1 * total / 40
    rows = _work(frame, PlanningModel()).alternatives(multiplier, excess)
    figures = _figures(rows)
    dual = rows["dual_ns"].iloc[0]
    reduced = figures["cost"] + multiplier * figures["variance"]
    assert reduced.iloc[0] == pytest.approx(dual, rel=1e-9)
    assert (reduced <= dual + excess + 1e-6 * dual).all()
    found = figures.iloc[1:].sort_values("cost")
    assert len(found) > 3
    assert found["variance"].is_monotonic_decreasing


def test_bad_multipliers_are_refused() -> None:
    frame = _kernel(0)
    for multipliers in ([], [-1.0], [np.inf], [np.nan]):
        with pytest.raises(DataError, match="multipliers"):
            _work(frame, PlanningModel()).frontier(multipliers, False)
    with pytest.raises(DataError, match="multipliers"):
        _work(frame, PlanningModel()).alternatives(1.0, -1.0)
