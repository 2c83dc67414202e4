"""Coverage of the total's interval on generated nights that the plan has not seen.

The nights come from the fleet generator and the draw from numpy, so that plan, allocation and estimator are tested
against an independent truth: the sum of all launches of the night.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.allocation import allocate, variance_bound
from stemroot_spark.estimators import combine, summarise_kernel
from stemroot_spark.fleet import FleetSpec, kernel_table, launches
from stemroot_spark.histogram import cells_from_histogram, histogram_of
from stemroot_spark.root import split_kernel

EPSILON, CONFIDENCE = 0.05, 0.95
NIGHTS = 300
SEED = 77
SPEC = FleetSpec(ranks=2, layers=2, iterations=12, seed=20251, launch_noise=0.02)


@dataclass(frozen=True)
class KernelPlan:
    """Strata of one kernel and, per stratum, the positions of its launches in the night."""

    strata: pd.DataFrame
    members: list[npt.NDArray[np.intp]]


@dataclass(frozen=True)
class Plan:
    kernels: list[KernelPlan]
    profile_ns: npt.NDArray[np.int64]
    planned: npt.NDArray[np.bool_]


def night_durations(night: int) -> npt.NDArray[np.int64]:
    return np.concatenate([launches(SPEC, rank, night).duration_ns for rank in range(SPEC.ranks)])


@pytest.fixture(scope="module")
def plan() -> Plan:
    kernel = np.concatenate([launches(SPEC, rank, 0).kernel_index for rank in range(SPEC.ranks)])
    profile = night_durations(0)
    is_communication = np.array([entry.is_communication for entry in kernel_table(SPEC)])
    planned = ~is_communication[kernel]
    kernels = []
    for index in np.unique(kernel[planned]):
        positions = np.flatnonzero(kernel == index)
        cells = cells_from_histogram(histogram_of(profile[positions]))
        leaves = split_kernel(cells, epsilon=EPSILON, confidence=CONFIDENCE, paper=False).leaves_frame()
        leaves["n_samples"] = allocate(
            leaves["n_population"],
            leaves["stddev_ns"],
            leaves["mean_ns"],
            variance_bound(float(profile[positions].sum()), EPSILON, CONFIDENCE),
            start=leaves["n_samples"],
        )
        strata = leaves.assign(stratum_id=np.arange(len(leaves)))
        members = [
            positions[(profile[positions] >= lower) & (profile[positions] <= upper)]
            for lower, upper in zip(strata["lower_ns"], strata["upper_ns"], strict=True)
        ]
        assert [len(m) for m in members] == strata["n_population"].tolist()
        kernels.append(KernelPlan(strata, members))
    return Plan(kernels, profile, planned)


def draw(plan: Plan, seed: int) -> list[list[npt.NDArray[np.intp]]]:
    rng = np.random.default_rng(seed)
    return [
        [
            rng.choice(m, size=n, replace=False)
            for m, n in zip(kernel.members, kernel.strata["n_samples"], strict=True)
        ]
        for kernel in plan.kernels
    ]


def covers(
    plan: Plan, sample: list[list[npt.NDArray[np.intp]]], night_ns: npt.NDArray[np.int64], launch_noise: float
) -> bool:
    summaries = []
    for kernel, drawn in zip(plan.kernels, sample, strict=True):
        positions = np.concatenate(drawn)
        draws = pd.DataFrame(
            {
                "stratum_id": np.repeat(kernel.strata["stratum_id"].to_numpy(), [len(d) for d in drawn]),
                "duration_ns": plan.profile_ns[positions],
                "value": night_ns[positions].astype(np.float64),
            }
        )
        summaries.append(summarise_kernel(draws, kernel.strata)._asdict())
    total = combine(pd.DataFrame(summaries), launch_noise, CONFIDENCE).total
    return bool(total.ci_low <= night_ns[plan.planned].sum() <= total.ci_high)


def coverage(hits: list[bool]) -> tuple[float, float]:
    share = float(np.mean(hits))
    return share, float(np.sqrt(share * (1 - share) / len(hits)))


def test_intervals_cover_unseen_nights_when_every_night_draws_its_own_sample(plan: Plan) -> None:
    noise = SPEC.noise_between_nights
    hits = [
        covers(plan, draw(plan, seed=night), night_durations(night), noise) for night in range(1, NIGHTS + 1)
    ]
    share, error = coverage(hits)
    print(f"fleet seed {SPEC.seed}, nights and draw seeds 1..{NIGHTS}: coverage {share:.3f} +- {error:.3f}")
    assert share >= 0.94


def test_intervals_cover_unseen_nights_with_the_one_sample_of_a_plan(plan: Plan) -> None:
    noise = SPEC.noise_between_nights
    sample = draw(plan, seed=1)
    hits = [covers(plan, sample, night_durations(night), noise) for night in range(1, NIGHTS + 1)]
    share, error = coverage(hits)
    print(f"fleet seed {SPEC.seed}, draw seed 1, nights 1..{NIGHTS}: coverage {share:.3f} +- {error:.3f}")
    assert share >= 0.94


def test_intervals_fall_short_when_nights_are_much_noisier_than_the_plan_says(plan: Plan) -> None:
    """The interval is not simply too wide to fail: its width follows the stated noise."""
    loud = replace(SPEC, launch_noise=0.4)
    hits = []
    for night in range(1, 101):
        night_ns = np.concatenate([launches(loud, rank, night).duration_ns for rank in range(SPEC.ranks)])
        hits.append(covers(plan, draw(plan, seed=night), night_ns, 0.005))
    share, error = coverage(hits)
    print(f"launch noise 0.4 against a stated 0.005, nights 1..100: coverage {share:.3f} +- {error:.3f}")
    assert share < 0.94


def test_intervals_of_parts_know_the_noise_that_all_parts_show_together() -> None:
    """Eight kernels with one draw in each of four parts; launches differ by 0.15 where 0.03 was assumed."""
    rng = np.random.default_rng(SEED)
    kernels, parts, size, noise, rounds = 8, 4, 200, 0.15, 30
    hits = []
    for _ in range(rounds):
        x = np.rint(1e5 * np.exp(0.02 * rng.standard_normal((kernels, parts, size))))
        y = x * (1.0 + noise * rng.standard_normal(x.shape))
        drawn = rng.integers(0, size, (kernels, parts))
        strata = [
            pd.DataFrame(
                {
                    "stratum_id": np.arange(parts),
                    "n_population": size,
                    "n_samples": 1,
                    "mean_ns": x[k].mean(axis=1),
                    "stddev_ns": x[k].std(axis=1, ddof=1),
                }
            )
            for k in range(kernels)
        ]
        draws = [
            pd.DataFrame(
                {
                    "stratum_id": np.arange(parts),
                    "duration_ns": x[k, range(parts), drawn[k]],
                    "value": y[k, range(parts), drawn[k]],
                }
            )
            for k in range(kernels)
        ]
        whole = [summarise_kernel(d, s)._asdict() for d, s in zip(draws, strata, strict=True)]
        shown = combine(pd.DataFrame(whole), 0.03, CONFIDENCE).total.measured_noise
        for part in range(parts):
            own = [
                summarise_kernel(d[d["stratum_id"] == part], s[s["stratum_id"] == part])._asdict()
                for d, s in zip(draws, strata, strict=True)
            ]
            total = combine(pd.DataFrame(own), 0.03, CONFIDENCE, pooled_noise=shown).total
            hits.append(total.ci_low <= y[:, part].sum() <= total.ci_high)
    share, error = float(np.mean(hits)), float(np.sqrt(0.05 * 0.95 / len(hits)))
    print(f"seed {SEED}: coverage of parts {share:.3f} +- {error:.3f}")
    assert share >= 0.95 - 3 * error
