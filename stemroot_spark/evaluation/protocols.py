"""Which outcome a plan is scored on: the profile (P0), an unseen run (P1), other hardware or a model of it (P2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stemroot_spark.errors import UsageError
from stemroot_spark.evaluation.designs import METHODS, Design, Options
from stemroot_spark.evaluation.outcomes import FactorOutcome, FixedOutcome, Outcome, SwappedModes
from stemroot_spark.evaluation.population import CannotRunError, FloatArray, Population
from stemroot_spark.evaluation.samples import FixedSample
from stemroot_spark.evaluation.score import Score, score

MODELS = ("kernel", "configuration", "modes")
_NO_OUTCOME = {"P0": "same", "P1": "run"}


@dataclass(frozen=True)
class Protocol:
    """A protocol by name: P0, P1, P2:run, P2:kernel:SD, P2:configuration:SD, P2:modes, P2:modes:PROBABILITY.

    outcome: same, run, or one of MODELS. parameter: standard deviation of the factors, or the probability that a
    kernel's modes swap; None for the others.
    """

    name: str
    protocol: str
    outcome: str
    parameter: float | None = None

    @property
    def needs_run(self) -> bool:
        """Whether the outcome is another run."""
        return self.outcome == "run"

    @classmethod
    def parse(cls, name: str) -> Protocol:
        """UsageError for a name that says none of the protocols."""
        protocol, _, rest = name.partition(":")
        if not rest and protocol in _NO_OUTCOME:
            return cls(name, protocol, _NO_OUTCOME[protocol])
        outcome, _, text = rest.partition(":")
        if protocol == "P2" and outcome == "run" and not text:
            return cls(name, protocol, outcome)
        if protocol == "P2" and outcome in MODELS:
            parameter = _number(text or ("1" if outcome == "modes" else ""))
            limit = 1.0 if outcome == "modes" else 10.0
            if parameter is not None and 0.0 < parameter <= limit:
                return cls(name, protocol, outcome, parameter)
        raise UsageError(
            f"--protocols {name}: give P0, P1, P2:run, P2:kernel:SD, P2:configuration:SD (SD above 0, for example "
            "0.5), P2:modes or P2:modes:PROBABILITY"
        )


class Evaluated(NamedTuple):
    """One method under one protocol: a score, or why there is none (status cannot_run).

    launch_noise: prior of its interval. noise_source: where a method that measured its own has it from.
    """

    method: str
    guarantee: str | None
    protocol: Protocol
    status: str
    reason: str | None
    score: Score | None
    launch_noise: float | None
    noise_source: str | None
    n_strata: int | None
    planning_seconds: float | None
    seconds: float | None

    def as_row(self) -> dict[str, Any]:
        """Columns of evaluations that a method fills; what cannot be told is None."""
        figures: dict[str, Any] = dict.fromkeys(Score._fields)
        if self.score is not None:
            figures = {name: _or_none(value) for name, value in self.score._asdict().items()}
        return {
            "method": self.method,
            "guarantee": self.guarantee,
            "protocol": self.protocol.protocol,
            "outcome": self.protocol.outcome,
            "model_parameter": self.protocol.parameter,
            "status": self.status,
            "reason": self.reason,
            **figures,
            **({} if self.launch_noise is None else {"launch_noise": self.launch_noise}),
            **({} if self.noise_source is None else {"launch_noise_source": self.noise_source}),
            "n_strata": self.n_strata,
            "planning_seconds": self.planning_seconds,
            "seconds": self.seconds,
        }


def evaluate(
    population: Population,
    methods: Sequence[str],
    protocols: Sequence[Protocol],
    options: Options,
    *,
    draws: int,
    y_ns: FloatArray | None = None,
) -> list[Evaluated]:
    """Every method, named as in METHODS, under every protocol; y_ns is the other run's time of each launch.

    All methods of a protocol meet the same outcomes. UsageError for a protocol that needs y_ns without it.
    """
    if y_ns is None and any(protocol.needs_run for protocol in protocols):
        raise UsageError("protocols P1 and P2:run need another run: give --against-run-id")
    outcomes = [_outcome(population, protocol, y_ns) for protocol in protocols]
    results = []
    for method in methods:
        started = time.perf_counter()
        design, problem = _designed(population, method, options)
        planning = time.perf_counter() - started
        for protocol, outcome in zip(protocols, outcomes, strict=True):
            results.append(
                _evaluated(population, method, design, problem, protocol, outcome, options, draws, planning)
            )
    return results


def _designed(population: Population, method: str, options: Options) -> tuple[Design | None, str | None]:
    try:
        return METHODS[method](population, options), None
    except CannotRunError as error:
        return None, str(error)


def _evaluated(
    population: Population,
    method: str,
    design: Design | None,
    problem: str | None,
    protocol: Protocol,
    outcome: Outcome,
    options: Options,
    draws: int,
    planning_seconds: float,
) -> Evaluated:
    name, _, guarantee = method.partition("/")
    head = (name, guarantee or None, protocol)
    if design is not None and protocol.protocol == "P0" and isinstance(design.sample, FixedSample):
        problem = "cannot run: needs a random draw; scored on the durations it was chosen by, one choice proves nothing"
    elif design is not None and protocol.protocol == "P0" and design.sample.is_per_ns is not None:
        problem = "cannot run: needs another outcome; draws in proportion to the profile estimate the profile exactly"
    elif design is not None and isinstance(outcome, SwappedModes) and not outcome.n_kernels:
        problem = "cannot run: needs a kernel of two modes"
    elif problem is not None:
        problem = f"cannot run: {problem}"
    if design is None or problem is not None:
        return Evaluated(*head, "cannot_run", problem, None, None, None, None, None, None)
    noise, source = options.launch_noise, None
    if design.noise is not None:
        noise, source = design.noise.value, design.noise.source
    started = time.perf_counter()
    result = score(
        population,
        design.sample,
        outcome,
        epsilon=options.epsilon,
        confidence=options.confidence,
        launch_noise=noise,
        draws=draws,
        seed=options.seed,
    )
    seconds = time.perf_counter() - started
    return Evaluated(
        *head, "ok", design.reason, result, noise, source, design.n_strata, planning_seconds, seconds
    )


def _outcome(population: Population, protocol: Protocol, y_ns: FloatArray | None) -> Outcome:
    if protocol.outcome == "run" and y_ns is not None:
        return FixedOutcome(population, y_ns)
    if protocol.parameter is None:
        return FixedOutcome(population, population.x)
    if protocol.outcome == "modes":
        return SwappedModes(population, protocol.parameter)
    groups = population.kernels[1] if protocol.outcome == "kernel" else population.configurations
    return FactorOutcome(population.repeated(), groups, protocol.parameter)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _or_none(value: float) -> float | int | None:
    return None if isinstance(value, float) and not np.isfinite(value) else value
