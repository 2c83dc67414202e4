"""The default plan as the tables hold it: strata, bounds and sample reckoned again from the launches."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from conftest import Fleet

from stemroot_spark.config import load_config
from stemroot_spark.drawing import draw
from stemroot_spark.moments import duration_histogram
from stemroot_spark.optimal_planning import optimal_strata

_PLAN, _EPSILON, _SPREAD, _NOISE = "optimal", 0.02, 0.5, 0.04
_OPTIONS = (f"plan.epsilon={_EPSILON}", f"plan.launch_noise={_NOISE}")
_LAUNCH = ["rank", "launch_index"]
_STRATUM = ["kernel_id", "stratum_id"]
Z95 = NormalDist().inv_cdf(0.975)


@pytest.fixture(scope="module")
def header(fleet: Fleet) -> pd.Series:
    fleet.jobs.plan("night", _PLAN, overrides=_OPTIONS)
    return fleet.jobs.table("plans", plan_id=_PLAN).iloc[0]


@pytest.fixture(scope="module")
def strata(fleet: Fleet, header: pd.Series) -> pd.DataFrame:
    found = fleet.jobs.table("strata", plan_id=header["plan_id"])
    return found.sort_values(_STRATUM, ignore_index=True)


@pytest.fixture(scope="module")
def sample(fleet: Fleet, header: pd.Series) -> pd.DataFrame:
    return fleet.jobs.table("sample_manifest", plan_id=header["plan_id"])


@pytest.fixture(scope="module")
def launches(fleet: Fleet, strata: pd.DataFrame) -> pd.DataFrame:
    """Planned launches, each with the one stratum that it lies in."""
    kernels = fleet.jobs.table("kernels")
    found = fleet.jobs.table("kernel_launches", run_id="night")
    found = found[found["kernel_id"].isin(kernels[~kernels["is_communication"]]["kernel_id"])].copy()
    found["stratum_id"], hits = -1, np.zeros(len(found), dtype=int)
    for row in strata.itertuples():
        inside = (found["kernel_id"] == row.kernel_id) & found["launch_config_id"].isin(row.launch_config_ids)
        inside &= found["duration_ns"].between(row.lower_ns, row.upper_ns)
        hits += inside
        found.loc[inside, "stratum_id"] = row.stratum_id
    assert (hits == 1).all()
    return found


def test_the_header_is_of_the_default_method(header: pd.Series) -> None:
    assert (header["method"], header["guarantee"], header["factor_spread"]) == (
        "optimal",
        "transfer",
        _SPREAD,
    )
    assert (header["launch_noise"], header["launch_noise_source"]) == (_NOISE, "option")


def test_strata_have_the_moments_of_their_launches(launches: pd.DataFrame, strata: pd.DataFrame) -> None:
    assert len(strata) > strata["kernel_id"].nunique()
    groups = launches.groupby(_STRATUM)
    rows = strata.set_index(_STRATUM)
    x = groups["duration_ns"]
    assert x.size().sort_index().equals(rows["n_population"].rename(None).astype("int64"))
    np.testing.assert_allclose(x.mean().sort_index(), rows["mean_ns"], rtol=1e-9)
    for key, mine in groups:
        row, times = rows.loc[key], mine["duration_ns"].to_numpy(dtype=np.float64)
        n = times.size
        if n == 1:
            assert row["model_stddev_ns"] == 0
            continue
        of_config = (mine.groupby("launch_config_id")["duration_ns"].sum().astype(float) ** 2).sum()
        squares = (times**2).sum()
        expected = (
            times.var(ddof=1)
            + _SPREAD**2 * (squares - of_config / n) / (n - 1)
            + _NOISE**2 * (1 + _SPREAD**2) * squares / n
        )
        assert row["model_stddev_ns"] ** 2 == pytest.approx(expected, rel=1e-6)


def test_the_plan_keeps_its_bound_and_is_no_cheaper_than_possible(
    launches: pd.DataFrame, strata: pd.DataFrame, header: pd.Series
) -> None:
    n, m, s = (strata[name].astype(float) for name in ("n_population", "n_samples", "model_stddev_ns"))
    total = float(launches["duration_ns"].sum())
    variance = (n * s**2 * (n - m) / m).sum()
    assert variance <= (_EPSILON * total / Z95) ** 2 * (1 + 1e-9)
    assert header["planned_relative_error"] == pytest.approx(Z95 * np.sqrt(variance) / total, rel=1e-9)
    cost = float((m * strata["mean_ns"]).sum())
    assert header["sampled_time_ns"] == pytest.approx(cost, rel=1e-12)
    assert header["speedup"] == pytest.approx(total / cost, rel=1e-12)
    assert header["lower_bound_ns"] <= cost
    assert header["optimality_gap"] == pytest.approx(1 - header["lower_bound_ns"] / cost, abs=1e-12)
    assert header["coverage"] >= 0.95


def test_the_sample_weighs_as_much_as_the_launches(
    launches: pd.DataFrame, strata: pd.DataFrame, sample: pd.DataFrame
) -> None:
    sizes = launches.groupby("kernel_id").size()
    weights = sample.groupby("kernel_id")["weight"].sum()
    np.testing.assert_allclose(weights[sizes.index], sizes, rtol=1e-9)
    drawn = sample.groupby(_STRATUM).size().sort_index()
    assert drawn.tolist() == strata["n_samples"].tolist()
    both = sample.merge(launches, on=[*_LAUNCH, *_STRATUM, "kernel_invocation", "duration_ns"])
    assert len(both) == len(sample)


def test_neither_strata_nor_sample_depend_on_partitions(
    fleet: Fleet, launches: pd.DataFrame, strata: pd.DataFrame, sample: pd.DataFrame
) -> None:
    config = load_config(overrides=_OPTIONS)
    columns = ["run_id", *_LAUNCH, "kernel_invocation", "kernel_id", "launch_config_id", "duration_ns"]
    shuffled = fleet.jobs.spark.createDataFrame(launches[columns].sample(frac=1, random_state=5)).persist()
    names = [*_STRATUM, "lower_ns", "upper_ns", "n_population", "n_samples", "mean_ns", "model_stddev_ns"]
    for partitions in (1, 7):
        rows = shuffled.repartition(partitions)
        chosen = optimal_strata(duration_histogram(rows), strata["kernel_id"].nunique(), config.plan)
        pd.testing.assert_frame_equal(
            chosen.strata[names], strata[names], check_exact=True, check_dtype=False
        )
        drawn = draw(
            rows, chosen.strata, run_id="night", seed=config.plan.seed, config=config.draw
        ).toPandas()
        keys = [*_LAUNCH, *_STRATUM]
        assert set(drawn[keys].itertuples(index=False)) == set(sample[keys].itertuples(index=False))
    shuffled.unpersist()
