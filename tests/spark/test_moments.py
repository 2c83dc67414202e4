"""Histograms and moments against integers of numpy and SQL over the sources."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from conftest import Fleet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import stats
from support import Jobs, trace_rows

from stemroot_spark.moments import duration_histogram, exact_sum_of_squares, kernel_moments, rank_moments

_EXACT = ["n", "sum_ns", "sum_sq", "min_ns", "max_ns"]
_BIN = ["kernel_id", "launch_config_id", "bucket"]
SEED = 20_260_311


def _launches(spark: SparkSession, durations: np.ndarray, kernels: int = 3, configs: int = 2) -> DataFrame:
    rng = np.random.default_rng(SEED)
    size = len(durations)
    frame = pd.DataFrame(
        {
            "rank": rng.integers(0, 3, size).astype("int32"),
            "launch_index": np.arange(size),
            "kernel_id": rng.integers(0, kernels, size) - 1,
            "launch_config_id": rng.integers(0, configs, size),
            "duration_ns": durations,
        }
    )
    return spark.createDataFrame(frame)


def _wide_durations(size: int = 3_000) -> np.ndarray:
    """1 ns to 10^13 ns: both sides of every switch between 32-bit squares and decimals, and of bucket edges."""
    rng = np.random.default_rng(SEED)
    fixed = [1, 2, 3, 1023, 1024, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 10**13, 86_400_000_000_000]
    log_uniform = np.exp(rng.uniform(0, np.log(1e13), size)).astype(np.int64)
    edges = [int(2 ** (b / 1024)) + d for b in range(9 * 1024, 20 * 1024, 97) for d in (0, 1)]
    return np.concatenate([np.array(fixed * 3 + edges, dtype=np.int64), np.maximum(log_uniform, 1)])


def _sql_moments(rows: pd.DataFrame) -> pd.DataFrame:
    """n, total, mean, standard deviation (divisor n), min and max by kernel name, by duckdb over the raw rows."""
    raw = pd.DataFrame(
        {
            "kernel_name": rows["kernel_name"].astype(str),
            "duration_ns": (rows["end"] - rows["start"]).astype("int64"),
        }
    )
    with duckdb.connect() as database:
        database.register("raw", raw)
        return database.execute(
            "SELECT kernel_name, count(*) n, sum(duration_ns)::BIGINT total_ns, avg(duration_ns) mean_ns, "
            "stddev_pop(duration_ns) stddev_ns, min(duration_ns) min_ns, max(duration_ns) max_ns, "
            "stddev_samp(duration_ns) sample_stddev_ns FROM raw GROUP BY 1 ORDER BY 1"
        ).df()


def _table_moments(jobs: Jobs, run_id: str) -> pd.DataFrame:
    names = jobs.table("kernels").set_index("kernel_id")["kernel_name"]
    moments = jobs.table("kernel_moments", run_id=run_id)
    return moments.assign(kernel_name=moments["kernel_id"].map(names)).sort_values(
        "kernel_name", ignore_index=True
    )


def _check_moments(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert found["kernel_name"].tolist() == expected["kernel_name"].tolist()
    for column in ("n", "total_ns", "min_ns", "max_ns"):
        assert found[column].tolist() == expected[column].tolist(), column
    for column in ("mean_ns", "stddev_ns"):
        np.testing.assert_allclose(found[column], expected[column], rtol=1e-9, err_msg=column)
    np.testing.assert_allclose(found["cov"], expected["stddev_ns"] / expected["mean_ns"], rtol=1e-9)
    np.testing.assert_allclose(
        found["time_share"], expected["total_ns"] / expected["total_ns"].sum(), rtol=1e-12
    )


def test_moments_of_a_real_run_are_those_of_sql_over_the_source(real: Jobs, shared_data: Path) -> None:
    rows = trace_rows(shared_data / "nsys_sqlite" / "h100_2rank_llm_2026.2.sqlite")
    _check_moments(_table_moments(real, "h100"), _sql_moments(rows))


def test_moments_of_gaussian_are_the_published_ones(real: Jobs) -> None:
    rows = _table_moments(real, "mixed").set_index("kernel_name")
    fan2 = rows.loc[next(name for name in rows.index if name.startswith("Fan2"))]
    assert fan2["n"] == 4_095
    assert fan2["mean_ns"] == pytest.approx(171_168.4, abs=0.05)
    sample_stddev = fan2["stddev_ns"] * np.sqrt(4_095 / 4_094)
    assert sample_stddev == pytest.approx(138_089.0, abs=0.05)


def test_moments_of_a_generated_run_are_those_of_sql_over_the_sources(fleet: Fleet) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    names = fleet.jobs.table("kernels").set_index("kernel_id")["kernel_name"]
    # Rows are compared with the sources in the tests of ingest.
    rows = pd.DataFrame(
        {"kernel_name": launches["kernel_id"].map(names), "start": 0, "end": launches["duration_ns"]}
    )
    _check_moments(_table_moments(fleet.jobs, "night"), _sql_moments(rows))


def test_skewness_and_kurtosis_are_those_of_scipy(fleet: Fleet) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    durations = launches.groupby("kernel_id")["duration_ns"].apply(lambda s: s.to_numpy(dtype=np.float64))
    checked = 0
    for row in fleet.jobs.table("kernel_moments", run_id="night").itertuples():
        x = durations[row.kernel_id]
        if x.min() == x.max():
            assert np.isnan(row.skewness)
            assert np.isnan(row.excess_kurtosis)
            assert row.stddev_ns == 0
            continue
        checked += 1
        assert row.skewness == pytest.approx(stats.skew(x), rel=1e-7, abs=1e-7)
        assert row.excess_kurtosis == pytest.approx(stats.kurtosis(x), rel=1e-7, abs=1e-7)
    assert checked > 20


def test_windows_that_mislead_are_told(fleet: Fleet) -> None:
    """Correlation of successive launches on rank 0, and the first 32 launches of every rank against all, by numpy."""
    rows = fleet.jobs.table("kernel_moments", run_id="night").set_index("kernel_id")
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    biased = set()
    for kernel_id, mine in launches.sort_values("kernel_invocation").groupby("kernel_id"):
        of_rank = mine[mine["rank"] == 0]["duration_ns"].to_numpy(dtype=np.float64)
        ratio = mine[mine["kernel_invocation"] < 32]["duration_ns"].mean() / mine["duration_ns"].mean()
        row = rows.loc[kernel_id]
        assert row["first_window_ratio"] == pytest.approx(ratio, rel=1e-8)
        correlation = np.nan
        if of_rank.size > 2 and np.ptp(of_rank[1:]) > 0 and np.ptp(of_rank[:-1]) > 0:
            correlation = np.corrcoef(of_rank[1:], of_rank[:-1])[0, 1]
            assert row["autocorrelation"] == pytest.approx(correlation, rel=1e-7, abs=1e-7)
        else:
            assert np.isnan(row["autocorrelation"])
        if correlation > 0.3 or abs(ratio - 1) > 0.05:
            biased.add(kernel_id)
    summary = fleet.jobs.moments("night")
    assert summary["n_kernels_windows_biased"] == len(biased) > 0
    share = rows.loc[sorted(biased), "time_share"].sum()
    assert summary["time_share_windows_biased"] == pytest.approx(share, abs=1e-4)


def test_the_tables_hold_the_integers_of_the_launches(fleet: Fleet) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    histogram = fleet.jobs.table("duration_histograms", run_id="night")
    _check_exact(
        histogram,
        launches.assign(bucket=_bucket_in(histogram, launches)),
        _BIN,
        histogram.set_index(_BIN)["reference_ns"],
    )
    ranks = fleet.jobs.table("rank_moments", run_id="night")
    _check_exact(ranks, launches, ["rank", "kernel_id"], None)


def _bucket_in(histogram: pd.DataFrame, launches: pd.DataFrame) -> pd.Series:
    """Bucket of each launch by the [min_ns, max_ns] of the histogram's rows, which must not overlap."""
    keys = ["kernel_id", "launch_config_id"]
    ordered = histogram.sort_values("min_ns")
    found = pd.merge_asof(
        launches.reset_index().sort_values("duration_ns"),
        ordered[[*keys, "min_ns", "max_ns", "bucket"]],
        left_on="duration_ns",
        right_on="min_ns",
        by=keys,
    ).set_index("index")
    assert (found["duration_ns"] <= found["max_ns"]).all()
    return found["bucket"].reindex(launches.index)


