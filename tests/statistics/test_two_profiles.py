"""Two profiles: pair sums and designs against single launches, and the bound of a plan by simulation of its draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.fleet import FleetSpec, kernel_table, launches
from stemroot_spark.optimal.candidates import stratum_cost, stratum_variance
from stemroot_spark.optimal.designs import PAIRED_SCHEMA, designs_of, paired_columns, paired_frontier
from stemroot_spark.optimal.local import LocalWork
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.paired_kernel import PAIRS, paired_options, plan_pairs
from stemroot_spark.optimal.pairs import (
    PRIOR_DEGREES_OF_FREEDOM,
    PairedCells,
    paired_buckets,
    paired_cells,
    paired_histogram_of,
)
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions, worst_corner
from stemroot_spark.optimal.programme import column_names

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
SEED = 31
DRAWS = 250
Z95 = 1.959963984540054
SPEC = FleetSpec(ranks=2, layers=2, iterations=10, seed=7)


class Kernel(NamedTuple):
    """Launches of one kernel: durations in two runs (0 without partner) and configurations."""

    x: IntArray
    x2: IntArray
    config: IntArray


def _kernel(size: int = 400, noise: float = 0.1, unmatched: float = 0.0, configs: int = 3) -> Kernel:
    rng = np.random.default_rng([SEED, size, configs])
    config = rng.integers(0, configs, size)
    true = 1e5 * (1.0 + config) * np.exp(0.4 * rng.standard_normal(size))
    x, x2 = (np.rint(true * np.exp(noise * rng.standard_normal(size))).astype(np.int64) for _ in range(2))
    x2[rng.random(size) < unmatched] = 0
    return Kernel(x, x2, config)


def _cells(kernel: Kernel, model: PlanningModel) -> PairedCells:
    frame = paired_histogram_of(kernel.x, kernel.x2, kernel.config)
    buckets, relative_variance = paired_buckets(frame.sample(frac=1, random_state=SEED), model)
    return paired_cells(buckets, relative_variance, model)


@pytest.mark.parametrize(("factor_spread", "noise"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.2)])
def test_designs_of_intervals_are_those_of_their_launches(factor_spread: float, noise: float) -> None:
    print(f"seed {SEED}")
    kernel = _kernel()
    model = PlanningModel(factor_spread, noise, use_configurations=True, max_cells=64, repeat_noise=0.03)
    cells = _cells(kernel, model)
    bounds = cells.profile.group_start
    runs = [(bounds[0], bounds[1]), (bounds[1] + 3, bounds[2] - 2), (bounds[0], bounds[3]), (5, 6)]
    starts, stops = (np.array(side) for side in zip(*runs, strict=True))
    v = cells.relative_variance
    x, y = kernel.x.astype(np.float64), kernel.x2.astype(np.float64)
    own = x.sum() * (y**2 / x).sum() / y.sum() ** 2 - 1
    degrees, prior = x.size - 1, PRIOR_DEGREES_OF_FREEDOM
    assert v == pytest.approx((degrees * own + prior * 0.03**2) / (degrees + prior), rel=1e-6)
    for exact in (False, True):
        designs = designs_of(cells, starts, stops, model, exact=exact)
        for h, (start, stop) in enumerate(runs):
            inside = np.zeros(x.size, dtype=np.bool_)
            groups = np.searchsorted(bounds, range(start, stop), side="right") - 1
            for cell, group in zip(range(start, stop), groups, strict=True):
                config = (cells.profile.config_ids or ())[group]
                inside |= (
                    np.isin(kernel.config, config)
                    & (kernel.x >= cells.profile.min_ns[cell])
                    & (kernel.x <= cells.profile.max_ns[cell])
                )
            mine, theirs, config = x[inside], y[inside], kernel.config[inside]
            n, total_x, total_y = mine.size, mine.sum(), theirs.sum()
            of_config = sum(theirs[config == c].sum() ** 2 for c in np.unique(config))
            df, d0 = n - 1, PRIOR_DEGREES_OF_FREEDOM
            own = total_x * (theirs**2 / mine).sum() - total_y**2
            own = (df * own + d0 * v * total_y**2) / (df + d0)
            added = noise**2 * (1 + factor_spread**2)
            pps = own + factor_spread**2 * (own + total_y**2 - of_config)
            pps += added * max(own + total_y**2 - (theirs**2).sum(), 0)
            assert designs.n[h] == n
            assert designs.mean_ns[h] == pytest.approx(theirs.mean(), rel=1e-9)
            assert designs.pps_spread[h] == pytest.approx(pps, rel=1e-6)
            assert designs.pps_cost_ns[h] == pytest.approx((mine * theirs).sum() / total_x, rel=1e-9)
            assert designs.pps_most[h] == np.floor(total_x / mine.max())
            s2 = max(theirs.var(ddof=1), (df * theirs.var(ddof=1) + d0 * v * theirs.mean() ** 2) / (df + d0))
            between = s2 * df + total_y**2 / n - of_config / n
            squares = s2 * df / n + theirs.mean() ** 2
            spread = n**2 * (s2 + factor_spread**2 * between / df + added * squares)
            assert designs.spread[h] == pytest.approx(spread, rel=1e-6)


def test_a_launch_without_partner_counts_as_the_kernel_leads_to_expect() -> None:
    kernel = _kernel(unmatched=0.3)
    model = PlanningModel(use_configurations=True, max_cells=64)
    cells = _cells(kernel, model)
    x, matched = kernel.x.astype(np.float64), kernel.x2 > 0
    f = kernel.x2.sum() / x[matched].sum()
    x2 = np.where(matched, kernel.x2, f * x)
    assert cells.n_matched.sum() == matched.sum()
    assert cells.repeat.sum_ns.sum() == pytest.approx(x2.sum(), rel=1e-5)
    everything = designs_of(cells, np.array([0]), np.array([len(cells.n_matched)]), model, exact=True)
    squares = np.where(matched, x2**2, f**2 * x**2 * (1 + cells.relative_variance))
    variance = (squares.sum() - x2.sum() ** 2 / x.size) / (x.size - 1)
    assert everything.spread[0] == pytest.approx(x.size**2 * variance, rel=1e-4)
    assert everything.pps_cost_ns[0] == pytest.approx((x * x2).sum() / x.sum(), rel=1e-5)
    own = x.sum() * (squares / x).sum() - x2.sum() ** 2
    # df + 4 times the mean of both: the shrinkage leaves the relative variance of the whole kernel nearly as it is.
    assert everything.pps_spread[0] == pytest.approx(own, rel=1e-2)


def test_without_any_partner_the_noise_of_the_model_stands_in() -> None:
    kernel = _kernel(unmatched=1.0)
    assert (
        _cells(kernel, PlanningModel(0.0, 0.0, use_configurations=True, repeat_noise=0.07)).relative_variance
        == 0.07**2
    )


def test_rows_of_a_solution_give_its_dual_value() -> None:
    model = PlanningModel(0.5, 0.0, use_configurations=True, max_cells=128)
    frame = paired_histogram_of(*_kernel(900)).assign(kernel_id=3)
    for multiplier in (1e-13, 1e-11, 1e-9, 1e-7):
        rows = LocalWork.of_rows(frame, PAIRS, model).frontier([multiplier], False)
        assert tuple(rows.columns) == column_names(PAIRED_SCHEMA)
        value = stratum_cost(rows).sum() + multiplier * stratum_variance(rows).sum()
        assert value == pytest.approx(rows["dual_ns"].iloc[0], rel=1e-6)
        assert rows["n_population"].sum() == 900


def test_the_programme_is_the_cheapest_of_all_partitions_and_designs() -> None:
    """Against enumeration of every partition of one configuration's eight cells, both designs, and all m."""
    rng = np.random.default_rng(SEED)
    x = np.repeat(np.array([100, 150, 170, 400, 420, 900, 2_000, 9_000]) * 1_000, 3)
    x2 = np.rint(x * np.exp(0.2 * rng.standard_normal(x.size))).astype(np.int64)
    model = PlanningModel()
    cells = _cells(Kernel(x, x2, np.zeros_like(x)), model)
    size = len(cells.n_matched)
    assert size == 8
    for multiplier in (1e-12, 1e-10, 1e-8, 1e-6):
        best = np.inf
        for mask in range(2 ** (size - 1)):
            cuts = [0, *(i + 1 for i in range(size - 1) if mask >> i & 1), size]
            designs = designs_of(cells, np.array(cuts[:-1]), np.array(cuts[1:]), model)
            value = 0.0
            for h in range(len(cuts) - 1):
                m = np.arange(1, designs.n[h] + 1)
                expansion = m * designs.mean_ns[h] + multiplier * designs.spread[h] * (
                    1 / m - 1 / designs.n[h]
                )
                few = m[m <= designs.pps_most[h]]
                pps = few * designs.pps_cost_ns[h] + multiplier * designs.pps_spread[h] / few
                value += min(expansion.min(), pps.min())
            best = min(best, value)
        found = paired_frontier(cells, [multiplier], model)[0]
        assert found.dual_ns == pytest.approx(best, rel=1e-9)
        columns = paired_columns(1, cells, [found], model)
        assert (columns["n_samples"] <= columns["n_population"]).all()


