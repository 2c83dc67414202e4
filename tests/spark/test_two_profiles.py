"""Two profiles on Spark: pairs, systematic draws, measured noise, and the way from two nights to an estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from support import Jobs

from stemroot_spark.config import load_config
from stemroot_spark.drawing import draw
from stemroot_spark.errors import UnknownIdError, UsageError
from stemroot_spark.fleet import FleetSpec, WriterOptions, kernel_table, launches, write_fleet
from stemroot_spark.launch_noise import MeasuredNoise
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.paired_kernel import paired_options, plan_pairs
from stemroot_spark.optimal.pairs import PAIR_COLUMNS, paired_buckets, paired_histogram_of
from stemroot_spark.optimal_planning import plan_options
from stemroot_spark.pairing import matched_launches, paired_histogram
from stemroot_spark.repeat_planning import repeat_strata
from stemroot_spark.repetitions import noise_between_iterations, noise_between_profiles

_SPEC = FleetSpec(ranks=2, layers=2, iterations=12, seed=5)
_MATCH = ["rank", "kernel_id", "kernel_invocation"]


def _night(night: int, spec: FleetSpec = _SPEC) -> pd.DataFrame:
    """Launches of one night, communication left out."""
    is_communication = np.array([kernel.is_communication for kernel in kernel_table(spec)])
    frames = []
    for rank in range(spec.ranks):
        made = launches(spec, rank, night)
        frame = pd.DataFrame(
            {
                "run_id": f"night-{night}",
                "rank": rank,
                "launch_index": np.arange(len(made.duration_ns)),
                "kernel_id": made.kernel_index,
                "launch_config_id": made.config_index,
                "duration_ns": made.duration_ns,
                "iteration": made.iteration,
            }
        )
        frame["kernel_invocation"] = frame.groupby("kernel_id").cumcount()
        frames.append(frame[~is_communication[frame["kernel_id"]]])
    return pd.concat(frames, ignore_index=True).astype({"rank": "int32", "iteration": "int32"})


def _spark(spark: SparkSession, frame: pd.DataFrame) -> DataFrame:
    return spark.createDataFrame(frame)


@pytest.fixture(scope="module")
def nights(spark: SparkSession) -> list[pd.DataFrame]:
    """Two nights of one fleet; the second lacks some launches of the first, and has some more."""
    first, second = _night(0), _night(1)
    rng = np.random.default_rng(3)
    return [first[rng.random(len(first)) > 0.01], second[rng.random(len(second)) > 0.02]]


@pytest.fixture(scope="module")
def pairs(spark: SparkSession, nights: list[pd.DataFrame]) -> DataFrame:
    return matched_launches(*(_spark(spark, night) for night in nights)).persist()


@pytest.fixture(scope="module")
def histogram(nights: list[pd.DataFrame]) -> pd.DataFrame:
    """The paired histogram by pandas and numpy."""
    first, second = nights
    partner = second[[*_MATCH, "duration_ns"]].rename(columns={"duration_ns": "repeat_ns"})
    joined = first.merge(partner, on=_MATCH, how="left")
    joined["repeat_ns"] = joined["repeat_ns"].fillna(0).astype("int64")
    frames = [
        paired_histogram_of(rows["duration_ns"], rows["repeat_ns"], rows["launch_config_id"]).assign(
            kernel_id=kernel
        )
        for kernel, rows in joined.groupby("kernel_id")
    ]
    return pd.concat(frames, ignore_index=True)


def test_sums_over_pairs_are_those_of_numpy(
    pairs: DataFrame, nights: list[pd.DataFrame], histogram: pd.DataFrame
) -> None:
    found = paired_histogram(pairs).toPandas()
    alone = found[found["n"] == 0]
    first, second = (set(map(tuple, night[_MATCH].to_numpy())) for night in nights)
    assert alone["n_repeat_only"].sum() == len(second - first) > 0
    found = found[found["n"] > 0]
    assert (found["n"] - found["n_matched"]).sum() == len(first - second) > 0
    keys = ["kernel_id", "launch_config_id", "bucket"]
    found, expected = (f.sort_values(keys, ignore_index=True) for f in (found, histogram))
    names = [*keys, "n", "sum_ns", "min_ns", "max_ns", *PAIR_COLUMNS[:3]]
    pd.testing.assert_frame_equal(found[names], expected[names], check_dtype=False)
    # Java and numpy may round the edge of a bucket differently: compare what does not depend on it.
    model = PlanningModel(use_configurations=True)
    for kernel, mine in found.groupby("kernel_id"):
        buckets, variance = paired_buckets(mine, model)
        right, right_variance = paired_buckets(expected[expected["kernel_id"] == kernel], model)
        assert variance == pytest.approx(right_variance, rel=1e-3, abs=1e-9)
        np.testing.assert_allclose(buckets.repeat_ns, right.repeat_ns, rtol=1e-6)
        np.testing.assert_allclose(buckets.cross, right.cross, rtol=1e-6)
        # Rounded to 1/1024 ns per launch.
        np.testing.assert_allclose(buckets.difference_ns, right.difference_ns, rtol=1e-4, atol=0.1)
        scale = (right.repeat_ns.max() / right.first.n.max()) ** 2
        np.testing.assert_allclose(buckets.repeat_m2, right.repeat_m2, rtol=1e-4, atol=1e-5 * scale)


def test_plan_of_pairs_is_the_same_whatever_the_partitions(pairs: DataFrame, histogram: pd.DataFrame) -> None:
    config = load_config(overrides=["plan.epsilon=0.03"]).plan
    noise = MeasuredNoise(0.03, "second profile", between_profiles=0.03)
    found = repeat_strata(pairs.repartition(5), 40, config, noise)
    again = repeat_strata(pairs.repartition(3, "kernel_invocation"), 40, config, noise)
    pd.testing.assert_frame_equal(found.strata, again.strata)
    local = plan_pairs(histogram, paired_options(plan_options(config), 0.03))
    names = ["kernel_id", "stratum_id", "lower_ns", "upper_ns", "n_population", "n_samples", "is_pps"]
    pd.testing.assert_frame_equal(found.strata[names], local.strata[names], check_dtype=False)
    assert (found.strata["design"] == "pps").any()


_KERNELS = 60


def _strata() -> pd.DataFrame:
    """For each of many alike kernels an expansion and a PPS stratum."""
    one = pd.DataFrame(
        {
            "stratum_id": [0, 1],
            "launch_config_ids": [None, None],
            "lower_ns": [1, 1_001],
            "upper_ns": [1_000, 10_000],
            "n_population": [40, 100],
            "n_samples": [5, 12],
            "design": ["expansion", "pps"],
        }
    )
    return pd.concat([one.assign(kernel_id=kernel) for kernel in range(_KERNELS)], ignore_index=True)


def _population() -> pd.DataFrame:
    """The same launches for every kernel, in random order."""
    rng = np.random.default_rng(1)
    durations = np.concatenate([rng.integers(500, 1_001, 40), rng.integers(1_001, 10_000, 100)])
    order = np.arange(_KERNELS * durations.size)
    frame = pd.DataFrame(
        {
            "run_id": "night",
            "rank": pd.Series(order % 3, dtype="int32"),
            "launch_index": order // 3,
            "kernel_invocation": order // 3,
            "kernel_id": np.repeat(np.arange(_KERNELS), durations.size),
            "launch_config_id": 1,
            "duration_ns": np.tile(durations, _KERNELS),
            "place": np.tile(np.arange(durations.size), _KERNELS),
        }
    )
    return frame.sample(frac=1, random_state=5)


def test_systematic_draws_have_exact_probabilities(spark: SparkSession) -> None:
    """Over many kernels with the same durations each is drawn as often as m x / X says."""
    frame = _population()
    source = spark.createDataFrame(frame.drop(columns="place"))
    long = frame[(frame["kernel_id"] == 0) & (frame["duration_ns"] > 1_000)].set_index("place")["duration_ns"]
    probability = 12 * long / long.sum()
    counts = pd.Series(0, index=long.index)
    seeds = 3
    for seed in range(seeds):
        sample = draw(source, _strata(), run_id="night", seed=seed, config=load_config().draw).toPandas()
        sizes = sample.groupby(["kernel_id", "stratum_id"]).size().unstack()
        assert (sizes == [5, 12]).all(axis=None)
        pps = sample[sample["stratum_id"] == 1]
        expected = 12 * pps["duration_ns"] / long.sum()
        np.testing.assert_allclose(pps["inclusion_probability"], expected, rtol=1e-15)
        np.testing.assert_allclose(pps["weight"] * pps["inclusion_probability"], 1, rtol=1e-14)
        sums = (pps["weight"] * pps["duration_ns"]).groupby(pps["kernel_id"]).sum()
        np.testing.assert_allclose(sums, long.sum(), rtol=1e-12)
        places = pps.merge(frame, on=["rank", "launch_index"])["place"].value_counts()
        counts = counts.add(places, fill_value=0)
    n = seeds * _KERNELS
    assert counts.size == long.size
    chi_square = float(((counts - n * probability) ** 2 / (n * probability * (1 - probability))).sum())
    print(f"seeds 0 to {seeds - 1}: chi square {chi_square:.0f} over {long.size} launches")
    assert abs(chi_square - long.size) < 5 * np.sqrt(2 * long.size)


def test_systematic_draws_do_not_depend_on_partitions(spark: SparkSession) -> None:
    source = spark.createDataFrame(_population().drop(columns="place"))
    samples = [
        draw(source.repartition(n), _strata(), run_id="night", seed=9, config=load_config().draw)
        .toPandas()
        .sort_values(["rank", "launch_index"], ignore_index=True)
        for n in (1, 7)
    ]
    pd.testing.assert_frame_equal(*samples)


def test_noise_between_nights_is_that_of_both(spark: SparkSession) -> None:
    for noise in (0.01, 0.08):
        spec = replace(_SPEC, launch_noise=noise)
        pair = matched_launches(*(_spark(spark, _night(night, spec)) for night in (0, 1)))
        measured = noise_between_profiles(pair)
        true = spec.noise_against_base * np.sqrt(2)
        print(f"true {true:.4f} beside ticks of 32 ns, measured {measured:.4f}")
        assert measured == pytest.approx(true, rel=0.08)


def test_noise_between_iterations_leaves_out_what_moves_a_whole_iteration(spark: SparkSession) -> None:
    """Lengths of sequences, warm-up and clocks differ from iteration to iteration; the noise is that of a launch."""
    for noise in (0.01, 0.08):
        spec = replace(_SPEC, launch_noise=noise)
        measured = noise_between_iterations(_spark(spark, _night(0, spec)))
        print(f"true {noise}, measured {measured:.4f}")
        assert measured == pytest.approx(noise, rel=0.12)
    few = _night(0).query("iteration == 3")
    assert noise_between_iterations(_spark(spark, few)) is None


@pytest.fixture(scope="module")
def jobs(spark: SparkSession, scratch: Path) -> Jobs:
    jobs = Jobs(spark, scratch / "warehouse")
    spec = FleetSpec(ranks=1, layers=1, iterations=12, seed=5)
    for night in (0, 1, 2):
        write_fleet(scratch / f"night-{night}", replace(spec, night=night), WriterOptions(has_runtime=False))
        jobs.ingest(f"night-{night}", scratch / f"night-{night}")
    jobs.moments("night-0")
    return jobs


@pytest.fixture(scope="module")
def planned(jobs: Jobs) -> dict[str, Any]:
    return jobs.plan("night-0", "two", repeat_run_id="night-1", overrides=["plan.epsilon=0.03"])


def test_a_plan_of_two_nights_estimates_the_third(jobs: Jobs, planned: dict[str, Any]) -> None:
    assert (planned["n_unmatched"], planned["n_unmatched_repeat"]) == (0, 0)
    assert planned["launch_noise_source"] == "second profile"
    # Both nights differ from what repeats by 0.03.
    assert planned["launch_noise"] == pytest.approx(0.03 * np.sqrt(2), rel=0.2)
    strata = jobs.table("strata", plan_id="two")
    sample = jobs.table("sample_manifest", plan_id="two")
    joined = sample.merge(strata, on=["kernel_id", "stratum_id"])
    pps = joined[joined["design"] == "pps"]
    assert len(pps) > 0
    total = pps["n_population"] * pps["mean_ns"]
    np.testing.assert_allclose(
        pps["inclusion_probability"], pps["n_samples"] * pps["duration_ns"] / total, rtol=1e-12
    )
    sums = (pps["weight"] * pps["duration_ns"]).groupby([pps["kernel_id"], pps["stratum_id"]]).sum()
    np.testing.assert_allclose(sums, total.groupby([pps["kernel_id"], pps["stratum_id"]]).first(), rtol=1e-9)
    jobs.import_results("two", "third", simulator="profile", from_run_id="night-2")
    estimate = jobs.reconstruct("two", "third")
    third = jobs.table("kernel_launches", run_id="night-2")
    known = jobs.table("kernels")
    truth = third[~third["kernel_id"].isin(known[known["is_communication"]]["kernel_id"])][
        "duration_ns"
    ].sum()
    assert estimate["ci_low"] <= truth <= estimate["ci_high"]
    assert estimate["estimate"] == pytest.approx(truth, rel=0.05)


def test_two_profiles_are_refused_where_they_cannot_be_used(jobs: Jobs, planned: dict[str, Any]) -> None:
    with pytest.raises(UnknownIdError, match="night-9"):
        jobs.plan("night-0", "other", repeat_run_id="night-9")
    with pytest.raises(UsageError, match="--repeat-run-id is night-0 itself"):
        jobs.plan("night-0", "other", repeat_run_id="night-0")
    with pytest.raises(UsageError, match="needs --method optimal"):
        jobs.plan("night-0", "other", repeat_run_id="night-1", overrides=["plan.method=stem-root"])
    jobs.ingest("copy", jobs.path.parent / "night-0")
    with pytest.raises(UsageError, match=r"its trace .* is in run night-0 too, byte for byte"):
        jobs.plan("night-0", "other", repeat_run_id="copy")
    with pytest.raises(UsageError, match=r"strata_by phase"):
        jobs.plan("night-0", "other", repeat_run_id="night-1", overrides=["plan.strata_by=phase"])
