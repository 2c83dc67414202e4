"""Designs of the evaluation on populations small enough to reckon by hand, and their answers when they cannot run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import sparse

from stemroot_spark.cli import job_parser
from stemroot_spark.config import load_config
from stemroot_spark.errors import DataError, UsageError
from stemroot_spark.evaluation import signatures
from stemroot_spark.evaluation.clustering import information_criterion, kmeans
from stemroot_spark.evaluation.designs import METHODS, Options, assign, methods_named
from stemroot_spark.evaluation.outcomes import FixedOutcome, SwappedModes, mode_border
from stemroot_spark.evaluation.population import Features, Population, match
from stemroot_spark.evaluation.protocols import Evaluated, Protocol, evaluate
from stemroot_spark.evaluation.samples import FixedSample, StratifiedSample
from stemroot_spark.evaluation.score import score
from stemroot_spark.evaluation.suite import summarise
from stemroot_spark.flags import add_evaluate_flags, check_evaluation, evaluate_options

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def population(kernels: list[int], durations: list[int], **columns: Any) -> Population:
    """Launches of rank 0 in order; features apart."""
    features = columns.pop("features", Features())
    frame = pd.DataFrame(
        {"rank": 0, "kernel_id": kernels, "duration_ns": durations, "launch_config_id": 0, **columns}
    )
    frame["launch_index"] = range(len(frame))
    frame["kernel_invocation"] = frame.groupby("kernel_id").cumcount()
    return Population.of_frame(frame).with_features(features)


def run(subject: Population, method: str, protocol: str, **options: Any) -> Evaluated:
    (result,) = evaluate(subject, [method], [Protocol.parse(protocol)], Options(), draws=200, **options)
    return result


def estimate(subject: Population, method: str, y: FloatArray | None = None) -> float:
    """Estimate of a method that draws nothing, from the launches' own durations or others."""
    sample = METHODS[method](subject, Options()).sample
    assert isinstance(sample, FixedSample)
    times = subject.x if y is None else y
    return float((sample.weights * times[sample.positions]).sum())


SIX = population([1, 1, 1, 2, 2, 3], [10, 20, 30, 100, 300, 7])


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ("pka", "ncu metrics: 12 of 12"),
        ("sieve", "instruction counts"),
        ("photon", "basic-block vectors"),
        ("simpoint", "basic-block vectors"),
    ],
)
def test_methods_without_their_features_say_what_they_need(method: str, needed: str) -> None:
    result = run(SIX, method, "P2:kernel:0.5")
    assert (result.status, result.score) == ("cannot_run", None)
    assert str(result.reason).startswith("cannot run: needs ")
    assert needed in str(result.reason)
    row = result.as_row()
    assert row["speedup"] is None
    assert row["n_draws"] is None


def test_features_of_some_launches_only_are_not_enough() -> None:
    partial = {"instructions": np.array([1.0, np.nan, 1, 1, 1, 1])}
    result = run(SIX.with_features(Features(partial)), "sieve", "P2:kernel:0.5")
    assert "1 of 6 have none" in str(result.reason)
    vectors = sparse.csr_array(np.array([[1.0], [0], [0], [1], [1], [1]]))
    result = run(SIX.with_features(Features({}, vectors)), "simpoint", "P2:kernel:0.5")
    assert "2 of 6 have none" in str(result.reason)
    result = run(
        SIX.with_features(Features({}, sparse.csr_array(np.ones((6, 1))))), "photon", "P2:kernel:0.5"
    )
    assert "grid and block" in str(result.reason)


def test_a_design_that_draws_nothing_cannot_be_scored_on_what_it_was_chosen_by() -> None:
    result = run(SIX, "first-launch", "P0")
    assert result.status == "cannot_run"
    assert "needs a random draw" in str(result.reason)
    assert run(SIX, "stem-root", "P0").status == "ok"


def test_first_launches_stand_for_their_kernels() -> None:
    assert estimate(SIX, "first-launch") == 10 * 3 + 100 * 2 + 7
    result = run(SIX, "first-launch", "P1", y_ns=2 * SIX.x)
    assert result.score is not None
    assert result.score.bias == pytest.approx((10 * 3 + 100 * 2 + 7) / 467 - 1)
    assert result.score.speedup == pytest.approx(467 / 117)
    assert (result.score.n_draws, result.score.n_samples) == (1, 3)
    assert np.isnan(result.score.interval_coverage)


