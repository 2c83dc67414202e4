"""Plans and samples: weights, bounds, and a draw that anyone can repeat from the tables."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from conftest import STEM_ROOT, Fleet
from pyspark.sql import DataFrame
from support import Jobs

from stemroot_spark.config import DrawConfig, load_config
from stemroot_spark.drawing import draw
from stemroot_spark.errors import UnknownIdError
from stemroot_spark.moments import duration_histogram
from stemroot_spark.root_planning import allocate_strata, split_histogram

Z95 = NormalDist().inv_cdf(0.975)
_LAUNCH = ["rank", "launch_index"]


def _bounds(strata: pd.DataFrame, z: float = Z95, epsilon: float = 0.05) -> pd.DataFrame:
    """Per kernel V recomputed from its strata, and the bound V* = (epsilon T / z)^2."""
    n, m, s = (strata[name].astype(float) for name in ("n_population", "n_samples", "stddev_ns"))
    parts = pd.DataFrame(
        {"kernel_id": strata["kernel_id"], "v": n**2 * s**2 * (1 / m - 1 / n), "t": n * strata["mean_ns"]}
    )
    sums = parts.groupby("kernel_id").sum()
    return sums.assign(bound=(epsilon * sums["t"] / z) ** 2)


def _planned(jobs: Jobs, run_id: str) -> pd.DataFrame:
    """Launches of the kernels that are no communication."""
    launches = jobs.table("kernel_launches", run_id=run_id)
    kernels = jobs.table("kernels")
    return launches[launches["kernel_id"].isin(kernels[~kernels["is_communication"]]["kernel_id"])]


def _draw_hash(seed: int, run_id: str, rank: int, launch_index: int) -> int:
    """xxhash64 chained over the values from seed 42 on, signed, as Spark documents it."""
    digest = 42
    for part in (
        struct.pack("<q", seed),
        run_id.encode(),
        struct.pack("<i", rank),
        struct.pack("<q", launch_index),
    ):
        digest = xxhash.xxh64_intdigest(part, seed=digest)
    return digest - 2**64 if digest >= 2**63 else digest


def _smallest_hashes(
    launches: pd.DataFrame, strata: pd.DataFrame, seed: int, run_id: str
) -> set[tuple[int, int, int]]:
    hashes = [_draw_hash(seed, run_id, r, i) for r, i in launches[_LAUNCH].itertuples(index=False)]
    launches = launches.assign(hash=hashes)
    chosen = set()
    for stratum in strata.itertuples():
        inside = launches[
            (launches["kernel_id"] == stratum.kernel_id)
            & launches["duration_ns"].between(stratum.lower_ns, stratum.upper_ns)
        ]
        assert len(inside) == stratum.n_population
        for row in inside.nsmallest(stratum.n_samples, "hash").itertuples():
            chosen.add((row.rank, row.launch_index, stratum.stratum_id))
    return chosen


@pytest.fixture(scope="module")
def strata(fleet: Fleet) -> pd.DataFrame:
    return fleet.jobs.table("strata", plan_id="plan")


@pytest.fixture(scope="module")
def sample(fleet: Fleet) -> pd.DataFrame:
    return fleet.jobs.table("sample_manifest", plan_id="plan")


def test_weights_of_a_kernel_sum_to_its_launches(fleet: Fleet, sample: pd.DataFrame) -> None:
    launches = _planned(fleet.jobs, "night").groupby("kernel_id").size()
    weights = sample.groupby("kernel_id")["weight"].sum()
    assert set(weights.index) == set(launches.index)
    np.testing.assert_allclose(weights, launches[weights.index], rtol=1e-9)
    np.testing.assert_allclose(sample["weight"] * sample["inclusion_probability"], 1, rtol=1e-12)


def test_strata_partition_the_launches_of_every_kernel(fleet: Fleet, strata: pd.DataFrame) -> None:
    planned = _planned(fleet.jobs, "night")
    for kernel_id, mine in strata.groupby("kernel_id"):
        mine = mine.sort_values("stratum_id")
        assert mine["stratum_id"].tolist() == list(range(len(mine)))
        assert (mine["lower_ns"].to_numpy()[1:] > mine["upper_ns"].to_numpy()[:-1]).all()
        durations = planned[planned["kernel_id"] == kernel_id]["duration_ns"]
        for row in mine.itertuples():
            inside = durations[durations.between(row.lower_ns, row.upper_ns)].to_numpy(dtype=np.float64)
            assert (inside.min(), inside.max(), len(inside)) == (row.lower_ns, row.upper_ns, row.n_population)
            assert row.mean_ns == pytest.approx(inside.mean(), rel=1e-9)
            spread = inside.std(ddof=1) if len(inside) > 1 else 0.0
            assert row.stddev_ns == pytest.approx(spread, rel=1e-6, abs=1e-6 * inside.mean())
        assert mine["n_population"].sum() == len(durations)


def test_every_kernel_keeps_its_variance_bound(strata: pd.DataFrame) -> None:
    bounds = _bounds(strata)
    assert (bounds["v"] <= bounds["bound"] * (1 + 1e-9)).all()
    assert (strata["n_samples"] >= 1).all()
    # One sample fewer anywhere would break it, or the stratum has one sample only.
    for i in strata.index[strata["n_samples"] > 1]:
        fewer = strata[strata["kernel_id"] == strata["kernel_id"][i]].copy()
        fewer.loc[i, "n_samples"] -= 1
        assert (_bounds(fewer)["v"] > _bounds(fewer)["bound"]).all()


def test_the_header_says_what_strata_and_sample_say(
    fleet: Fleet, strata: pd.DataFrame, sample: pd.DataFrame
) -> None:
    header = fleet.jobs.table("plans", plan_id="plan").iloc[0]
    planned = _planned(fleet.jobs, "night")
    everything = fleet.jobs.table("kernel_launches", run_id="night")
    total = int(planned["duration_ns"].sum())
    assert header["total_time_ns"] == total
    assert header["excluded_time_ns"] == everything["duration_ns"].sum() - total > 0
    assert header["dropped_time_ns"] == 0
    assert (header["n_launches"], header["n_kernels"]) == (len(planned), planned["kernel_id"].nunique())
    assert (header["n_strata"], header["n_samples"]) == (len(strata), len(sample))
    assert len(sample) == strata["n_samples"].sum()
    cost = (strata["n_samples"] * strata["mean_ns"]).sum()
    assert header["sampled_time_ns"] == pytest.approx(cost, rel=1e-12)
    assert header["speedup"] == pytest.approx(total / cost, rel=1e-12)
    error = Z95 * np.sqrt(_bounds(strata)["v"].sum()) / total
    assert header["planned_relative_error"] == pytest.approx(error, rel=1e-9)


def test_accepted_splits_are_the_inner_nodes_of_the_strata(fleet: Fleet, strata: pd.DataFrame) -> None:
    decisions = fleet.jobs.table("split_decisions", plan_id="plan")
    accepted = decisions[decisions["accepted"]].groupby("kernel_id").size()
    leaves = strata.groupby("kernel_id").size()
    assert (leaves - 1 == accepted.reindex(leaves.index, fill_value=0)).all()
    assert (
        decisions[decisions["accepted"]]["cost_after"] <= decisions[decisions["accepted"]]["cost_before"]
    ).all()


def test_the_sample_is_the_smallest_hashes_of_every_stratum(
    fleet: Fleet, strata: pd.DataFrame, sample: pd.DataFrame
) -> None:
    expected = _smallest_hashes(_planned(fleet.jobs, "night"), strata, 1, "night")
    assert {tuple(row) for row in sample[[*_LAUNCH, "stratum_id"]].itertuples(index=False)} == expected
    assert len(sample) == len(expected)


def test_manifest_rows_are_rows_of_the_launches(fleet: Fleet, sample: pd.DataFrame) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    names = fleet.jobs.table("kernels").set_index("kernel_id")["kernel_name"]
    joined = sample.merge(launches, on=[*_LAUNCH, "kernel_id"], suffixes=("", "_there"))
    assert len(joined) == len(sample)
    for column in ("duration_ns", "kernel_invocation", "run_id"):
        assert (joined[column] == joined[f"{column}_there"]).all()
    assert (sample["kernel_name"] == sample["kernel_id"].map(names)).all()
    assert (sample["warmup_launches"] == 0).all()


@pytest.fixture(scope="module")
def plan_of(fleet: Fleet) -> Callable[..., tuple[pd.DataFrame, pd.DataFrame]]:
    """Strata and sample from launches, by the functions the plan stage is made of."""

    def plan_of(
        launches: DataFrame, draw_config: DrawConfig, seed: int = 1
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        config = load_config(overrides=STEM_ROOT).plan
        rows = split_histogram(duration_histogram(launches), config).where("is_leaf").toPandas()
        strata = allocate_strata(rows, config)
        sample = draw(launches, strata, run_id="night", seed=seed, config=draw_config).toPandas()
        keys = ["kernel_id", "stratum_id"]
        return strata.sort_values(keys, ignore_index=True), sample.sort_values(
            [*keys, *_LAUNCH], ignore_index=True
        )

    return plan_of


def test_plan_and_sample_do_not_depend_on_partitions_or_margins(
    fleet: Fleet, sample: pd.DataFrame, strata: pd.DataFrame, plan_of: Callable[..., Any]
) -> None:
    spark = fleet.jobs.spark
    wanted = _planned(fleet.jobs, "night")
    columns = ["run_id", *_LAUNCH, "kernel_invocation", "kernel_id", "launch_config_id", "duration_ns"]
    shuffled = wanted[columns].sample(frac=1, random_state=7)
    launches = spark.createDataFrame(shuffled).persist()
    defaults = load_config().draw
    none = DrawConfig(margin_sigma=0.0, margin_constant=0.0)
    stored = strata.sort_values(["kernel_id", "stratum_id"], ignore_index=True)
    drawn = sample.sort_values(["kernel_id", "stratum_id", *_LAUNCH], ignore_index=True)
    for partitions, margins in ((1, none), (7, defaults), (64, none)):
        found_strata, found_sample = plan_of(launches.repartition(partitions), margins)
        names = [
            "kernel_id",
            "stratum_id",
            "lower_ns",
            "upper_ns",
            "n_population",
            "n_samples",
            "mean_ns",
            "stddev_ns",
        ]
        pd.testing.assert_frame_equal(found_strata[names], stored[names], check_exact=True, check_dtype=False)
        pd.testing.assert_frame_equal(
            found_sample[[*_LAUNCH, "kernel_id", "stratum_id", "weight"]],
            drawn[[*_LAUNCH, "kernel_id", "stratum_id", "weight"]],
            check_exact=True,
            check_dtype=False,
        )
    launches.unpersist()


def test_another_seed_draws_another_sample_of_the_same_strata(
    fleet: Fleet, strata: pd.DataFrame, sample: pd.DataFrame
) -> None:
    launches = fleet.jobs.warehouse().read("kernel_launches").where("run_id = 'night'")
    seed = -(2**63)
    other = draw(launches, strata, run_id="night", seed=seed, config=load_config().draw).toPandas()
    assert len(other) == len(sample)
    found = {tuple(row) for row in other[[*_LAUNCH, "stratum_id"]].itertuples(index=False)}
    assert found == _smallest_hashes(_planned(fleet.jobs, "night"), strata, seed, "night")
    assert found != {tuple(row) for row in sample[[*_LAUNCH, "stratum_id"]].itertuples(index=False)}


def test_strata_of_whole_configurations_are_drawn_from_these_alone(fleet: Fleet) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    sizes = launches.groupby("kernel_id")["launch_config_id"].nunique()
    kernel_id = sizes.idxmax()
    mine = launches[launches["kernel_id"] == kernel_id]
    configs = sorted(mine["launch_config_id"].unique())
    assert len(configs) >= 3
    groups = [configs[:1], configs[1:]]
    populations = [int(mine["launch_config_id"].isin(group).sum()) for group in groups]
    strata = pd.DataFrame(
        {
            "kernel_id": kernel_id,
            "stratum_id": [0, 1],
            "launch_config_ids": [[int(c) for c in group] for group in groups],
            "lower_ns": 1,
            "upper_ns": int(mine["duration_ns"].max()),
            "n_population": populations,
            "n_samples": [1, populations[1] + 5],
        }
    )
    frame = fleet.jobs.warehouse().read("kernel_launches").where("run_id = 'night'")
    found = draw(frame, strata, run_id="night", seed=1, config=load_config().draw).toPandas()
    assert found.groupby("stratum_id").size().to_dict() == {0: 1, 1: populations[1]}
    config_of = mine.set_index(_LAUNCH)["launch_config_id"]
    for row in found.itertuples():
        assert config_of[row.rank, row.launch_index] in groups[row.stratum_id]
    assert (found[found["stratum_id"] == 1]["weight"] == 1).all()


# The published method.


def test_the_published_method_reaches_its_published_speedup_on_a_real_trace(real: Jobs) -> None:
    options = ["plan.method=stem-root-paper", "plan.communication=include"]
    summary = real.plan("h100", "paper", overrides=options)
    assert (summary["n_launches"], summary["n_kernels"]) == (4_010, 27)
    assert summary["speedup"] == pytest.approx(18.8, rel=0.10)
    strata = real.table("strata", plan_id="paper")
    empty = strata[strata["n_samples"] == 0]
    assert (empty["lower_ns"] == empty["upper_ns"]).all()
    dropped = (empty["n_population"] * empty["mean_ns"]).sum()
    assert summary["dropped_time_ns"] == pytest.approx(dropped, abs=0.5)


def test_launches_of_equal_durations_vanish_from_the_published_method_only(
    fleet: Fleet, scratch: Path
) -> None:
    jobs = fleet.jobs
    _write_equal_durations(scratch / "trace")
    jobs.ingest("equal", scratch / "trace")
    jobs.moments("equal")
    paper = jobs.plan("equal", "paper", overrides=["plan.method=stem-root-paper"])
    kept = jobs.plan("equal", "kept", overrides=STEM_ROOT)
    # Kernel a: 300 x 1,000 ns and 200 x 50,000 ns; kernel b: 100 x 7,000 ns.
    total = 300 * 1_000 + 200 * 50_000 + 100 * 7_000
    assert paper["total_time_ns"] == kept["total_time_ns"] == total
    assert paper["dropped_time_ns"] == total
    assert paper["dropped_time_share"] == 1
    assert (paper["n_samples"], kept["n_samples"]) == (0, 3)
    assert paper["speedup"] is None
    assert kept["dropped_time_ns"] == 0
    assert kept["sampled_time_ns"] == 1_000 + 50_000 + 7_000
    assert kept["planned_relative_error"] == 0
    weights = jobs.table("sample_manifest", plan_id="kept").sort_values("duration_ns")["weight"]
    assert weights.tolist() == [300, 100, 200]


def _write_equal_durations(folder: Path) -> None:
    durations = [1_000] * 300 + [50_000] * 200 + [7_000] * 100
    start = np.cumsum([0, *durations[:-1]])
    folder.mkdir()
    table = {
        "start": start,
        "end": start + durations,
        "demangledName": [1] * 500 + [2] * 100,
        "correlationId": np.arange(600),
    }
    pq.write_table(pa.table(table), folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    strings = pa.table({"id": [1, 2], "value": ["a", "b"]})
    pq.write_table(strings, folder / "StringIds.parquet")


def test_an_unknown_run_is_refused(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    with pytest.raises(UnknownIdError, match=r"--run-id nights is not in table runs.*Known: .*night"):
        fleet.jobs.plan("nights", "p2")
    with pytest.raises(UnknownIdError, match="--run-id nights is not in table runs"):
        fleet.jobs.moments("nights")
    assert fleet.jobs.versions() == before