def test_strata_on_pure_noise_save_nothing() -> None:
    """x alone spreads by 30 %; the other run shows that none of it comes back."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    x, x2 = (np.rint(1e6 * np.exp(0.3 * rng.standard_normal(4_000))).astype(np.int64) for _ in range(2))
    frame = paired_histogram_of(x, x2).assign(kernel_id=1)
    plan = plan_pairs(frame, PlanOptions(guarantee="total", calibrated=False))
    bound, variance = PlanOptions(guarantee="total").bound(float(x2.sum())), x2.var(ddof=1)
    one_stratum = x2.size**2 * variance / (bound + x2.size * variance) * x2.mean()
    assert plan.sampled_time_ns == pytest.approx(one_stratum, rel=0.03)


# A generated fleet: planned on two nights.


class Night(NamedTuple):
    kernel: IntArray
    config: IntArray
    duration_ns: IntArray


@cache
def _night(night: int) -> Night:
    parts = [launches(SPEC, rank, night) for rank in range(SPEC.ranks)]
    kernel = np.concatenate([part.kernel_index for part in parts])
    is_communication = np.array([entry.is_communication for entry in kernel_table(SPEC)])[kernel]
    columns = [np.concatenate([getattr(p, name) for p in parts]) for name in ("config_index", "duration_ns")]
    return Night(kernel[~is_communication], *(column[~is_communication] for column in columns))


@cache
def _pairs() -> pd.DataFrame:
    first, second = _night(0), _night(1)
    frames = []
    for kernel in np.unique(first.kernel):
        mine = first.kernel == kernel
        rows = paired_histogram_of(first.duration_ns[mine], second.duration_ns[mine], first.config[mine])
        frames.append(rows.assign(kernel_id=kernel))
    return pd.concat(frames, ignore_index=True)


@cache
def _plan(guarantee: str, epsilon: float) -> OptimalPlan:
    options = paired_options(PlanOptions(guarantee=guarantee, epsilon=epsilon), 0.03 * np.sqrt(2))
    return plan_pairs(_pairs(), replace(options, max_cells=128))


def _estimates(strata: pd.DataFrame, y: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Estimated totals of y of all kernels, shape (draws,)."""
    first = _night(0)
    estimate = np.zeros(draws)
    for kernel, rows in strata.groupby("kernel_id"):
        mine = first.kernel == kernel
        launches = first.duration_ns[mine], first.config[mine], y[mine]
        estimate += [_estimate_of_kernel(rows, *launches, rng) for _ in range(draws)]
    return estimate