def _check_exact(
    found: pd.DataFrame, launches: pd.DataFrame, keys: list[str], reference: pd.Series | None
) -> None:
    """Every integer equals that of Python integers over the launches."""
    groups = launches.groupby(keys)["duration_ns"]
    assert len(found) == groups.ngroups
    by_key = {tuple(row[k] for k in keys): row for row in found[[*keys, *_EXACT]].to_dict("records")}
    for key, values in groups:
        durations = [int(value) for value in values]
        row = by_key[key]
        shift = 0 if reference is None else int(reference[key])
        assert row["n"] == len(durations)
        assert row["sum_ns"] == sum(durations)
        assert int(row["sum_sq"]) == sum((value - shift) ** 2 for value in durations)
        assert (row["min_ns"], row["max_ns"]) == (min(durations), max(durations))


def test_a_histogram_is_exact_from_1_ns_to_a_day_in_any_partitioning(spark: SparkSession) -> None:
    durations = _wide_durations()
    launches = _launches(spark, durations).persist()
    first: pd.DataFrame | None = None
    for partitions in (1, 7, 64):
        spread = launches.repartition(partitions)
        assert spread.rdd.getNumPartitions() == partitions
        found = duration_histogram(spread).toPandas().sort_values(_BIN, ignore_index=True)
        if first is None:
            first = found
        pd.testing.assert_frame_equal(found, first, check_exact=True)
    assert first is not None
    rows = launches.toPandas()
    # ln is not exact, so edges may belong to either side, but 1/1024 octave is kept to 1e-9.
    octaves = np.log2(rows["duration_ns"].to_numpy()) * 1024
    buckets = _bucket_in(first, rows)
    assert np.all(octaves - buckets > -1e-6)
    assert np.all(octaves - buckets < 1 + 1e-6)
    low = first["reference_ns"].to_numpy(dtype=np.float64)
    edge = np.exp2(first["bucket"].to_numpy() / 1024)
    assert np.all(low <= np.maximum(edge, 1) * (1 + 1e-12))
    assert np.all(low > edge * (1 - 1e-12) - 1)
    _check_exact(first, rows.assign(bucket=buckets), _BIN, first.set_index(_BIN)["reference_ns"])


