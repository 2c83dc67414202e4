"""Parts of kernels with strata of their own: first launches that a change point finds, and phases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from support import Jobs

from stemroot_spark.config import load_config
from stemroot_spark.drawing import draw
from stemroot_spark.errors import UsageError
from stemroot_spark.fleet import FleetSpec, WriterOptions, write_fleet
from stemroot_spark.moments import duration_histogram
from stemroot_spark.optimal_planning import optimal_strata
from stemroot_spark.parts import Parts, parts_of, with_certain_beginnings
from stemroot_spark.planned import PlannedStrata

# Ids that no float can hold.
_WARM, _STEADY = 7_183_098_287_330_337_997, -7_158_908_109_100_570_695


def _launches() -> pd.DataFrame:
    """Kernel 7 is slow in its first two iterations on both ranks, kernel 8 is not; two phases."""
    rng = np.random.default_rng(4)
    frames = []
    for rank in range(2):
        iteration = np.repeat(np.arange(40), 10)
        for kernel in (_WARM, _STEADY):
            slow = np.where((iteration < 2) & (kernel == _WARM), 1.5, 1.0)
            durations = 50_000 * slow * np.exp(0.03 * rng.standard_normal(iteration.size))
            frames.append(
                pd.DataFrame(
                    {
                        "run_id": "night",
                        "rank": rank,
                        "launch_index": np.arange(iteration.size) * 2 + (kernel == _STEADY),
                        "kernel_invocation": np.arange(iteration.size),
                        "kernel_id": kernel,
                        "launch_config_id": 1,
                        "duration_ns": np.rint(durations).astype(np.int64),
                        "iteration": iteration,
                        "phase": np.where(np.arange(iteration.size) % 10 < 6, "forward", "it's back"),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True).astype({"rank": "int32", "iteration": "int32"})


@pytest.mark.parametrize(
    ("strata_by", "expected"),
    [
        (
            "first-launches",
            {(_WARM, "iteration < 2"), (_WARM, "(iteration >= 2 OR iteration IS NULL)"), (_STEADY, None)},
        ),
        (
            "phase",
            {(k, p) for k in (_WARM, _STEADY) for p in ("phase = 'forward'", r"phase = 'it\'s back'")},
        ),
        (
            "rank-group",
            {(k, f"rank >= {r} AND rank < {r + 1}") for k in (_WARM, _STEADY) for r in range(2)},
        ),
    ],
)
def test_every_part_is_planned_and_drawn_by_itself(
    spark: SparkSession, strata_by: str, expected: set[tuple[int, str | None]]
) -> None:
    config = load_config(
        overrides=["plan.epsilon=0.01", f"plan.strata_by={strata_by}", "plan.ranks_per_group=1"]
    )
    source = spark.createDataFrame(_launches()).repartition(3).persist()
    parts = parts_of(source, config.plan)
    chosen = optimal_strata(duration_histogram(parts.launches), 2, config.plan)
    strata = parts.named(chosen.strata)
    found = strata[["kernel_id", "part"]].itertuples(index=False)
    assert {(int(k), p) for k, p in found} == expected
    assert not strata.duplicated(["kernel_id", "stratum_id"]).any()
    sample = draw(parts.launches, chosen.strata, run_id="night", seed=1, config=config.draw)
    named = parts.named_sample(sample, strata).toPandas()
    assert len(named) == strata["n_samples"].sum()
    source.createOrReplaceTempView("population")
    for row in strata.to_dict("records"):
        condition = row["part"] or "true"
        inside = spark.sql(
            f"SELECT rank, launch_index FROM population WHERE kernel_id = {row['kernel_id']} AND {condition} "
            f"AND duration_ns BETWEEN {row['lower_ns']} AND {row['upper_ns']}"
        ).toPandas()
        assert len(inside) == row["n_population"]
        mine = named[(named["kernel_id"] == row["kernel_id"]) & (named["stratum_id"] == row["stratum_id"])]
        assert len(mine) == row["n_samples"]
        assert len(mine.merge(inside, on=["rank", "launch_index"])) == len(mine)
    weights = named.groupby("kernel_id")["weight"].sum()
    np.testing.assert_allclose(weights, 800, rtol=1e-9)
    source.unpersist()


@pytest.mark.parametrize(
    ("n_setup", "n_slow", "expected"),
    [
        (0, 2, ("iteration < 102", "(iteration >= 102 OR iteration IS NULL)")),
        (
            3,
            0,
            (
                "(iteration < 100 OR iteration IS NULL AND kernel_invocation < 3)",
                "(iteration >= 100 OR iteration IS NULL AND kernel_invocation >= 3)",
            ),
        ),
        (
            3,
            2,
            (
                "(iteration < 102 OR iteration IS NULL AND kernel_invocation < 3)",
                "(iteration >= 102 OR iteration IS NULL AND kernel_invocation >= 3)",
            ),
        ),
        (0, 0, None),
    ],
)
def test_beginnings_of_a_window_and_of_a_setup(
    spark: SparkSession, n_setup: int, n_slow: int, expected: tuple[str, str] | None
) -> None:
    """Iterations count from 100, n_setup launches come before them, and two between them belong to none."""
    frame = _launches()
    frame = frame[frame["kernel_id"] == _STEADY].astype({"iteration": "Int32"})
    step = frame["kernel_invocation"]
    frame["iteration"] = (100 + (step - n_setup) // 10).where((step >= n_setup) & (step // 2 != 100))
    is_first = frame["iteration"].fillna(0 if n_setup else 500).lt(100 + n_slow) & (step // 2 != 100)
    frame.loc[is_first, "duration_ns"] *= 3
    source = _frame(spark, frame)
    parts = parts_of(source, load_config(overrides=["plan.strata_by=first-launches"]).plan)
    if expected is None:
        assert parts.names.empty
        return
    assert tuple(parts.names["part"]) == expected
    keyed = parts.launches.select("rank", "launch_index", "kernel_id").toPandas()
    keys = parts.names.set_index("part_name")["key"]
    marked = frame.merge(keyed.rename(columns={"kernel_id": "key"}), on=["rank", "launch_index"])
    slow = marked["duration_ns"] > 100_000
    assert slow.sum() == 2 * (n_setup + 10 * n_slow)
    assert (marked.loc[slow, "key"] == keys["first"]).all()
    assert (marked.loc[~slow, "key"] == keys["rest"]).all()
    source.createOrReplaceTempView("population")
    for part, key in zip(parts.names["part"], parts.names["key"], strict=True):
        count = spark.sql(f"SELECT count(*) AS n FROM population WHERE {part}").toPandas()["n"].iloc[0]
        assert count == (marked["key"] == key).sum()


def test_beginnings_are_taken_whole_where_that_is_cheap() -> None:
    strata = pd.DataFrame(
        {
            "kernel_id": [1, 2, 3, 4],
            "n_population": [10, 1_000, 10, 400],
            "n_samples": [2, 100, 3, 4],
            "mean_ns": [100.0, 100.0, 100.0, 100.0],
            "model_stddev_ns": [10.0, 10.0, 10.0, 10.0],
        }
    )
    names = pd.DataFrame({"key": [1, 3, 4], "part_name": ["first", "rest", "first"]})
    chosen = PlannedStrata(strata, 50_000.0, 0.05, lower_bound_ns=49_000.0, optimality_gap=0.02)
    found = with_certain_beginnings(chosen, Parts(None, names), 0.95)  # type: ignore[arg-type]
    # The ten first launches of kernel 1 add 800 ns of at most 1,000; the 400 of kernel 4 would add 39,600.
    assert found.strata["n_samples"].tolist() == [10, 100, 3, 4]
    assert found.sampled_time_ns == 50_800
    assert found.optimality_gap == pytest.approx(1 - 49_000 / 50_800)
    variance = sum(n * 100.0 * (n - m) / m for n, m in ((1_000, 100), (10, 3), (400, 4)))
    assert found.planned_relative_error == pytest.approx(1.959964 * np.sqrt(variance) / 142_000, rel=1e-6)
    dear = replace(chosen, sampled_time_ns=1_000.0)
    assert with_certain_beginnings(dear, Parts(None, names), 0.95) is dear  # type: ignore[arg-type]


def test_a_plan_with_beginnings_from_traces_to_the_estimate(spark: SparkSession, scratch: Path) -> None:
    """A rank whose first three iterations are slower, planned by first launches and replayed from another night."""
    jobs = Jobs(spark, scratch / "warehouse")
    spec = FleetSpec(ranks=1, layers=1, iterations=24, seed=5)
    for night in (0, 1):
        write_fleet(scratch / f"{night}", replace(spec, night=night), WriterOptions(has_runtime=False))
        jobs.ingest(f"night-{night}", scratch / f"{night}")
    jobs.moments("night-0")
    jobs.plan("night-0", "firsts", overrides=["plan.strata_by=first-launches", "plan.epsilon=0.02"])
    strata, sample = (jobs.table(name, plan_id="firsts") for name in ("strata", "sample_manifest"))
    firsts = strata[strata["part_name"] == "first"]
    assert set(firsts["part"]) <= {f"iteration < {n}" for n in (1, 2, 3)}
    assert len(firsts) > 10
    whole = firsts["n_samples"] == firsts["n_population"]
    assert whole.any()
    header = jobs.table("plans", plan_id="firsts").iloc[0]
    cost = (strata["n_samples"] * strata["mean_ns"]).sum()
    assert header["sampled_time_ns"] == pytest.approx(cost, rel=1e-12)
    assert header["lower_bound_ns"] <= cost
    launches = jobs.table("kernel_launches", run_id="night-0")
    weights = sample.groupby("kernel_id")["weight"].sum()
    sizes = launches.groupby("kernel_id").size()
    np.testing.assert_allclose(weights, sizes[weights.index], rtol=1e-9)
    jobs.import_results("firsts", "replayed", simulator="profile", from_run_id="night-1")
    estimate = jobs.reconstruct("firsts", "replayed")
    other = jobs.table("kernel_launches", run_id="night-1")
    truth = other[other["kernel_id"].isin(weights.index)]["duration_ns"].sum()
    assert estimate["ci_low"] <= truth <= estimate["ci_high"]
    assert estimate["estimate"] == pytest.approx(truth, rel=0.04)


def test_names_of_parts(spark: SparkSession) -> None:
    frame = _launches()
    phase = np.where(frame["phase"] == "forward", "(unknown)", None)
    source = _frame(spark, frame.assign(phase=phase))
    by_rank = load_config(overrides=["plan.strata_by=rank-group", "plan.ranks_per_group=8"]).plan
    assert set(parts_of(source, by_rank).names["part_name"]) == {"0-1"}  # the ranks that there are
    by_phase = load_config(overrides=["plan.strata_by=phase"]).plan
    names = parts_of(source, by_phase).names
    assert set(zip(names["part"], names["part_name"], strict=True)) == {
        ("phase = '(unknown)'", "(unknown)"),
        ("phase IS NULL", "((unknown))"),
    }


def test_phases_are_refused_where_none_are_known(spark: SparkSession) -> None:
    source = _frame(spark, _launches().assign(phase=None))
    with pytest.raises(UsageError, match="no launch of the run has one"):
        parts_of(source, load_config(overrides=["plan.strata_by=phase"]).plan)


def _frame(spark: SparkSession, launches: pd.DataFrame) -> DataFrame:
    """Launches with phases that may be null."""
    schema = ", ".join(f"{n} {t}" for n, t in zip(launches.columns, _TYPES, strict=True))
    return spark.createDataFrame(launches.astype({"phase": "object"}), schema)


_TYPES = ("STRING", "INT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "INT", "STRING")
