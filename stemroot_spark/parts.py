"""Parts of kernels with strata of their own: first launches, phases, or groups of ranks.

A part is planned as if it were a kernel: its launches carry a key of their own from the histogram to the draw, and get
their kernel's name back at the end. So neither planner nor draw know of parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import PlanConfig
from stemroot_spark.errors import UsageError
from stemroot_spark.first_launches import STEPS, first_steps
from stemroot_spark.local_rows import local_rows

FIRST_LAUNCHES, PHASE, RANK_GROUP = "first-launches", "phase", "rank-group"
_NAMES = ["kernel_id", "key", "part", "part_name"]
_UNKNOWN_PHASE = "(unknown)"
# Ranks whose launches tell how many first ones differ.
_RANKS = 8


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
    names = found.assign(part=part, part_name=found["phase"].fillna(_UNKNOWN_PHASE))
    return Parts(launches.withColumn("kernel_id", key), names[_NAMES])


def _rank_groups(launches: DataFrame, size: int) -> Parts:
    group = F.floor(F.col("rank") / size)
    key = F.xxhash64("kernel_id", F.lit(RANK_GROUP), group)
    found = launches.select("kernel_id", key.alias("key"), group.alias("ranks")).distinct().toPandas()
    first = found["ranks"].astype("int64") * size
    names = found.assign(
        part=[f"rank >= {r} AND rank < {r + size}" for r in first],
        part_name=[f"{r}-{r + size - 1}" if size > 1 else str(r) for r in first],
    )
    return Parts(launches.withColumn("kernel_id", key), names[_NAMES])


def _first_launches(launches: DataFrame) -> Parts:
    steps = step_moments(launches.where(F.col("rank") < _RANKS)).toPandas()
    rows = []
    for kernel_id, mine in steps.groupby("kernel_id", sort=True):
        count = first_steps(mine)
        if count:
            name = "iteration" if mine["has_iterations"].iloc[0] else "kernel_invocation"
            rows.append((int(str(kernel_id)), name, count))
    firsts = local_rows(launches.sparkSession, rows, "kernel_id BIGINT, step_name STRING, first_steps INT")
    firsts = firsts.withColumn("first_key", F.xxhash64("kernel_id", F.lit(FIRST_LAUNCHES)))
    is_first = F.when(F.col("step_name") == "iteration", F.col("iteration")).otherwise(
        F.col("kernel_invocation")
    ) < F.col("first_steps")
    keyed = (
        launches.join(F.broadcast(firsts), "kernel_id", how="left")
        .withColumn("kernel_id", F.when(is_first, F.col("first_key")).otherwise(F.col("kernel_id")))
        .drop("step_name", "first_steps", "first_key")
    )
    names = []
    for row in firsts.collect():
        condition = f"{row['step_name']} < {row['first_steps']}"
        rest = f"{row['step_name']} >= {row['first_steps']}"
        if row["step_name"] == "iteration":
            rest += " OR iteration IS NULL"
        names += [
            (row["kernel_id"], row["first_key"], condition, "first"),
            (row["kernel_id"], row["kernel_id"], rest, "rest"),
        ]
    return Parts(keyed, pd.DataFrame(names, columns=_NAMES))


def step_moments(launches: DataFrame) -> DataFrame:
    """Per kernel and step: observations and moments as ``first_steps`` wants them, and whether steps are iterations."""
    configs = ["kernel_id", "launch_config_id"]
    means = launches.groupBy(*configs).agg(F.avg("duration_ns").alias("config_mean_ns"))
    relative = F.ln(F.col("duration_ns") / F.col("config_mean_ns"))
    observations = (
        launches.join(F.broadcast(means), configs, how="inner")
        .withColumn("relative", relative)
        .withColumn("step", F.coalesce(F.col("iteration").cast("bigint"), F.col("kernel_invocation")))
        .groupBy("kernel_id", "rank", "step")
        .agg(F.avg("relative").alias("value"), F.max("iteration").isNotNull().alias("has_iterations"))
    )
    return observations.groupBy("kernel_id", F.least("step", F.lit(STEPS)).alias("step")).agg(
        F.count("*").alias("n"),
        _rounded(F.avg("value")).alias("mean_log"),
        _rounded(F.var_pop("value")).alias("variance_log"),
        F.bool_or("has_iterations").alias("has_iterations"),
    )


def _rounded(value: Column) -> Column:
    """Digits that do not depend on the order in which partitions are merged."""
    return F.round(value, 9)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