def _estimate_of_kernel(
    strata: pd.DataFrame, x: IntArray, config: IntArray, y: FloatArray, rng: np.random.Generator
) -> float:
    """Estimated total of y from one sample, by the definition of both designs, launch by launch."""
    estimate = 0.0
    for row in strata.to_dict("records"):
        inside = (x >= row["lower_ns"]) & (x <= row["upper_ns"])
        if row["launch_config_ids"] is not None:
            inside &= np.isin(config, row["launch_config_ids"])
        own, mine, m = x[inside], y[inside], int(row["n_samples"])
        assert own.size == row["n_population"]
        order = rng.permutation(own.size)
        if row["is_pps"]:
            ends = np.cumsum(own[order])
            points = (np.arange(m) + rng.random()) * (ends[-1] / m)
            drawn = order[np.searchsorted(ends, points, side="right")]
            estimate += float(np.sum(mine[drawn] / (m * own[drawn])) * ends[-1])
        else:
            estimate += float(own.size / m * mine[order[:m]].sum())
    return estimate


@pytest.mark.parametrize(("guarantee", "epsilon"), [("total", 0.05), ("transfer", 0.02)])
def test_a_plan_of_two_nights_is_unbiased_and_within_its_bound_on_the_second(
    guarantee: str, epsilon: float
) -> None:
    plan = _plan(guarantee, epsilon)
    assert plan.reason is None
    assert plan.strata["is_pps"].any()
    assert plan.strata["n_population"].sum() == _night(0).kernel.size
    assert plan.lower_bound_ns <= plan.sampled_time_ns
    assert plan.optimality_gap < 0.03
    y = _night(1).duration_ns.astype(np.float64)
    error = _estimates(plan.strata, y, DRAWS, np.random.default_rng(SEED)) / y.sum() - 1
    share, mean_error = float(np.mean(np.abs(error) <= epsilon)), error.std() / np.sqrt(DRAWS)
    mc = np.sqrt(0.05 * 0.95 / DRAWS)
    print(
        f"seed {SEED}, {guarantee}: bias {error.mean():.5f} +- {mean_error:.5f}, coverage {share} +- {mc:.3f}"
    )
    assert abs(error.mean()) < 4 * mean_error
    assert share >= 0.95 - 3 * mc
    # The variance it was planned with, up to what shrinkage and calibration left unused.
    assert error.std() * Z95 <= plan.planned_relative_error * 1.15


