"""Methods by name: from a population to a sample. Those that read durations alone are here, the others in signatures.

A method is a function of a population and Options; to add one, write it and name it in METHODS. It raises
CannotRunError where it lacks what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.allocation import allocate, smallest_sample, variance_bound
from stemroot_spark.config import DEFAULT_LAUNCH_NOISE
from stemroot_spark.density import density_leaves, require_scikit_learn
from stemroot_spark.errors import DataError, UsageError
from stemroot_spark.evaluation import signatures
from stemroot_spark.evaluation.population import CannotRunError, Population
from stemroot_spark.evaluation.samples import (
    FixedSample,
    Sample,
    SimpleSample,
    Strata,
    StratifiedSample,
    SystematicSample,
)
from stemroot_spark.histogram import Cells, cells_from_histogram, histogram_of
from stemroot_spark.launch_noise import (
    MeasuredNoise,
    noise_of_second_profile,
    noise_of_two_profiles,
    ranges_of_pairs,
)
from stemroot_spark.optimal.histogram_kernel import plan_histogram
from stemroot_spark.optimal.model import GUARANTEES
from stemroot_spark.optimal.paired_kernel import paired_options, plan_pairs
from stemroot_spark.optimal.pairs import paired_histogram_of
from stemroot_spark.optimal.plan import PlanOptions
from stemroot_spark.root import split_kernel

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Options:
    """What methods aim at. factor_spread, launch_noise and rho are those of the optimal planner.

    split_hysteresis is that of ROOT; density_distance and density_share as stemroot_spark.density has them.
    measures_noise: whether a method that can measure the launch noise uses what it finds instead.
    """

    epsilon: float = 0.05
    confidence: float = 0.95
    factor_spread: float = 0.5
    launch_noise: float = 0.03
    rho: float = 2.0
    seed: int = 1
    measures_noise: bool = True
    split_hysteresis: float = 0.0
    density_distance: float = 0.05
    density_share: float = 0.01


class Design(NamedTuple):
    """A sample with what its method says of it; n_strata counts clusters for methods that cluster.

    noise: what the method measured, prior of its interval; None for that of the options.
    """

    sample: Sample
    n_strata: int
    reason: str | None = None
    noise: MeasuredNoise | None = None


Method = Callable[[Population, Options], Design]


def optimal(population: Population, options: Options, *, guarantee: str) -> Design:
    """The optimal planner under one guarantee; says so where its calibration stays below the confidence."""
    plan = plan_histogram(population.histogram(), _plan_options(options, guarantee))
    return Design(StratifiedSample(assign(population, plan.strata)), len(plan.strata), plan.reason)


def two_profiles(population: Population, options: Options, *, guarantee: str) -> Design:
    """The optimal planner with a second profile, which variances and the launch noise are taken from."""
    repeat = population.repeat_ns
    if repeat is None:
        raise CannotRunError("needs a second profile of the workload (--repeat-run-id)")
    between = noise_of_second_profile(ranges_of_pairs(population.kernel_id, population.x, repeat))
    stated = None if options.measures_noise else options.launch_noise
    noise = noise_of_two_profiles(between, stated, DEFAULT_LAUNCH_NOISE)
    pairs = [
        paired_histogram_of(
            population.duration_ns[launches], repeat[launches], population.launch_config_id[launches]
        ).assign(kernel_id=kernel)
        for kernel, launches in zip(population.kernels[0].tolist(), population.by_kernel, strict=True)
    ]
    chosen = paired_options(_plan_options(options, guarantee), noise.between_profiles, noise.added)
    plan = plan_pairs(pd.concat(pairs, ignore_index=True), chosen)
    sample = StratifiedSample(assign(population, plan.strata), population.x)
    return Design(sample, len(plan.strata), plan.reason, noise)


def _plan_options(options: Options, guarantee: str) -> PlanOptions:
    return PlanOptions(
        guarantee=guarantee,
        epsilon=options.epsilon,
        confidence=options.confidence,
        factor_spread=options.factor_spread,
        launch_noise=options.launch_noise,
        rho=options.rho,
        seed=options.seed,
    )


def stem_root(population: Population, options: Options, *, paper: bool) -> Design:
    """STEM+ROOT kernel by kernel, as published or with our corrections; the draw takes at most a whole stratum."""

    def leaves(cells: Cells) -> pd.DataFrame:
        return split_kernel(
            cells,
            epsilon=options.epsilon,
            confidence=options.confidence,
            paper=paper,
            hysteresis=options.split_hysteresis,
        ).leaves_frame()

    return _by_kernel(population, options, leaves, keeps_samples=paper)


def density(population: Population, options: Options) -> Design:
    """Strata by density-based clustering, kernel by kernel, with samples as stem-root has them."""
    try:
        require_scikit_learn()
    except UsageError:
        raise CannotRunError("needs scikit-learn: pip install 'stemroot-spark[density]'") from None

    def leaves(cells: Cells) -> pd.DataFrame:
        found = density_leaves(cells, distance=options.density_distance, share=options.density_share)
        # Everything simulated keeps any bound: where the allocation may start.
        return found.assign(n_samples=found["n_population"])

    return _by_kernel(population, options, leaves, keeps_samples=False)


def _by_kernel(
    population: Population,
    options: Options,
    leaves_of: Callable[[Cells], pd.DataFrame],
    *,
    keeps_samples: bool,
) -> Design:
    """Strata by duration of each kernel, with the fewest samples within its bound unless they keep their own."""
    parts = []
    for kernel, launches in zip(population.kernels[0].tolist(), population.by_kernel, strict=True):
        leaves = leaves_of(cells_from_histogram(histogram_of(population.duration_ns[launches])))
        if not keeps_samples:
            bound = variance_bound(float(population.x[launches].sum()), options.epsilon, options.confidence)
            leaves["n_samples"] = allocate(
                leaves["n_population"],
                leaves["stddev_ns"],
                leaves["mean_ns"],
                bound,
                start=leaves["n_samples"],
            )
        parts.append(leaves.assign(kernel_id=kernel, launch_config_ids=None))
    strata = pd.concat(parts, ignore_index=True)
    return Design(StratifiedSample(assign(population, strata)), len(strata))


def simple_random(population: Population, options: Options) -> Design:
    """Launches of all kernels alike, as many as the central limit theorem asks for on the profile."""
    return Design(SimpleSample(population.size, _clt_size(population, options)), 1)


def systematic(population: Population, options: Options) -> Design:
    """SMARTS (Wunderlich et al., ISCA 2003): launches at equal distances, as many as the same theorem asks for."""
    return Design(SystematicSample(population.size, _clt_size(population, options)), 1)


def first_launch(population: Population, options: Options) -> Design:
    """The first launch of each kernel in the run, standing for all of them."""
    launches = population.by_kernel
    return Design(
        FixedSample([part[0] for part in launches], [part.size for part in launches]), len(launches)
    )


def assign(population: Population, strata: pd.DataFrame) -> Strata:
    """Strata of a plan as numbers of launches.

    strata: kernel_id, launch_config_ids (a list, or None for all), lower_ns, upper_ns, n_population, n_samples, and
    is_pps where the plan is of two profiles. Strata without launches of their own and launches without a stratum are a
    DataError: such a plan is of another run.
    """
    ids, _ = population.kernels
    ordered = strata.assign(kernel=np.searchsorted(ids, strata["kernel_id"])).sort_values(
        "kernel", kind="stable"
    )
    of_launch = np.full(population.size, -1, dtype=np.int64)
    columns = zip(
        ordered["kernel"], ordered["launch_config_ids"], ordered["lower_ns"], ordered["upper_ns"], strict=True
    )
    for number, (kernel, configs, lower, upper) in enumerate(columns):
        launches = population.by_kernel[int(kernel)]
        duration = population.duration_ns[launches]
        inside = (duration >= lower) & (duration <= upper)
        if isinstance(configs, list):
            inside &= np.isin(population.launch_config_id[launches], configs)
        of_launch[launches[inside]] = number
    result = Strata(
        of_launch,
        ordered["n_samples"].to_numpy(dtype=np.int64),
        ordered["kernel"].to_numpy(dtype=np.int64),
        ordered["is_pps"].to_numpy(dtype=np.bool_) if "is_pps" in ordered.columns else None,
    )
    if (of_launch < 0).any() or not np.array_equal(result.sizes, ordered["n_population"]):
        raise DataError("the strata of a plan do not hold the launches they were made for")
    return result


def _clt_size(population: Population, options: Options) -> int:
    """Smallest m with n^2 S^2 (1/m - 1/n) <= (eps T / z)^2, S over the launches of all kernels."""
    bound = variance_bound(float(population.x.sum()), options.epsilon, options.confidence)
    stddev = float(population.x.std(ddof=1)) if population.size > 1 else 0.0
    return smallest_sample(population.size, stddev, bound)


def _signature(choose: Callable[[Population], signatures.Chosen]) -> Method:
    def method(population: Population, options: Options) -> Design:
        chosen = choose(population)
        return Design(FixedSample(chosen.positions, chosen.weights), chosen.positions.size)

    return method


METHODS: dict[str, Method] = {
    **{f"optimal/{guarantee}": partial(optimal, guarantee=guarantee) for guarantee in GUARANTEES},
    **{f"two-profiles/{guarantee}": partial(two_profiles, guarantee=guarantee) for guarantee in GUARANTEES},
    "stem-root": partial(stem_root, paper=False),
    "stem-root-paper": partial(stem_root, paper=True),
    "density": density,
    "random": simple_random,
    "systematic": systematic,
    "first-launch": first_launch,
    "pka": _signature(signatures.pka),
    "sieve": _signature(signatures.sieve),
    "photon": _signature(signatures.photon),
    "simpoint": _signature(signatures.simpoint),
}


def methods_named(names: list[str] | tuple[str, ...]) -> list[str]:
    """Names of METHODS; `optimal` stands for each of its guarantees. UsageError for an unknown one."""
    chosen: list[str] = []
    for name in names:
        found = [known for known in METHODS if known == name or known.split("/")[0] == name]
        if not found:
            raise UsageError(f"--methods {name}: known are optimal, {', '.join(METHODS)}")
        chosen += [known for known in found if known not in chosen]
    return chosen
