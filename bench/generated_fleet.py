"""A generated fleet of a million launches, planned, as Markdown: python -m bench.generated_fleet [section ...].

Sections: speedup (the optimal planner against the published method, tails of other weight), billion (a kernel of
10^6 and of 10^9 launches), nights (a plan from one and from two profiles, scored on nights that it has not seen).
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.optimal_evidence import published_cost, table
from stemroot_spark.fleet import FleetSpec, iterations_for, kernel_table, launches
from stemroot_spark.histogram import histogram_of
from stemroot_spark.optimal.local import plan_histogram
from stemroot_spark.optimal.pair_work import plan_pairs
from stemroot_spark.optimal.pairs import paired_histogram_of
from stemroot_spark.optimal.plan import PlanOptions

SEED = 40
LAUNCHES = 1_000_000
# Half of this tail index still has a mean.
_BASE = FleetSpec(ranks=8, seed=SEED, straggler_tail_index=2.2)
SPEC = replace(_BASE, iterations=iterations_for(LAUNCHES, _BASE))
_SHOWN = ("ranks", "layers", "iterations", "seed", "second_mode_share", "second_mode_ratio", "length_sigma",
          "straggler_share", "straggler_tail_index", "launch_noise", "warmup_iterations")  # fmt: skip


def fleet(spec: FleetSpec, night: int = 0) -> pd.DataFrame:
    """All launches of a night in order: kernel_id, launch_config_id, duration_ns, is_communication."""
    kernels = kernel_table(spec)
    parts = []
    for rank in range(spec.ranks):
        found = launches(spec, rank, night)
        parts.append(
            pd.DataFrame(
                {
                    "kernel_id": found.kernel_index,
                    "launch_config_id": found.kernel_index * 10_000 + found.config_index,
                    "duration_ns": found.duration_ns,
                }
            )
        )
    communication = np.array([kernel.is_communication for kernel in kernels])
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(is_communication=communication[rows["kernel_id"]])


def histogram(rows: pd.DataFrame) -> pd.DataFrame:
    """The duration histogram of launches, by kernel."""
    return pd.concat(
        histogram_of(part["duration_ns"], part["launch_config_id"]).assign(kernel_id=kernel)
        for kernel, part in rows.groupby("kernel_id")
    )


def speedup() -> None:
    """Cost of guarantee total against the published method at 5 %, both calibrated or not as they are."""
    print(", ".join(f"{name} {value}" for name, value in asdict(SPEC).items() if name in _SHOWN), "\n")

    def rows() -> Iterable[Iterable[object]]:
        for tail_index in (2.2, 1.1, 4.4, 1.6):
            spec = replace(SPEC, straggler_tail_index=tail_index)
            everything = fleet(spec)
            for communication in (True, False):
                kept = everything if communication else everything[~everything["is_communication"]]
                made = histogram(kept)
                total = float(kept["duration_ns"].sum())
                started = time.process_time()
                plan = plan_histogram(made, PlanOptions(guarantee="total"))
                seconds = time.process_time() - started
                paper = published_cost(made)
                yield (
                    spec.straggler_tail_index,
                    "included" if communication else "excluded",
                    len(kept),
                    kept["kernel_id"].nunique(),
                    len(made),
                    total / paper,
                    total / plan.sampled_time_ns,
                    paper / plan.sampled_time_ns,
                    plan.coverage.share,
                    plan.optimality_gap or 0.0,
                    seconds,
                )

    table(
        "tail index | communication | launches | kernels | histogram rows | published speedup | total speedup | "
        "ratio | coverage | gap | CPU seconds",
        rows(),
    )


def billion() -> None:
    """Planning a kernel by its histogram: the number of launches does not matter."""

    def rows() -> Iterable[Iterable[object]]:
        rng = np.random.default_rng(SEED)
        durations = np.rint(np.exp(rng.normal(11.0, 0.5, 1_000_000))).astype(np.int64)
        small = histogram_of(durations).assign(kernel_id=1)
        for factor in (1, 1_000):
            large = small.copy()
            for column in ("n", "sum_ns", "sum_sq"):
                large[column] = large[column] * factor
            started = time.process_time()
            plan = plan_histogram(large, PlanOptions(guarantee="total", epsilon=0.01))
            seconds = time.process_time() - started
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            yield (
                int(large["n"].sum()),
                len(large),
                len(plan.strata),
                plan.strata["n_samples"].sum(),
                seconds,
                peak,
            )

    table(
        "launches | histogram rows | strata | samples | CPU seconds | peak MB of the process so far", rows()
    )


def nights() -> None:
    """Plans of nights 0 (and 1) at 2 %, scored by simulated draws on later nights: error within the bound."""
    spec = replace(SPEC, iterations=iterations_for(100_000, _BASE), stragglers_per_night=True)
    runs = [fleet(spec, night) for night in range(8)]
    kept = [run[~run["is_communication"]].reset_index(drop=True) for run in runs]
    rng = np.random.default_rng(SEED)
    one = plan_histogram(histogram(kept[0]), PlanOptions(guarantee="transfer", epsilon=0.02))
    pairs = pd.concat(
        paired_histogram_of(
            part["duration_ns"], kept[1]["duration_ns"][part.index], part["launch_config_id"]
        ).assign(kernel_id=kernel)
        for kernel, part in kept[0].groupby("kernel_id")
    )
    two = plan_pairs(pairs, PlanOptions(guarantee="transfer", epsilon=0.02))

    def rows() -> Iterable[Iterable[object]]:
        for name, plan in (("one profile", one), ("two profiles", two)):
            errors = [
                _error(kept[0], kept[night], plan.strata, rng)
                for night in range(2, len(kept))
                for _ in range(60)
            ]
            share = float(np.mean(np.abs(errors) <= 0.02))
            spread = float(np.std(errors) / np.sqrt(len(errors)))
            monte_carlo = float(np.sqrt(share * (1 - share) / len(errors)))
            speed = float(kept[0]["duration_ns"].sum()) / plan.sampled_time_ns
            yield name, speed, len(plan.strata), float(np.mean(errors)), spread, share, monte_carlo

    table("plan | speedup | strata | bias | its error | within 2 % | its error", rows())


def _error(
    profile: pd.DataFrame, night: pd.DataFrame, strata: pd.DataFrame, rng: np.random.Generator
) -> float:
    """Relative error of one draw by the plan of a profile, simulated by another night, launch by launch."""
    estimate = 0.0
    x, y = (run["duration_ns"].to_numpy(np.float64) for run in (profile, night))
    by_kernel = profile.groupby("kernel_id").indices
    for row in strata.to_dict("records"):
        inside = _inside(profile, np.asarray(by_kernel[row["kernel_id"]], dtype=np.intp), row)
        m = min(int(row["n_samples"]), inside.size)
        if row.get("is_pps", False):
            order = rng.permutation(inside)
            ends = np.cumsum(x[order])
            points = (np.arange(m) + rng.random()) * (ends[-1] / m)
            chosen = order[np.searchsorted(ends, points, side="right")]
            estimate += ends[-1] / m * float((y[chosen] / x[chosen]).sum())
        else:
            estimate += inside.size / m * float(y[rng.choice(inside, m, replace=False)].sum())
    return estimate / float(y.sum()) - 1


def _inside(
    profile: pd.DataFrame, of_kernel: npt.NDArray[np.intp], row: Mapping[Hashable, Any]
) -> npt.NDArray[np.intp]:
    durations = profile["duration_ns"].to_numpy()[of_kernel]
    is_inside = (durations >= row["lower_ns"]) & (durations <= row["upper_ns"])
    if row["launch_config_ids"] is not None:
        is_inside &= np.isin(profile["launch_config_id"].to_numpy()[of_kernel], row["launch_config_ids"])
    chosen: npt.NDArray[np.intp] = of_kernel[is_inside]
    return chosen


SECTIONS: dict[str, Callable[[], None]] = {"speedup": speedup, "billion": billion, "nights": nights}


def main(sections: Iterable[str]) -> None:
    """Print the sections asked for, or all."""
    for name in sections or SECTIONS:
        print(f"\n## {name} (seed {SEED})\n", flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