def test_the_bound_holds_on_nights_that_the_plan_has_not_seen() -> None:
    plan, rng = _plan("transfer", 0.02), np.random.default_rng(SEED)
    errors = []
    for night in range(2, 22):
        y = _night(night).duration_ns.astype(np.float64)
        errors.append(_estimates(plan.strata, y, 15, rng) / y.sum() - 1)
    error = np.concatenate(errors)
    share = float(np.mean(np.abs(error) <= 0.02))
    print(
        f"seed {SEED}, nights 2 to 21, 300 draws: coverage {share} +- {np.sqrt(share * (1 - share) / 300):.3f}"
    )
    assert share >= 0.92


def test_per_kernel_binds_every_kernel_on_the_second_night() -> None:
    plan = _plan("per-kernel", 0.05)
    assert plan.reason is None
    first, second = _night(0), _night(1)
    draws, rng = 200, np.random.default_rng(SEED)
    shares = {}
    for kernel, strata in plan.strata.groupby("kernel_id"):
        y = np.where(first.kernel == kernel, second.duration_ns, 0).astype(np.float64)
        error = _estimates(strata, y, draws, rng) / y.sum() - 1
        shares[kernel] = float(np.mean(np.abs(error) <= 0.05))
    mean, worst = float(np.mean(list(shares.values()))), min(shares.values())
    print(
        f"seed {SEED}: coverage of {len(shares)} kernels mean {mean:.4f}, least {worst:.3f}, {draws} draws each"
    )
    assert mean >= 0.95
    # The least of many binomial shares of a true 0.95: four standard errors.
    assert worst >= 0.95 - 4 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("guarantee", ["transfer", "per-kernel", "worst-case"])
