"""How accurate plans are on what they have not seen, as Markdown tables: python -m bench.accuracy [section ...].

Sections: factors, clusterings, intervals, prices, pairs, held_out, repeats, suite, signatures; all by default. Real
traces are read from where tests/traces.py finds them. 20,000 draws each, 2,000 for random, systematic and clusterings:
the Monte-Carlo error of a coverage of 0.95 is 0.0015 and 0.005.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import pandas as pd

from bench.optimal_evidence import table
from bench.paired_traces import PAIRS, TRIPLES, Pair, pairs, population, triples, whole
from stemroot_spark.evaluation.designs import METHODS, Options
from stemroot_spark.evaluation.feature_files import read_features
from stemroot_spark.evaluation.features import attach
from stemroot_spark.evaluation.outcomes import SwappedModes
from stemroot_spark.evaluation.population import Matched
from stemroot_spark.evaluation.protocols import Evaluated, Protocol, evaluate
from stemroot_spark.evaluation.score import Score
from stemroot_spark.evaluation.suite import summarise
from stemroot_spark.optimal.histogram_kernel import plan_histogram
from stemroot_spark.optimal.plan import PlanOptions
from tests import traces

SEED = 20_001
DRAWS = 20_000
# Samples of nearly all launches take a hundred times longer to draw.
FEWER_DRAWS = 2_000
TRACES = ("h100_2rank", "rodinia_gaussian", "trace_diff_control", "qwen_h100", "bn")
# Chosen by durations, and what they are compared with; the others need features that no trace here has.
COMPARED = tuple(
    name for name in METHODS if name.startswith(("optimal/", "stem-root", "random", "first", "syst"))
)
MODELS = (
    "P0",
    *(f"P2:{model}:{sd}" for model in ("kernel", "configuration") for sd in (0.25, 0.5, 0.7)),
    "P2:modes:0.5",
    "P2:modes",
)


def main(sections: Iterable[str]) -> None:
    """Print the sections asked for, or all."""
    for name in sections or SECTIONS:
        started = time.process_time()
        print(f"\n## {name} (seed {SEED})\n", flush=True)
        SECTIONS[name]()
        print(f"\n{time.process_time() - started:.0f} CPU s", flush=True)


@cache
def evaluated(trace: str) -> list[Evaluated]:
    """Every compared method of a trace under every model."""
    protocols = [Protocol.parse(name) for name in MODELS]
    run, options = whole(trace), Options(seed=SEED)
    return [
        result
        for method in COMPARED
        for result in evaluate(run, [method], protocols, options, draws=_draws(method))
    ]


def _draws(method: str) -> int:
    return FEWER_DRAWS if method in ("random", "systematic") else DRAWS


def by_method(results: Sequence[Evaluated]) -> dict[str, list[Evaluated]]:
    """Results of each method, in the order of the protocols."""
    grouped: dict[str, list[Evaluated]] = {}
    for result in results:
        name = result.method + (f" {result.guarantee}" if result.guarantee else "")
        grouped.setdefault(name, []).append(result)
    return grouped


def _scores(results: Sequence[Evaluated]) -> dict[str, list[Score]]:
    """What there is of scores of each method."""
    return {
        name: [r.score for r in found if r.score is not None] for name, found in by_method(results).items()
    }


def cells(results: Sequence[Evaluated], text: Callable[[Score], str]) -> list[str]:
    """One text per result, a dash where the method cannot run or tells none."""
    return ["-" if result.score is None else text(result.score) for result in results]


def share(value: float) -> str:
    """A share to three digits; a share below 1 is never printed as 1."""
    if np.isnan(value):
        return "-"
    return f"{min(value, 0.9999) if value < 1.0 else 1.0:.3f}" if value < 0.9995 or value == 1.0 else "0.999+"


def factors() -> None:
    """Share of draws within 5 % and bias of the total, per trace, method and model."""
    for trace in TRACES:
        run = whole(trace)
        modes = SwappedModes(run, 1.0)
        print(
            f"\n### {trace}: {run.size} launches, {run.kernels[0].size} kernels, floor {run.floor_speedup:.4g}x; "
            f"two modes in {modes.n_kernels} kernels with {modes.time_share:.0%} of the time\n"
        )
        rows = (
            (
                name,
                f"{next(r.score.speedup for r in results if r.score is not None):.4g}",
                *cells(results, lambda s: f"{share(s.within_epsilon)} / {s.bias:+.2%}"),
            )
            for name, results in by_method(evaluated(trace)).items()
        )
        table(f"method | speedup | {' | '.join(MODELS)}", rows)
        errors = {
            name: max(abs(r.score.bias) / r.score.bias_se for r in results if r.score is not None)
            for name, results in by_method(evaluated(trace)).items()
            if all(
                r.score is not None and r.score.bias_se > 0 and r.score.dropped_share == 0 for r in results
            )
        }
        print(
            "\nLargest bias in Monte-Carlo standard errors, of designs that drop nothing (a method's models share its "
            f"samples): {', '.join(f'{name} {value:.1f}' for name, value in errors.items())}"
        )
        dropped = {
            r.method: r.score.dropped_share for r in evaluated(trace) if r.score and r.score.dropped_share
        }
        print(f"\nShare of time that no draw stands for: {dropped or 'none'}")


def clusterings() -> None:
    """Three ways to cut a kernel by duration alone, with the same bound on every kernel."""
    protocols = [Protocol.parse(name) for name in ("P0", "P2:configuration:0.5")]

    def rows() -> Iterable[Iterable[object]]:
        for trace in TRACES:
            for method in ("optimal/per-kernel", "stem-root", "density"):
                profile, model = evaluate(whole(trace), [method], protocols, Options(seed=SEED), draws=2_000)
                if profile.score is None or model.score is None:
                    yield trace, method, profile.reason, "", "", "", ""
                    continue
                yield (
                    trace,
                    method,
                    profile.n_strata,
                    profile.score.speedup,
                    share(profile.score.within_epsilon),
                    share(model.score.within_epsilon),
                    profile.planning_seconds,
                )

    table("trace | method | strata | speedup | P0 | P2:configuration:0.5 | seconds to plan", rows())


def intervals() -> None:
    """Share of draws whose error is within the reported half width, and the median half width."""
    for trace in TRACES:
        print(f"\n### {trace}\n")
        rows = (
            (
                name,
                *cells(results, lambda s: f"{share(s.interval_coverage)} / {s.median_half_width:.1%}"),
            )
            for name, results in by_method(evaluated(trace)).items()
            if any(r.score is not None and np.isfinite(r.score.interval_coverage) for r in results)
        )
        table(f"method | {' | '.join(MODELS)}", rows)


def prices() -> None:
    """What factor_spread and launch_noise cost: speedup of the calibrated transfer plan."""
    noises = (0.0, 0.03, 0.05, 0.1)

    def rows() -> Iterable[Iterable[object]]:
        for trace in TRACES:
            for spread in (0.0, 0.25, 0.5, 0.7, 1.0):
                plans = (
                    plan_histogram(
                        traces.histogram(trace), PlanOptions(factor_spread=spread, launch_noise=noise)
                    )
                    for noise in noises
                )
                yield trace, spread, *(plan.speedup for plan in plans)

    table("trace | factor_spread | " + " | ".join(f"launch_noise {noise}" for noise in noises), rows())


def pairs_described() -> None:
    """What changes between the runs of each pair, and where."""

    def rows() -> Iterable[Iterable[object]]:
        for name in PAIRS:
            for pair in pairs(name):
                yield pair.name, *changes(pair.matched)

    table(
        "pair | launches | unmatched time | total B / A | spread per launch, all alike | weighted by time | "
        "spread of the factors per kernel, weighted | time change in the largest 1 % of the changes",
        rows(),
    )


def changes(matched: Matched) -> tuple[object, ...]:
    """Size, unmatched share of the profile's time, and how the durations of the two runs differ."""
    run, y = matched.population, matched.y_ns
    number = run.kernels[1]
    total = np.bincount(number, run.x)
    factor = np.bincount(number, y) / total
    residual = y / run.x / factor[number] - 1.0
    degrees = max(run.size - factor.size, 1)
    overall = y.sum() / run.x.sum()
    change = np.sort(np.abs(y - run.x * factor[number]))[::-1]
    largest = change[: max(1, run.size // 100)].sum() / change.sum()
    return (
        run.size,
        f"{matched.unmatched_share:.1%}",
        f"{overall:.3f}",
        float(np.sqrt((residual**2).sum() / degrees)),
        float(np.sqrt((run.x**2 * residual**2).sum() / (run.x**2).sum())),
        float(np.sqrt((total * (factor / overall - 1.0) ** 2).sum() / total.sum())),
        f"{largest:.0%}",
    )


def held_out() -> None:
    """Planned on one run, scored on the other; a range over several pairs, and the noise the interval assumes."""
    methods = [*COMPARED]

    def rows() -> Iterable[Iterable[object]]:
        for name in PAIRS:
            found = pairs(name)
            for method in methods:
                yield name, method, 0.03, *summary_of([_score(pair, method, 0.03) for pair in found])
            for noise in (0.1, 0.3):
                scores = [_score(pair, "optimal/transfer", noise) for pair in found]
                yield name, "optimal/transfer", noise, *summary_of(scores)

    table(
        "pairs | method | launch_noise | speedup | bias | mean error | p95 error | largest error | within 5 % | "
        "within half width | median half width",
        rows(),
    )


def repeats() -> None:
    """Planned on one run, or on it and a second, and scored on a third that neither plan has seen."""
    methods = [
        f"{name}/{guarantee}" for name in ("optimal", "two-profiles") for guarantee in ("transfer", "total")
    ]

    def rows() -> Iterable[Iterable[object]]:
        for name in TRIPLES:
            for method in methods:
                for epsilon in (0.05, 0.02):
                    scores = [_score(triple, method, 0.03, epsilon) for triple in triples(name)]
                    yield name, len(scores), method, epsilon, *summary_of(scores)

    table(
        "runs | triples | method | epsilon | speedup | bias | mean error | p95 error | largest error | "
        "within epsilon | within half width | median half width",
        rows(),
    )


def _score(pair: Pair, method: str, launch_noise: float, epsilon: float = 0.05) -> Score:
    options = Options(seed=SEED, launch_noise=launch_noise, epsilon=epsilon)
    run, y = pair.matched.population, pair.matched.y_ns
    score = evaluate(run, [method], [Protocol.parse("P1")], options, draws=DRAWS, y_ns=y)[0].score
    if score is None:
        raise SystemExit(f"{method} cannot run on {pair.name}")
    return score


def summary_of(scores: Sequence[Score]) -> Iterable[str]:
    """One text per column of held_out: the mean over pairs, and the range where there are several."""

    def spread(values: Sequence[float], form: str) -> str:
        if any(np.isnan(values)):
            return "-"
        middle = format(float(np.mean(values)), form)
        if len(values) == 1:
            return middle
        return f"{middle} ({format(min(values), form)} to {format(max(values), form)})"

    yield spread([s.speedup for s in scores], ".3g")
    yield spread([s.bias for s in scores], "+.2%")
    yield spread([s.mean_error for s in scores], ".2%")
    yield spread([s.p95_error for s in scores], ".2%")
    yield spread([s.max_error for s in scores], ".1%")
    yield spread([s.within_epsilon for s in scores], ".3f")
    yield spread([s.interval_coverage for s in scores], ".3f")
    yield spread([s.median_half_width for s in scores], ".1%")


def suite() -> None:
    """The traces as a suite: harmonic mean of speedup, mean error, and the worst."""
    wanted = ("P0", "P2:configuration:0.5")
    rows = [
        result.as_row() for trace in TRACES for result in evaluated(trace) if result.protocol.name in wanted
    ]
    frame = summarise(pd.DataFrame(rows))
    columns = [name for name in frame.columns if name not in ("n_cannot_run", "outcome")]
    kept = frame[frame["n_runs"] > 0][columns]
    table(
        " | ".join(columns),
        (["" if pd.isna(cell) else cell for cell in row] for row in kept.itertuples(index=False)),
    )


def signatures() -> None:
    """Sieve on the instruction counts of a real tracer run, which has no durations: instructions stand for time."""
    path = traces.DATA / "simulators" / "accelsim_tracer_stats_1101.csv"
    with path.open(encoding="utf-8") as stream:
        found = read_features(stream, path.name)
    with path.open(encoding="utf-8", newline="") as stream:
        names = [row[1] for row in csv.reader(stream, skipinitialspace=True)][1:]
    frame = found.shapes.astype({"blocks": "int64", "threads_per_block": "int64"}).assign(
        rank=0,
        kernel_id=pd.factorize(pd.Series(names))[0],
        launch_config_id=lambda f: pd.factorize(f["blocks"] * 4096 + f["threads_per_block"])[0],
        duration_ns=found.rows["value"].astype("int64"),
    )
    run = attach(population(frame), found.rows.assign(rank=0))
    methods = ("sieve", "optimal/total", "pka", "photon", "simpoint")
    results = evaluate(run, methods, [Protocol.parse("P2:kernel:0.5")], Options(seed=SEED), draws=DRAWS)
    rows = (
        (result.method, result.reason or "")
        if result.score is None
        else (
            result.method,
            "",
            result.score.n_samples,
            result.score.speedup,
            f"{result.score.mean_error:.2%}",
        )
        for result in results
    )
    print(f"{run.size} launches, {run.kernels[0].size} kernels, floor {run.floor_speedup:.4g}x\n")
    table("method | reason | launches drawn | speedup in instructions | mean error", rows)


SECTIONS: dict[str, Callable[[], None]] = {
    "factors": factors,
    "clusterings": clusterings,
    "intervals": intervals,
    "prices": prices,
    "pairs": pairs_described,
    "held_out": held_out,
    "repeats": repeats,
    "suite": suite,
    "signatures": signatures,
}

if __name__ == "__main__":
    main(sys.argv[1:])
