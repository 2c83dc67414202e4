"""Parts of kernels with strata of their own: first launches, phases, or groups of ranks.

A part is planned as if it were a kernel: its launches carry a key of their own from the histogram to the draw, and get
their kernel's name back at the end. So neither planner nor draw know of parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stemroot_spark.allocation import normal_quantile
from stemroot_spark.config import PlanConfig
from stemroot_spark.errors import UsageError
from stemroot_spark.first_launches import STEPS, first_steps
from stemroot_spark.local_rows import local_rows
from stemroot_spark.optimal.candidates import stratum_variance
from stemroot_spark.planned import PlannedStrata
from stemroot_spark.ranks import REPRESENTATIVE_RANKS, of_first_ranks

FIRST_LAUNCHES, PHASE, RANK_GROUP = "first-launches", "phase", "rank-group"
_NAMES = ["kernel_id", "key", "part", "part_name"]
# First launches are all taken as far as that adds this share to the sampled time.
_CERTAIN_SHARE = 0.02


@dataclass(frozen=True)
class Parts:
    """``launches`` with a key in place of kernel_id; ``names`` says what the keys mean.

    names: a row per key with kernel_id, key, part, the condition on kernel_launches that the part is (None for the
    whole kernel), and part_name, its name (of the phase, the ranks as 0-7, first or rest; None for the whole kernel).
    """

    launches: DataFrame
    names: pd.DataFrame

    def named(self, strata: pd.DataFrame) -> pd.DataFrame:
        """Strata of keys as strata of kernels: numbered anew, named, and with the old numbers in key columns."""
        # Looked up one by one: a merge would turn 64-bit ids into floats where one is missing.
        names = {int(key): (int(k), *rest) for k, key, *rest in self.names[_NAMES].itertuples(index=False)}
        found = [names.get(int(key), (int(key), None, None)) for key in strata["kernel_id"]]
        joined = strata.rename(columns={"kernel_id": "key", "stratum_id": "key_stratum_id"}).assign(
            kernel_id=[kernel_id for kernel_id, *_ in found],
            part=pd.Series([part for _, part, _ in found], index=strata.index, dtype=object),
            part_name=pd.Series([name for *_, name in found], index=strata.index, dtype=object),
        )
        ordered = joined.sort_values(["kernel_id", "part", "key_stratum_id"], ignore_index=True)
        return ordered.assign(stratum_id=ordered.groupby("kernel_id").cumcount().astype("int32"))

    def named_sample(self, sample: DataFrame, strata: pd.DataFrame) -> DataFrame:
        """The sample of keys as one of kernels; strata as ``named`` returns them."""
        columns = ["key", "key_stratum_id", "kernel_id", "stratum_id"]
        rows = [tuple(int(v) for v in row) for row in strata[columns].itertuples(index=False)]
        names = local_rows(
            sample.sparkSession, rows, "key BIGINT, key_stratum_id INT, kernel_id BIGINT, stratum_id INT"
        )
        keyed = sample.withColumnsRenamed({"kernel_id": "key", "stratum_id": "key_stratum_id"})
        return keyed.join(F.broadcast(names), ["key", "key_stratum_id"], how="inner").drop(
            "key", "key_stratum_id"
        )


def with_certain_beginnings(chosen: PlannedStrata, parts: Parts, confidence: float) -> PlannedStrata:
    """Strata of keys, parts of them by first launches, in which these are all taken where that is cheap.

    A simulator may well answer otherwise for them than for the rest. Strata are taken whole from the shortest on, while
    what that adds stays within a share of the sampled time.
    """
    firsts = set(parts.names.loc[parts.names["part_name"] == "first", "key"])
    strata = chosen.strata
    n, m = strata["n_population"], strata["n_samples"]
    added_ns = ((n - m) * strata["mean_ns"]).where(strata["kernel_id"].isin(firsts)).dropna().sort_values()
    taken = added_ns.index[added_ns.cumsum() <= _CERTAIN_SHARE * chosen.sampled_time_ns]
    if taken.empty:
        return chosen
    whole = strata.assign(n_samples=m.where(~strata.index.isin(taken), n))
    sampled_time_ns = chosen.sampled_time_ns + float(added_ns[taken].sum())
    error = normal_quantile(confidence) * np.sqrt(stratum_variance(whole).sum())
    bound = chosen.lower_bound_ns
    return replace(
        chosen,
        strata=whole,
        sampled_time_ns=sampled_time_ns,
        planned_relative_error=float(error / (n * strata["mean_ns"]).sum()),
        optimality_gap=None if bound is None else max(0.0, 1.0 - bound / sampled_time_ns),
    )


def parts_of(launches: DataFrame, config: PlanConfig) -> Parts:
    """Launches keyed by part of their kernel; UsageError for phases where none are known."""
    if config.strata_by == PHASE:
        return _phases(launches)
    if config.strata_by == RANK_GROUP:
        return _rank_groups(launches, config.ranks_per_group)
    return _first_launches(launches)


def _phases(launches: DataFrame) -> Parts:
    key = F.xxhash64("kernel_id", F.lit(PHASE), F.col("phase").isNull(), F.coalesce("phase", F.lit("")))
    found = launches.select("kernel_id", key.alias("key"), "phase").distinct().toPandas()
    if found["phase"].isna().all():
        raise UsageError("plan.strata_by is phase, but no launch of the run has one; plan without it")
    part = [
        "phase IS NULL" if phase is None else f"phase = {_quoted(phase)}"
        for phase in found["phase"].astype(object).where(found["phase"].notna(), None)
    ]
    names = found.assign(part=part, part_name=found["phase"].fillna(_unknown_phase(set(found["phase"]))))
    return Parts(launches.withColumn("kernel_id", key), names[_NAMES])


def _unknown_phase(phases: set[object]) -> str:
    """Name of the launches without phase, which no phase has."""
    name = "(unknown)"
    while name in phases:
        name = f"({name})"
    return name


def _rank_groups(launches: DataFrame, size: int) -> Parts:
    group = F.floor(F.col("rank") / size)
    key = F.xxhash64("kernel_id", F.lit(RANK_GROUP), group)
    found = (
        launches.groupBy("kernel_id", key.alias("key"), group.alias("ranks"))
        .agg(F.max("rank").alias("last"))
        .toPandas()
    )
    first = found["ranks"].astype("int64") * size
    last = found.groupby("ranks")["last"].transform("max")
    names = found.assign(
        part=[f"rank >= {r} AND rank < {r + size}" for r in first],
        part_name=[f"{r}-{end}" if end > r else str(r) for r, end in zip(first, last, strict=True)],
    )
    return Parts(launches.withColumn("kernel_id", key), names[_NAMES])


def _first_launches(launches: DataFrame) -> Parts:
    steps = step_moments(of_first_ranks(launches, REPRESENTATIVE_RANKS)).toPandas()
    found = [
        _Beginning.of_kernel(int(str(kernel_id)), rows)
        for kernel_id, rows in steps.groupby("kernel_id", sort=True)
    ]
    beginnings = [beginning for beginning in found if beginning is not None]
    firsts = local_rows(
        launches.sparkSession,
        [tuple(beginning) for beginning in beginnings],
        "kernel_id BIGINT, end_iteration BIGINT, first_invocations BIGINT",
    ).withColumn("first_key", F.xxhash64("kernel_id", F.lit(FIRST_LAUNCHES)))
    is_first = F.coalesce(
        F.col("iteration") < F.col("end_iteration"), F.col("kernel_invocation") < F.col("first_invocations")
    )
    keyed = (
        launches.join(F.broadcast(firsts), "kernel_id", how="left")
        .withColumn("kernel_id", F.when(is_first, F.col("first_key")).otherwise(F.col("kernel_id")))
        .drop("end_iteration", "first_invocations", "first_key")
    )
    keys = [row["first_key"] for row in firsts.orderBy("kernel_id").collect()]
    names = []
    for beginning, key in zip(beginnings, keys, strict=True):
        first, rest = beginning.conditions()
        names += [
            (beginning.kernel_id, key, first, "first"),
            (beginning.kernel_id, beginning.kernel_id, rest, "rest"),
        ]
    return Parts(keyed, pd.DataFrame(names, columns=_NAMES))


class _Beginning(NamedTuple):
    """A kernel's first launches: those of iterations before end_iteration, and where the iteration is unknown (all, or
    before the first one) the first_invocations of every rank. end_iteration is None without iterations."""

    kernel_id: int
    end_iteration: int | None
    first_invocations: int

    @classmethod
    def of_kernel(cls, kernel_id: int, steps: pd.DataFrame) -> _Beginning | None:
        """From rows of ``step_moments``; None where the kernel has no beginning of its own."""
        count = first_steps(steps)
        if not count:
            return None
        first = steps["first_iteration"].iloc[0]
        if pd.isna(first):
            return cls(kernel_id, None, count)
        n_setup = int(steps["n_setup"].iloc[0])
        return cls(kernel_id, int(first) + count - (n_setup > 0), n_setup)

    def conditions(self) -> tuple[str, str]:
        """The first launches and the rest, as conditions on kernel_launches."""
        unknown = f"kernel_invocation {{}} {self.first_invocations}"
        if self.end_iteration is None:
            return unknown.format("<"), unknown.format(">=")
        first, rest = f"iteration < {self.end_iteration}", f"iteration >= {self.end_iteration}"
        if not self.first_invocations:
            return first, f"({rest} OR iteration IS NULL)"
        return (
            f"({first} OR iteration IS NULL AND {unknown.format('<')})",
            f"({rest} OR iteration IS NULL AND {unknown.format('>=')})",
        )


def step_moments(launches: DataFrame) -> DataFrame:
    """Per kernel and step: observations and moments as ``first_steps`` wants them.

    Steps are iterations, counted from the kernel's first one; launches before it, as of a setup, are a step of their
    own before all others. Without iterations every launch of a rank is a step. first_iteration is null without
    iterations; n_setup launches of every rank come before the first one.
    """
    by_rank = launches.groupBy("kernel_id", "rank").agg(
        F.min("iteration").cast("bigint").alias("first_iteration"),
        F.min(F.when(F.col("iteration").isNotNull(), F.col("kernel_invocation"))).alias("n_setup"),
    )
    starts = by_rank.groupBy("kernel_id").agg(
        F.min("first_iteration").alias("first_iteration"), F.min("n_setup").alias("n_setup")
    )
    configs = ["kernel_id", "launch_config_id"]
    means = launches.groupBy(*configs).agg(F.avg("duration_ns").alias("config_mean_ns"))
    relative = F.ln(F.col("duration_ns") / F.col("config_mean_ns"))
    has_setup = (F.col("n_setup") > 0).cast("bigint")
    step = (
        F.when(F.col("first_iteration").isNull(), F.col("kernel_invocation"))
        .when(F.col("iteration").isNotNull(), F.col("iteration") - F.col("first_iteration") + has_setup)
        .when(F.col("kernel_invocation") < F.col("n_setup"), F.lit(0))
    )
    observations = (
        launches.join(F.broadcast(means), configs, how="inner")
        .join(F.broadcast(starts), "kernel_id", how="inner")
        .withColumn("relative", relative)
        .withColumn("step", step)
        .where(F.col("step").isNotNull())
        .groupBy("kernel_id", "rank", "step", "first_iteration", "n_setup")
        .agg(F.avg("relative").alias("value"))
    )
    return observations.groupBy(
        "kernel_id", F.least("step", F.lit(STEPS)).alias("step"), "first_iteration", "n_setup"
    ).agg(
        F.count("*").alias("n"),
        _rounded(F.avg("value")).alias("mean_log"),
        _rounded(F.var_pop("value")).alias("variance_log"),
    )


def _rounded(value: Column) -> Column:
    """Digits that do not depend on the order in which partitions are merged."""
    return F.round(value, 9)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