def test_the_published_method_drops_clusters_of_equal_durations() -> None:
    subject = population([1] * 10 + [2] * 5, [100] * 10 + [50, 60, 70, 80, 90])
    result = run(subject, "stem-root-paper", "P0")
    assert result.score is not None
    assert result.score.dropped_share == pytest.approx(1000 / 1350)
    assert result.score.bias == pytest.approx(-1000 / 1350, abs=0.02)
    assert np.isnan(result.score.interval_coverage)
    kept = run(subject, "stem-root", "P0")
    assert kept.score is not None
    assert kept.score.dropped_share == 0.0


def test_strata_of_another_run_are_refused() -> None:
    strata = pd.DataFrame(
        {
            "kernel_id": [1, 2, 3],
            "launch_config_ids": None,
            "lower_ns": [10, 100, 7],
            "upper_ns": [30, 300, 7],
            "n_population": [3, 2, 1],
            "n_samples": 1,
        }
    )
    assert assign(SIX, strata).of_launch.tolist() == [0, 0, 0, 1, 1, 2]
    for column, values in (("upper_ns", [29, 300, 7]), ("n_population", [3, 2, 2])):
        with pytest.raises(DataError, match="do not hold the launches"):
            assign(SIX, strata.assign(**{column: values}))


def test_samples_larger_than_a_stratum_take_it_whole() -> None:
    strata = pd.DataFrame(
        {"kernel_id": [1, 2, 3], "launch_config_ids": None, "lower_ns": [10, 100, 7], "upper_ns": [30, 300, 7],
         "n_population": [3, 2, 1], "n_samples": [9, 9, 9]}
    )  # fmt: skip
    sample = StratifiedSample(assign(SIX, strata))
    assert not sample.is_random
    result = score(
        SIX,
        sample,
        FixedOutcome(SIX, SIX.x),
        epsilon=0.05,
        confidence=0.95,
        launch_noise=0.03,
        draws=9,
        seed=1,
    )
    assert (result.n_draws, result.max_error, result.speedup, result.interval_coverage) == (1, 0.0, 1.0, 1.0)


def test_pka_takes_the_fewest_clusters_that_give_the_profiled_time() -> None:
    kind = np.array([0.0, 1, 0, 1, 1, 0])
    metrics = dict.fromkeys(signatures.PKA_METRICS.values(), 5.0 + kind * 3)
    subject = population([1, 1, 2, 2, 3, 3], [10, 50, 10, 50, 50, 10], features=Features(metrics))
    chosen = signatures.pka(subject)
    assert sorted(zip(chosen.positions.tolist(), chosen.weights.tolist(), strict=True)) == [
        (0, 3.0),
        (1, 3.0),
    ]
    # One cluster is enough where one launch stands for all.
    alike = population([1, 1, 2], [10, 10, 10], features=Features({n: m[:3] for n, m in metrics.items()}))
    assert signatures.pka(alike).positions.tolist() == [0]
    del metrics["launch__grid_size"]
    result = run(subject.with_features(Features(metrics)), "pka", "P2:kernel:0.5")
    assert "1 of 12 not imported, the first launch__grid_size" in str(result.reason)


def test_sieve_keeps_a_kernel_of_similar_instruction_counts_whole_and_cuts_others() -> None:
    counts = [100.0, 100, 100, 100, 120, 110, 10, 11, 1000, 1100]
    subject = population(
        [1] * 3 + [2] * 3 + [3] * 4,
        [5, 5, 5, 6, 6, 6, 1, 1, 80, 90],
        blocks=1,
        threads_per_block=[32] * 3 + [64, 32, 32] + [32] * 4,
        features=Features({"instructions": np.array(counts)}),
    )
    chosen = signatures.sieve(subject)
    found = dict(zip(chosen.positions.tolist(), chosen.weights.tolist(), strict=True))
    # Of kernel 2 the first launch with the frequent block size; of kernel 3 the first below and above the gap.
    assert found == pytest.approx({0: 3.0, 4: 330 / 120, 6: 21 / 10, 8: 2100 / 1000})
    # Time in proportion to instructions is estimated exactly.
    y = 0.5 * np.array(counts)
    assert estimate(subject, "sieve", y) == pytest.approx(y.sum())


