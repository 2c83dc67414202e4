"""Durations of a fleet's launches, block by block, from a specification alone.

Draws that repeat every night and draws of one night come from separate generators per rank, each consumed in
launch order: the size of a block never changes a value, and a new kernel does not disturb the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stemroot_spark.fleet.catalogue import KERNELS
from stemroot_spark.fleet.changes import FactorChange, FleetError, NewKernelChange
from stemroot_spark.fleet.kernel import LENGTH_CLASS_LIMITS, MEDIAN_LENGTH_TOKENS, Kernel, LaunchConfig
from stemroot_spark.fleet.sequence import ConfigIds, Ints, Template, build_template
from stemroot_spark.fleet.spec import FleetSpec

Floats = npt.NDArray[np.float64]

TICK_NS = 32
SHORTEST_TICKS = 30
BLOCK_LAUNCHES = 131_072


class Draw(IntEnum):
    """What a generator is for; part of its seed."""

    SHAPE = 0
    RANK = 1
    WARMUP = 2
    LENGTH = 3
    MODE = 4
    STRAGGLER = 5
    CLOCK = 6
    NOISE = 7
    NEW_KERNEL = 8


@dataclass(frozen=True)
class Launches:
    """Launches of one rank in launch order, one entry per launch in every array.

    `kernel_index` counts in `kernel_table(spec)`, `config_index` inside the kernel's `configs`, `iteration`
    from 0, `phase` in PHASES; `duration_ns` is what the trace records.
    """

    kernel_index: Ints
    config_index: Ints
    duration_ns: Ints
    iteration: Ints
    phase: Ints


@dataclass(frozen=True)
class Block:
    """Consecutive whole iterations of one rank: `templates[i]` is iteration `first_iteration + i`."""

    first_iteration: int
    templates: tuple[Template, ...]
    config_id: Ints
    duration_ns: Ints

    @cached_property
    def bounds(self) -> Ints:
        """Where iterations begin and end in the arrays, (iterations + 1,)."""
        return np.cumsum([0, *(len(template) for template in self.templates)], dtype=np.int64)


class Workload:
    """A specification resolved to arrays over the flat table of launch configurations.

    Attributes:
        kernels: the kernel table, new kernels last.
        config_kernel, config_index: kernel and index inside it, per flat configuration id.
        base_ns: duration of a launch before everything that varies, per configuration, changes applied.

    Raises:
        FleetError: when a change names no kernel, or a configuration that does not exist.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        new = [change for change in spec.changes if isinstance(change, NewKernelChange)]
        self.kernels = KERNELS + tuple(_new_kernel(change, number) for number, change in enumerate(new))
        if len({kernel.name for kernel in self.kernels}) < len(self.kernels):
            raise FleetError(f"a new kernel has the name of one that exists; names: {[c.name for c in new]}")
        sizes = [len(kernel.configs) for kernel in self.kernels]
        self.config_kernel: Ints = np.repeat(np.arange(len(sizes)), sizes)
        self._first_config: Ints = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self.config_index: Ints = np.arange(sum(sizes)) - self._first_config[self.config_kernel]
        self.configs: tuple[LaunchConfig, ...] = tuple(c for kernel in self.kernels for c in kernel.configs)
        self._is_bimodal = np.array([config.is_bimodal for config in self.configs])
        self._follows_length = np.array([kernel.follows_length for kernel in self.kernels])[
            self.config_kernel
        ]
        self._ids = ConfigIds(
            {kernel.key: int(first) for kernel, first in zip(self.kernels, self._first_config, strict=True)},
            np.array([kernel.is_communication for kernel in self.kernels])[self.config_kernel],
            tuple(kernel.key for kernel in self.kernels[len(KERNELS) :]),
        )
        self._templates: dict[tuple[bool, bool], Template] = {}
        self.base_ns = self._base_ns(new) * self._change_factors()

    def template(self, iteration: int) -> Template:
        """The launch sequence of an iteration."""
        interval = self.spec.evaluation_interval_iterations
        kind = (iteration == 0, iteration % interval == interval - 1)
        if kind not in self._templates:
            self._templates[kind] = build_template(
                self._ids, self.spec.layers, is_first=kind[0], is_evaluated=kind[1]
            )
        return self._templates[kind]

    def launches_per_rank(self) -> int:
        """Number of launches of each rank, the same on all."""
        iterations = self.spec.iterations
        evaluations = iterations // self.spec.evaluation_interval_iterations
        ordinary = build_template(self._ids, self.spec.layers, is_first=False, is_evaluated=False)
        first = build_template(self._ids, self.spec.layers, is_first=True, is_evaluated=False)
        evaluated = build_template(self._ids, self.spec.layers, is_first=False, is_evaluated=True)
        extra = len(first) - len(ordinary) + evaluations * (len(evaluated) - len(ordinary))
        return iterations * len(ordinary) + extra

    def blocks(self, rank: int, block_launches: int = BLOCK_LAUNCHES) -> Iterator[Block]:
        """All launches of a rank as blocks of whole iterations, about `block_launches` each."""
        if not 0 <= rank < self.spec.ranks:
            raise FleetError(f"rank {rank} does not exist, the fleet has ranks 0 to {self.spec.ranks - 1}")
        draws = _RankDraws(self.spec, rank, len(self.kernels))
        per_block = max(1, block_launches // len(self.template(0)))
        for first in range(0, self.spec.iterations, per_block):
            iterations = np.arange(first, min(first + per_block, self.spec.iterations))
            yield self._block(iterations, draws)

    def _block(self, iterations: Ints, draws: "_RankDraws") -> Block:
        templates = tuple(self.template(int(iteration)) for iteration in iterations)
        config_id = np.concatenate([template.config_id for template in templates])
        is_new = np.concatenate([template.is_new for template in templates])
        position = np.repeat(np.arange(len(iterations)), [len(template) for template in templates])

        z = draws.length.standard_normal(len(iterations))
        follows = np.flatnonzero(self._follows_length[config_id])
        config_id[follows] += _length_class(z, self.spec.length_sigma)[position[follows]]

        duration = self.base_ns[config_id]
        duration[follows] *= _length_factor(z, self.spec)[position[follows]]
        bimodal = np.flatnonzero(self._is_bimodal[config_id])
        in_second = draws.mode.random(len(bimodal)) < self.spec.second_mode_share
        duration[bimodal[in_second]] *= self.spec.second_mode_ratio
        waiting = np.flatnonzero(self._ids.is_communication[config_id])
        duration[waiting] *= draws.straggler_factors(len(waiting))
        duration *= draws.iteration_factors(iterations)[position]
        if iterations[0] < self.spec.warmup_iterations:
            duration *= draws.warmup_factors(iterations)[position, self.config_kernel[config_id]]
        duration *= draws.launch_factors(is_new)
        ticks = np.maximum(np.rint(duration / TICK_NS), SHORTEST_TICKS)
        return Block(int(iterations[0]), templates, config_id, ticks.astype(np.int64) * TICK_NS)

    def _base_ns(self, new: list[NewKernelChange]) -> Floats:
        spec = self.spec
        catalogued = sum(len(kernel.configs) for kernel in KERNELS)
        base = np.array([config.duration_us for config in self.configs]) * 1000.0
        # One factor per kernel where the configurations are classes of one continuous length.
        shape = np.exp(_generator(spec, Draw.SHAPE).standard_normal(catalogued) * spec.shape_spread)
        first = self._first_config[self.config_kernel[:catalogued]]
        base[:catalogued] *= np.where(self._follows_length[:catalogued], shape[first], shape)
        if new:
            mode = np.where(self._is_bimodal, 1 + spec.second_mode_share * (spec.second_mode_ratio - 1), 1.0)
            template = build_template(self._ids, spec.layers, is_first=False, is_evaluated=False)
            counted = template.config_id[~template.is_communication & ~template.is_new]
            computation_ns = float((base * mode)[counted].sum())
            taken = sum(change.share for change in new)
            if taken >= 1:
                raise FleetError(f"the shares of the new kernels sum to {taken}, keep the sum below 1")
            base[catalogued:] = [computation_ns * c.share / (1 - taken) / spec.layers for c in new]
        return base

    def _change_factors(self) -> Floats:
        factors = np.ones(len(self.configs))
        for change in self.spec.changes:
            if isinstance(change, FactorChange):
                factors[self._changed_configs(change)] *= change.factor
        return factors

    def _changed_configs(self, change: FactorChange) -> Ints:
        matches = [i for i, kernel in enumerate(self.kernels) if change.name_substring in kernel.name]
        if not matches:
            some = ", ".join(kernel.short_name for kernel in self.kernels[:8])
            raise FleetError(f"change {str(change)!r} names no kernel; use a part of a name, such as {some}")
        if change.config_index is None:
            return np.flatnonzero(np.isin(self.config_kernel, matches))
        if len(matches) > 1:
            names = ", ".join(self.kernels[i].name[:60] for i in matches[:4])
            raise FleetError(
                f"change {str(change)!r} names {len(matches)} kernels, write more of one's name: {names}"
            )
        count = len(self.kernels[matches[0]].configs)
        if change.config_index >= count:
            raise FleetError(f"change {str(change)!r}: the kernel has configurations 0 to {count - 1}")
        return self._first_config[matches] + change.config_index


class _RankDraws:
    """The generators of one rank, and the factors drawn from them."""

    def __init__(self, spec: FleetSpec, rank: int, n_kernels: int) -> None:
        self.spec = spec
        self.length = _generator(spec, Draw.LENGTH, rank)
        self.mode = _generator(spec, Draw.MODE, rank)
        straggler_night = (spec.night,) if spec.stragglers_per_night else ()
        self._straggler = _generator(spec, Draw.STRAGGLER, rank, *straggler_night)
        self._noise = _generator(spec, Draw.NOISE, rank, spec.night)
        self._new_kernel = _generator(spec, Draw.NEW_KERNEL, rank, spec.night)
        self._rank_factor = _lognormal(_generator(spec, Draw.RANK, rank).standard_normal(1), spec.rank_spread)
        n_phases = -(-spec.iterations // spec.clock_phase_iterations)
        clock = _generator(spec, Draw.CLOCK, rank, spec.night)
        self._clock_factor = _lognormal(clock.standard_normal(n_phases), spec.clock_spread)
        # Per kernel of the catalogue first, so that a new kernel leaves the others' warm-up alone.
        self._warmup = _generator(spec, Draw.WARMUP).uniform(0.5, 1.5, n_kernels)

    def iteration_factors(self, iterations: Ints) -> Floats:
        """GPU, drift and clock phase together, (iterations,)."""
        last = max(self.spec.iterations - 1, 1)
        drift = 1 + self.spec.drift * (iterations / last - 0.5)
        clock = self._clock_factor[iterations // self.spec.clock_phase_iterations]
        factors: Floats = self._rank_factor * drift * clock
        return factors

    def warmup_factors(self, iterations: Ints) -> Floats:
        """Slowness of the first iterations, (iterations, kernels)."""
        left = np.where(iterations < self.spec.warmup_iterations, 0.5 ** iterations.astype(np.float64), 0.0)
        return 1 + self.spec.warmup_slowdown * np.multiply.outer(left, self._warmup)

    def straggler_factors(self, n: int) -> Floats:
        """Pareto factor of the communication launches that wait, else 1, (n,)."""
        u = np.maximum(self._straggler.random(n), 1e-12)
        waits = u < self.spec.straggler_share
        tail: Floats = (self.spec.straggler_share / u[waits]) ** (1 / self.spec.straggler_tail_index)
        factors = np.ones(n)
        factors[waits] = tail
        return factors

    def launch_factors(self, is_new: npt.NDArray[np.bool_]) -> Floats:
        """Launch noise, (launches,)."""
        if not is_new.any():
            z = self._noise.standard_normal(len(is_new))
        else:
            z = np.empty(len(is_new))
            z[~is_new] = self._noise.standard_normal(int((~is_new).sum()))
            z[is_new] = self._new_kernel.standard_normal(int(is_new.sum()))
        return _lognormal(z, self.spec.launch_noise)


def kernel_table(spec: FleetSpec) -> tuple[Kernel, ...]:
    """The kernels of the fleet (name, is_communication, configs), in the order of `Launches.kernel_index`."""
    return Workload(spec).kernels


def launches(spec: FleetSpec, rank: int, night: int | None = None) -> Launches:
    """All launches of one rank in memory, exactly those the writer writes.

    `night` overrides the specification's. For tests; a large fleet is read with `Workload.blocks`.
    """
    workload = Workload(spec if night is None else replace(spec, night=night))
    blocks = list(workload.blocks(rank))
    config_id = np.concatenate([block.config_id for block in blocks])
    templates = [template for block in blocks for template in block.templates]
    return Launches(
        kernel_index=workload.config_kernel[config_id],
        config_index=workload.config_index[config_id],
        duration_ns=np.concatenate([block.duration_ns for block in blocks]),
        iteration=np.repeat(np.arange(spec.iterations), [len(template) for template in templates]),
        phase=np.concatenate([template.phase for template in templates]),
    )


def iterations_for(n_launches: int, spec: FleetSpec) -> int:
    """Iterations with which a fleet of this specification has about `n_launches` in all, at least 1."""
    once = Workload(replace(spec, iterations=1)).launches_per_rank()
    many = Workload(replace(spec, iterations=10_001)).launches_per_rank()
    per_iteration = (many - once) / 10_000
    return max(1, round((n_launches / spec.ranks - once) / per_iteration + 1))


def _generator(spec: FleetSpec, draw: Draw, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(spec.seed, spawn_key=(draw, *key))))


def _lognormal(z: Floats, spread: float) -> Floats:
    """Lognormal factors of mean 1 and the given relative standard deviation from standard normals."""
    variance = np.log1p(spread**2)
    factors: Floats = np.exp(np.sqrt(variance) * z - variance / 2)
    return factors


def _length_class(z: Floats, sigma: float) -> Ints:
    length_tokens = MEDIAN_LENGTH_TOKENS * np.exp(sigma * z)
    return np.searchsorted(LENGTH_CLASS_LIMITS, length_tokens).astype(np.int64)


def _length_factor(z: Floats, spec: FleetSpec) -> Floats:
    """length ** exponent, scaled to mean 1."""
    sigma = spec.length_sigma * spec.length_exponent
    factors: Floats = np.exp(sigma * z - sigma**2 / 2)
    return factors


def _new_kernel(change: NewKernelChange, number: int) -> Kernel:
    config = LaunchConfig(duration_us=0.0, grid=(528, 1, 1), block=(256, 1, 1))
    return Kernel(f"new{number}", change.name, (config,))
