"""A generated fleet of a million launches, planned, as Markdown: python -m bench.generated_fleet [section ...].

Sections: speedup (the optimal planner against the published method, tails of other weight), tails (the same over
fleets of twenty seeds), billion (a kernel of 10^6 and of 10^9 launches), session (seconds of planning on Spark), nights
(plans from one and from two profiles, scored on nights that they have not seen).
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from bench.accuracy import summary_of
from bench.optimal_evidence import published_cost, table
from bench.paired_traces import population
from stemroot_spark.evaluation.designs import METHODS, Options
from stemroot_spark.evaluation.outcomes import FixedOutcome
from stemroot_spark.evaluation.population import Population
from stemroot_spark.evaluation.score import Score, score
from stemroot_spark.fleet import FleetSpec, iterations_for, kernel_table, launches
from stemroot_spark.histogram import histogram_of
from stemroot_spark.optimal.histogram_kernel import plan_histogram
from stemroot_spark.optimal.plan import PlanOptions

SEED = 40
LAUNCHES = 1_000_000
DRAWS = 2_000
FLEETS = 20
# The base, half of it and twice it; half still has a mean.
TAIL_INDICES = (2.2, 1.1, 4.4)
DEFAULT_TAIL_INDEX = FleetSpec().straggler_tail_index
_BASE = FleetSpec(ranks=8, seed=SEED, straggler_tail_index=TAIL_INDICES[0])
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


@dataclass(frozen=True)
class Comparison:
    """Guarantee total at 5 %, calibrated, beside the published method on the same launches.

    `published` and `total` are speedups, `ratio` that of the two costs, `attainable` the published cost over the
    lower bound: no plan of the same strata could have a higher ratio.
    """

    launches: int
    kernels: int
    histogram_rows: int
    published: float
    total: float
    ratio: float
    attainable: float
    coverage: float
    gap: float
    seconds: float


def compare(kept: pd.DataFrame) -> Comparison:
    """Plan launches with both methods."""
    made = histogram(kept)
    total = float(kept["duration_ns"].sum())
    started = time.process_time()
    plan = plan_histogram(made, PlanOptions(guarantee="total"))
    seconds = time.process_time() - started
    paper = published_cost(made)
    return Comparison(
        launches=len(kept),
        kernels=kept["kernel_id"].nunique(),
        histogram_rows=len(made),
        published=total / paper,
        total=total / plan.sampled_time_ns,
        ratio=paper / plan.sampled_time_ns,
        attainable=paper / plan.lower_bound_ns,
        coverage=plan.coverage.share,
        gap=plan.optimality_gap,
        seconds=seconds,
    )


def speedup() -> None:
    """Cost of guarantee total against the published method at 5 %, on one fleet."""
    print(", ".join(f"{name} {value}" for name, value in asdict(SPEC).items() if name in _SHOWN), "\n")

    def rows() -> Iterable[Iterable[object]]:
        for tail_index in (*TAIL_INDICES, DEFAULT_TAIL_INDEX):
            everything = fleet(replace(SPEC, straggler_tail_index=tail_index))
            for name, kept in (("included", everything), ("excluded", _computation(everything))):
                yield tail_index, name, *asdict(compare(kept)).values()

    table(
        "tail index | communication | launches | kernels | histogram rows | published speedup | total speedup | "
        "ratio | attainable | coverage | gap | CPU seconds",
        rows(),
    )


def tails() -> None:
    """The same over fleets of several seeds: with heavy tails one wait decides what any plan can reach."""

    def rows() -> Iterable[Iterable[object]]:
        for seed in range(SEED, SEED + FLEETS):
            for tail_index in (*TAIL_INDICES, DEFAULT_TAIL_INDEX):
                everything = fleet(replace(SPEC, straggler_tail_index=tail_index, seed=seed))
                kinds = [("included", everything)]
                if tail_index == TAIL_INDICES[0]:  # the tails are those of communication alone
                    kinds.append(("excluded", _computation(everything)))
                for name, kept in kinds:
                    found = compare(kept)
                    largest_share = float(kept["duration_ns"].max()) / float(kept["duration_ns"].sum())
                    yield (
                        seed,
                        tail_index,
                        name,
                        largest_share,
                        found.published,
                        found.total,
                        found.ratio,
                        found.attainable,
                        found.coverage,
                    )

    table(
        "seed | tail index | communication | share of the longest launch | published speedup | total speedup | "
        "ratio | attainable | coverage",
        rows(),
    )


def _computation(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows["is_communication"]]


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


def session() -> None:
    """Planning on Spark, from the stored histogram to strata: the first plan of a session, and two warm ones."""
    from stemroot_spark.config import load_config
    from stemroot_spark.optimal_planning import optimal_strata
    from stemroot_spark.session import start_session

    rows = fleet(SPEC)
    made = histogram(_computation(rows))
    made["sum_sq"] = made["sum_sq"].astype(float)
    spark = start_session("bench-generated-fleet")
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        spark.createDataFrame(made).write.format("delta").save(f"{folder}/duration_histograms")

        def measured() -> Iterable[Iterable[object]]:
            for place, limit in (("driver", 200_000), ("executors", 0)):
                for state in ("first", "warm", "warm"):
                    config = load_config(overrides=[f"plan.driver_histogram_rows={limit}"]).plan
                    stored = spark.read.format("delta").load(f"{folder}/duration_histograms")
                    started = time.monotonic()
                    strata = optimal_strata(stored, made["kernel_id"].nunique(), config).strata
                    yield place, state, len(made), len(strata), time.monotonic() - started

        table("planned on | session | histogram rows | strata | seconds", measured())
    spark.stop()


def nights() -> None:
    """Plans of nights 0 (and 1) at 2 % and 5 %, scored on later nights, with the interval as it would be reported."""
    spec = replace(SPEC, iterations=iterations_for(100_000, _BASE), stragglers_per_night=True)
    runs = [_population(fleet(spec, night)) for night in range(8)]
    profile = runs[0].with_repeat(runs[1])
    print(f"{profile.size} launches; {DRAWS} draws on each of nights 2 to {len(runs) - 1}\n")

    def rows() -> Iterable[Iterable[object]]:
        for method in ("optimal/total", "optimal/transfer", "two-profiles/total", "two-profiles/transfer"):
            for epsilon in (0.05, 0.02):
                options = Options(seed=SEED, epsilon=epsilon)
                yield method, epsilon, *summary_of(_scores(profile, method, options, runs[2:]))

    table(
        "method | epsilon | speedup | bias | mean error | p95 error | largest error | within epsilon | "
        "within half width | median half width",
        rows(),
    )


def _scores(profile: Population, method: str, options: Options, nights: Iterable[Population]) -> list[Score]:
    """One plan, scored on each of the nights."""
    design = METHODS[method](profile, options)
    return [
        score(
            profile,
            design.sample,
            FixedOutcome(profile, night.x),
            epsilon=options.epsilon,
            confidence=options.confidence,
            launch_noise=design.noise.value if design.noise else options.launch_noise,
            draws=DRAWS,
            seed=SEED + number,
        )
        for number, night in enumerate(nights)
    ]


def _population(rows: pd.DataFrame) -> Population:
    return population(_computation(rows).assign(rank=0))


SECTIONS: dict[str, Callable[[], None]] = {
    "speedup": speedup,
    "tails": tails,
    "billion": billion,
    "session": session,
    "nights": nights,
}


def main(sections: Iterable[str]) -> None:
    """Print the sections asked for, or all."""
    for name in sections or SECTIONS:
        print(f"\n## {name} (seed {SEED})\n", flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