def test_moments_are_exact_from_1_ns_to_a_day(spark: SparkSession) -> None:
    launches = _launches(spark, _wide_durations(300), kernels=2).persist()
    rows = launches.toPandas()
    found = kernel_moments(duration_histogram(launches)).toPandas().set_index("kernel_id")
    for kernel_id, values in rows.groupby("kernel_id")["duration_ns"]:
        durations = [int(value) for value in values]
        n, total = len(durations), sum(durations)
        # n^2 variance = n sum x^2 - (sum x)^2 in whole numbers.
        variance = Decimal(n * sum(x * x for x in durations) - total**2) / n**2
        row = found.loc[kernel_id]
        assert (row["n"], row["total_ns"]) == (n, total)
        assert row["stddev_ns"] == pytest.approx(float(variance.sqrt()), rel=1e-12)
    _check_exact(rank_moments(launches).toPandas(), rows, ["rank", "kernel_id"], None)


def test_a_small_spread_around_a_long_duration_loses_nothing(spark: SparkSession) -> None:
    base = 3_000_000_000_000
    durations = np.array([base, base + 1, base + 2, base + 1] * 25, dtype=np.int64)
    found = kernel_moments(duration_histogram(_launches(spark, durations, kernels=1))).toPandas()
    assert found["stddev_ns"].tolist() == pytest.approx([np.sqrt(0.5)], rel=1e-12)


def test_equal_durations_have_no_spread_at_all(spark: SparkSession) -> None:
    durations = np.full(999, 123_456_789, dtype=np.int64)
    found = kernel_moments(duration_histogram(_launches(spark, durations, kernels=1))).toPandas()
    assert found[["stddev_ns", "cov"]].to_numpy().tolist() == [[0.0, 0.0]]


def test_sums_of_squares_are_whole_numbers_of_any_size(spark: SparkSession) -> None:
    values = [0, 1, -1, 2**28 - 1, 2**28, 2**31 - 1, -(2**31), 2**31, 10**13, -(10**13)]
    rows = [(group, value) for group, value in enumerate(values)] + [(99, value) for value in values * 50]
    frame = spark.createDataFrame(rows, "id INT, value BIGINT").repartition(5)
    found = frame.groupBy("id").agg(exact_sum_of_squares(F.col("value")).alias("s")).collect()
    expected = {group: value**2 for group, value in enumerate(values)}
    assert {row["id"]: int(row["s"]) for row in found} == {
        **expected,
        99: 50 * sum(value**2 for value in values),
    }


def test_nights_merge_by_addition(spark: SparkSession) -> None:
    durations = _wide_durations(2_000)
    both = _launches(spark, durations).persist()
    first, second = (duration_histogram(both.where(F.col("launch_index") % 2 == night)) for night in (0, 1))
    merged = (
        first.unionByName(second)
        .groupBy(*_BIN, "reference_ns")
        .agg(
            *(F.sum(name).alias(name) for name in ("n", "sum_ns", "sum_sq")),
            F.min("min_ns").alias("min_ns"),
            F.max("max_ns").alias("max_ns"),
        )
    )
    one, other = (
        frame.toPandas()[[*_BIN, "reference_ns", *_EXACT]].sort_values(_BIN, ignore_index=True)
        for frame in (merged, duration_histogram(both))
    )
    pd.testing.assert_frame_equal(one, other, check_exact=True)