@pytest.mark.parametrize("partners", [0, 1, 3, 999, 1_000])
def test_few_partners_do_not_make_a_kernel_exact(guarantee: str, partners: int) -> None:
    rng = np.random.default_rng(SEED)
    x = np.rint(np.exp(11 + 0.8 * rng.standard_normal(2_000))).astype(np.int64)
    x2 = np.where(np.arange(x.size) < partners, x, 0)
    options = paired_options(PlanOptions(guarantee=guarantee), 0.03)
    plan = plan_pairs(paired_histogram_of(x, x2).assign(kernel_id=1), options)
    # Half of the launches show that times repeat exactly, and a few do not.
    assert plan.strata["is_pps"].any() == (partners >= 1_000)
    if partners <= 3:
        assert plan.planned_relative_error > 0.02


def test_a_stated_noise_is_added_to_what_the_second_profile_shows() -> None:
    """Samples of launches, each with noise of its own and a factor per configuration, against the bound."""
    spread, noise, draws = 0.3, 0.3, 2_000
    rng = np.random.default_rng(SEED)
    config = rng.integers(0, 3, 3_000)
    x = np.rint(np.exp(11 + 0.5 * rng.standard_normal(config.size))).astype(np.int64)
    x2 = np.rint(x * np.exp(0.02 * rng.standard_normal(config.size))).astype(np.int64)
    pairs = paired_histogram_of(x, x2, config).assign(kernel_id=1)
    options = PlanOptions(factor_spread=spread)
    silent = plan_pairs(pairs, paired_options(options, 0.02))
    plan = plan_pairs(pairs, paired_options(options, 0.02, added=noise))
    assert plan.strata["is_pps"].any()
    assert plan.sampled_time_ns > 10 * silent.sampled_time_ns
    sigmas = [np.sqrt(np.log1p(s**2)) for s in (spread, noise)]
    misses = 0
    for _ in range(draws):
        factors, own = (
            np.exp(s * rng.standard_normal(n) - s**2 / 2) for s, n in zip(sigmas, (3, x.size), strict=True)
        )
        y = x2 * factors[config] * own
        estimate = _estimate_of_kernel(plan.strata, x, config, y, rng)
        misses += abs(estimate / y.sum() - 1) > 0.05
    share, mc = 1 - misses / draws, np.sqrt(0.05 * 0.95 / draws)
    print(f"seed {SEED}: coverage {share} +- {mc:.4f}, stated {plan.coverage.share}")
    assert share >= 0.95 - 3 * mc
    assert abs(share - plan.coverage.share) < 4 * mc


def test_worst_case_holds_where_factors_of_kernels_are_worst() -> None:
    rho = 2.0
    plan = _plan("worst-case", 0.05)
    assert plan.reason is None
    assert plan.guaranteed_error <= 0.05
    first, second = _night(0), _night(1)
    rng = np.random.default_rng(SEED)
    kernels = np.unique(first.kernel)
    corner = worst_corner(plan.strata, rho)
    corners = [corner, *({int(k): float(rho ** rng.choice([-1, 1])) for k in kernels} for _ in range(3))]
    assert sorted(set(corner.values())) == [1 / rho, rho]
    for factors in corners:
        y = second.duration_ns * np.array([factors[int(k)] for k in first.kernel])
        error = _estimates(plan.strata, y, DRAWS, rng) / y.sum() - 1
        share = float(np.mean(np.abs(error) <= 0.05))
        print(f"seed {SEED}: coverage {share} +- {np.sqrt(0.05 * 0.95 / DRAWS):.3f} at a corner")
        assert share >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / DRAWS)