def test_sieve_falls_back_on_the_instructions_of_ncu() -> None:
    subject = population(
        [1, 1], [5, 9], features=Features({signatures.NCU_INSTRUCTIONS: np.array([10.0, 12.0])})
    )
    assert signatures.sieve(subject).weights.tolist() == [2.2]


VECTORS = np.array([[90.0, 10, 0], [180, 20, 0], [0, 0, 50], [92, 8, 0], [0, 0, 100]])


def test_photon_skips_launches_that_execute_what_was_simulated() -> None:
    subject = population(
        [1, 1, 2, 1, 2],
        [10, 20, 5, 10, 10],
        blocks=[1, 2, 1, 1, 2],
        threads_per_block=33,
        features=Features({}, sparse.csr_array(VECTORS)),
    )
    chosen = signatures.photon(subject)
    assert chosen.positions.tolist() == [0, 2]
    assert chosen.weights.tolist() == pytest.approx([1 + 2 + 1, 1 + 2])
    assert estimate(subject, "photon") == pytest.approx(40 + 15)


def test_simpoint_finds_what_is_executed_and_weights_by_instructions() -> None:
    subject = population(
        [1, 1, 2, 1, 2] * 4,
        [10, 20, 5, 10, 10] * 4,
        features=Features({}, sparse.csr_array(np.tile(VECTORS, (4, 1)))),
    )
    chosen = signatures.simpoint(subject)
    assert len(chosen.positions) in (2, 3)
    kernel_of = subject.kernel_id[chosen.positions]
    instructions = VECTORS.sum(axis=1)
    by_kernel = [
        float((chosen.weights * np.tile(instructions, 4)[chosen.positions])[kernel_of == k].sum())
        for k in (1, 2)
    ]
    assert by_kernel == pytest.approx([4 * 400, 4 * 150])


def test_k_means_separates_what_is_apart_and_never_leaves_a_cluster_empty() -> None:
    rng = np.random.default_rng(3)
    centres = np.array([[0.0, 0], [10, 0], [0, 10]])
    points = np.repeat(centres, 30, axis=0) + rng.normal(0, 0.5, (90, 2))
    clusters = kmeans(points, 3)
    assert len(np.unique(clusters.labels.reshape(3, 30), axis=1)[0]) == 1
    scores = [information_criterion(points, kmeans(points, k)) for k in range(1, 7)]
    assert int(np.argmax(scores)) == 2
    few = kmeans(np.array([[1.0], [1.0], [2.0]]), 3)
    assert (len(few.centres), few.squares) == (2, 0.0)
    for k in range(1, 12):
        assert len(np.unique(kmeans(points[:12], k).labels)) == k


def test_two_modes_are_found_and_swapped() -> None:
    modes = [100, 104, 96, 100, 400, 410, 390]
    assert mode_border(np.array(modes)) == 104
    assert mode_border(np.arange(100, 140)) is None
    assert mode_border(np.array([100, 100, 100])) is None
    # One outlier is no mode.
    assert mode_border(np.array([100] * 50 + [101] * 50 + [900])) is None
    subject = population([1] * 7 + [2] * 3, [*modes, 50, 50, 50])
    outcome = SwappedModes(subject, 1.0)
    assert (outcome.n_kernels, outcome.is_random) == (1, False)
    truth = outcome.rows(np.random.default_rng(0), 2)
    everything = np.broadcast_to(np.arange(10), (2, 10))
    expected = [400.0, 416, 384, 400, 100, 102.5, 97.5, 50, 50, 50]
    np.testing.assert_allclose(truth.values(everything), [expected, expected])
    np.testing.assert_allclose(truth.kernel_totals, [[1900, 150]] * 2)
    assert "two modes" in str(run(SIX, "stem-root", "P2:modes").reason)


def test_launches_are_matched_by_rank_kernel_and_invocation() -> None:
    other = population([2, 1, 1, 9], [11, 12, 13, 64])
    found = match(SIX, other)
    assert found.population.launch_index.tolist() == [0, 1, 3]
    assert found.y_ns.tolist() == [12.0, 13.0, 11.0]
    assert found.n_unmatched == 3
    assert found.unmatched_share == pytest.approx(337 / 467)
    assert found.other_unmatched_share == pytest.approx(0.64)
    with pytest.raises(DataError, match="no launch of the profile has a partner"):
        match(SIX, population([9], [1]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("P0", ("P0", "same", None)),
        ("P1", ("P1", "run", None)),
        ("P2:run", ("P2", "run", None)),
        ("P2:kernel:0.25", ("P2", "kernel", 0.25)),
        ("P2:configuration:1", ("P2", "configuration", 1.0)),
        ("P2:modes", ("P2", "modes", 1.0)),
        ("P2:modes:0.5", ("P2", "modes", 0.5)),
    ],
)
def test_protocols_are_named(name: str, expected: tuple[str, str, float | None]) -> None:
    found = Protocol.parse(name)
    assert (found.protocol, found.outcome, found.parameter) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "P3",
        "P2",
        "P1:run",
        "P2:kernel",
        "P2:kernel:0",
        "P2:kernel:nan",
        "P2:modes:2",
        "P2:run:1",
        "P2:rank:1",
    ],
)
def test_other_protocols_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--protocols"):
        Protocol.parse(name)


def test_methods_are_named_alone_or_by_family() -> None:
    assert methods_named(["optimal"]) == [
        f"optimal/{g}" for g in ("transfer", "total", "per-kernel", "worst-case")
    ]
    assert methods_named(["pka", "optimal/total", "pka"]) == ["pka", "optimal/total"]
    with pytest.raises(UsageError, match="--methods stemroot: known are optimal"):
        methods_named(["stemroot"])


def test_flags_are_checked_before_spark_starts_and_map_to_options() -> None:
    parser = job_parser("")
    add_evaluate_flags(parser)
    where = ["--warehouse", "w", "--evaluation-id", "e"]
    args = parser.parse_args([*where, "--draws", "7", "--epsilon", "0.1", "--protocols", "P0", "P2:modes"])
    check_evaluation(args)
    options = evaluate_options(args)
    assert options["evaluate"] == {"draws": 7}
    assert options["plan"]["epsilon"] == 0.1
    config = load_config(flags=options)
    assert (config.evaluate.draws, config.plan.epsilon, config.plan.confidence) == (7, 0.1, 0.95)
    for wrong, message in (
        (["--protocols", "P1"], "against-run-id"),
        (["--methods", "best"], "--methods best"),
        (["--suite-with", "a b"], "--suite-with"),
    ):
        with pytest.raises(UsageError, match=message):
            check_evaluation(parser.parse_args([*where, *wrong]))
    with pytest.raises(UsageError, match=r"evaluate\.draws is 0"):
        load_config(overrides=["evaluate.draws=0"])


def test_another_run_is_needed_for_its_protocols() -> None:
    with pytest.raises(UsageError, match="against-run-id"):
        evaluate(SIX, ["stem-root"], [Protocol.parse("P1")], Options(), draws=1)


def test_suite_means_are_those_of_the_papers_with_the_worst_beside() -> None:
    shared = {"method": "m", "guarantee": None, "protocol": "P0", "outcome": "same", "model_parameter": None}
    numbers = ["speedup", "bias", "mean_error", "max_error", "within_epsilon", "interval_coverage"]
    rows = pd.DataFrame(
        [
            {
                **shared,
                "status": "ok",
                **dict(zip(numbers, [2.0, -0.03, 0.02, 0.1, 0.99, 0.98], strict=True)),
            },
            {**shared, "status": "ok", **dict(zip(numbers, [6.0, 0.01, 0.04, 0.3, 0.95, None], strict=True))},
            {**shared, "status": "cannot_run", **dict.fromkeys(numbers)},
            {**shared, "method": "n", "status": "cannot_run", **dict.fromkeys(numbers)},
        ]
    )
    summary = summarise(rows).set_index("method")
    first = summary.loc["m"]
    assert first["harmonic_speedup"] == pytest.approx(3.0)
    assert first["mean_error"] == pytest.approx(0.03)
    assert (first["least_speedup"], first["worst_mean_error"], first["worst_error"]) == (2.0, 0.04, 0.3)
    assert (first["worst_bias"], first["least_within_epsilon"], first["least_interval_coverage"]) == (
        -0.03,
        0.95,
        0.98,
    )
    assert (first["n_runs"], first["n_cannot_run"]) == (2, 1)
    assert (summary.loc["n"]["n_runs"], summary.loc["n"]["n_cannot_run"]) == (0, 1)
    assert pd.isna(summary.loc["n"]["harmonic_speedup"])
