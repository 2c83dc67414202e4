"""Configuration: ``conf/stemroot.toml`` -> frozen dataclasses.

The packaged TOML file is the only place with defaults. Files given with ``--config``, then ``--set`` overrides, then
job flags are laid over it; an unknown section or key is an error that names the closest known one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from stemroot_spark.errors import ConfigError, UsageError
from stemroot_spark.phases.patterns import Patterns
from stemroot_spark.resources import read_text

FORMATS = ("auto", "nsys-parquet", "nsys-sqlite", "nsys-csv", "kineto")
PAPER_METHOD = "stem-root-paper"
DENSITY_METHOD = "density"
METHODS = ("optimal", "stem-root", PAPER_METHOD, DENSITY_METHOD)
GUARANTEES = ("auto", "transfer", "total", "per-kernel", "worst-case")
COMMUNICATION = ("exclude", "include")
STRATA_BY = ("none", "first-launches", "phase", "rank-group")
DEFAULT_LAUNCH_NOISE = 0.03


def _require(condition: bool, option: str, value: object, domain: str) -> None:
    if not condition:
        raise UsageError(f"{option} is {value!r}, but must be {domain}")


def _is_expression(text: str) -> bool:
    try:
        re.compile(text, re.ASCII)
    except re.error:
        return False
    return True


@dataclass(frozen=True)
class IngestConfig:
    """Options of ingest; see ``conf/stemroot.toml``."""

    format: str
    max_bad_fraction: float
    max_duration_ns: int
    rows_per_batch: int
    nvtx_domains: list[str]
    iteration_patterns: list[str]
    phase_patterns: dict[str, str]

    def __post_init__(self) -> None:
        _require(self.format in FORMATS, "ingest.format", self.format, f"one of {', '.join(FORMATS)}")
        _require(
            0 <= self.max_bad_fraction <= 1,
            "ingest.max_bad_fraction",
            self.max_bad_fraction,
            "between 0 and 1",
        )
        _require(self.max_duration_ns > 0, "ingest.max_duration_ns", self.max_duration_ns, "above 0")
        _require(self.rows_per_batch > 0, "ingest.rows_per_batch", self.rows_per_batch, "above 0")
        for option, texts in {
            "nvtx_domains": self.nvtx_domains,
            "iteration_patterns": self.iteration_patterns,
            "phase_patterns": list(self.phase_patterns.values()),
        }.items():
            is_text = all(isinstance(text, str) for text in texts)
            _require(is_text, f"ingest.{option}", texts, "texts")
        for pattern in (*self.iteration_patterns, *self.phase_patterns.values()):
            _require(_is_expression(pattern), "ingest pattern", pattern, "a regular expression")

    def patterns(self) -> Patterns:
        """What names of NVTX ranges mean."""
        return Patterns.of(self.iteration_patterns, self.phase_patterns, self.nvtx_domains)


@dataclass(frozen=True)
class MomentsConfig:
    """Options of moments; see ``conf/stemroot.toml``."""

    autocorrelation_ranks: int

    def __post_init__(self) -> None:
        ranks = self.autocorrelation_ranks
        _require(ranks >= 0, "moments.autocorrelation_ranks", ranks, "0 or above")


@dataclass(frozen=True)
class PlanConfig:
    """Options of plan; see ``conf/stemroot.toml``."""

    method: str
    guarantee: str
    epsilon: float
    confidence: float
    factor_spread: float
    launch_noise: float | str
    worst_case_factor: float
    communication: str
    seed: int
    warmup_launches: int
    driver_histogram_rows: int
    split_hysteresis: float
    stability_replicates: int
    density_distance: float
    density_share: float
    strata_by: str
    ranks_per_group: int

    def __post_init__(self) -> None:
        _require(self.method in METHODS, "plan.method", self.method, f"one of {', '.join(METHODS)}")
        _require(
            self.guarantee in (GUARANTEES if self.method == "optimal" else ("auto", "per-kernel")),
            "plan.guarantee",
            self.guarantee,
            f"one of {', '.join(GUARANTEES)}, and for methods other than optimal per-kernel",
        )
        _require(0 < self.epsilon < 1, "plan.epsilon", self.epsilon, "above 0 and below 1")
        _require(0 < self.confidence < 1, "plan.confidence", self.confidence, "above 0 and below 1")
        _require(self.factor_spread >= 0, "plan.factor_spread", self.factor_spread, "0 or above")
        _require(self.worst_case_factor > 1, "plan.worst_case_factor", self.worst_case_factor, "above 1")
        noise_ok = self.launch_noise == "auto" or (
            isinstance(self.launch_noise, float) and 0 < self.launch_noise < 10
        )
        _require(noise_ok, "plan.launch_noise", self.launch_noise, "auto or a number above 0 and below 10")
        _require(
            self.communication in COMMUNICATION,
            "plan.communication",
            self.communication,
            f"one of {', '.join(COMMUNICATION)}",
        )
        _require(-(2**63) <= self.seed < 2**63, "plan.seed", self.seed, "a 64-bit integer")
        _require(self.warmup_launches >= 0, "plan.warmup_launches", self.warmup_launches, "0 or above")
        rows = self.driver_histogram_rows
        _require(rows >= 0, "plan.driver_histogram_rows", rows, "0 or above")
        margin, replicates = self.split_hysteresis, self.stability_replicates
        _require(0 <= margin < 1, "plan.split_hysteresis", margin, "0 or above and below 1")
        _require(0 <= replicates <= 10_000, "plan.stability_replicates", replicates, "from 0 to 10000")
        distance, share = self.density_distance, self.density_share
        _require(0 < distance < 10, "plan.density_distance", distance, "above 0 and below 10")
        _require(
            self.strata_by in (STRATA_BY if self.method == "optimal" else ("none",)),
            "plan.strata_by",
            self.strata_by,
            f"one of {', '.join(STRATA_BY)}, and for methods other than optimal none",
        )
        _require(self.ranks_per_group > 0, "plan.ranks_per_group", self.ranks_per_group, "1 or above")
        _require(0 < share <= 1, "plan.density_share", share, "above 0 and at most 1")

    def resolved_guarantee(self) -> str:
        """The guarantee, with ``auto`` read as what the method is made for."""
        if self.guarantee != "auto":
            return self.guarantee
        return "transfer" if self.method == "optimal" else "per-kernel"

    def resolved_launch_noise(self) -> tuple[float, str]:
        """Launch noise as a number, and where it comes from (``option`` or ``default``)."""
        if isinstance(self.launch_noise, float):
            return self.launch_noise, "option"
        return DEFAULT_LAUNCH_NOISE, "default"


@dataclass(frozen=True)
class DrawConfig:
    """Margins of the hash threshold of the draw; they change speed, never the sample."""

    margin_sigma: float
    margin_constant: float

    def __post_init__(self) -> None:
        _require(self.margin_sigma >= 0, "draw.margin_sigma", self.margin_sigma, "0 or above")
        _require(self.margin_constant >= 0, "draw.margin_constant", self.margin_constant, "0 or above")


@dataclass(frozen=True)
class EvaluateConfig:
    """Options of evaluate; what methods aim at are those of plan."""

    draws: int
    max_launches: int

    def __post_init__(self) -> None:
        _require(1 <= self.draws <= 10**7, "evaluate.draws", self.draws, "between 1 and 10 000 000")
        _require(self.max_launches >= 1, "evaluate.max_launches", self.max_launches, "1 or above")


@dataclass(frozen=True)
class IoConfig:
    """Retries of conflicting commits."""

    commit_attempts: int
    commit_backoff_s: float

    def __post_init__(self) -> None:
        _require(self.commit_attempts >= 1, "io.commit_attempts", self.commit_attempts, "1 or above")
        _require(self.commit_backoff_s >= 0, "io.commit_backoff_s", self.commit_backoff_s, "0 or above")


@dataclass(frozen=True)
class Config:
    """The resolved configuration, one attribute per section of ``conf/stemroot.toml``."""

    ingest: IngestConfig
    moments: MomentsConfig
    plan: PlanConfig
    draw: DrawConfig
    evaluate: EvaluateConfig
    io: IoConfig

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, for fingerprints and summaries."""
        return asdict(self)


_SECTIONS: dict[str, type] = {
    "ingest": IngestConfig,
    "moments": MomentsConfig,
    "plan": PlanConfig,
    "draw": DrawConfig,
    "evaluate": EvaluateConfig,
    "io": IoConfig,
}


def load_config(
    files: Iterable[str] = (),
    overrides: Iterable[str] = (),
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Resolve the configuration from the defaults, TOML files, ``section.key=value`` overrides and job flags.

    Raises ConfigError for a malformed file, an unknown key or a value of the wrong type, UsageError for a value out
    of its domain.
    """
    values: dict[str, dict[str, Any]] = tomllib.loads(read_text("conf", "stemroot.toml"))
    for name in files:
        _overlay(values, _read_toml(name), name)
    for override in overrides:
        _overlay(values, _parse_override(override), f"--set {override}")
    for section, given in (flags or {}).items():
        _overlay(values, {section: {k: v for k, v in given.items() if v is not None}}, "command line")
    return Config(**{section: cls(**values[section]) for section, cls in _SECTIONS.items()})


def _read_toml(name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read configuration file {name}: {error.strerror}; check the path given with --config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{name} is not valid TOML: {error}; see conf/stemroot.toml for an example"
        ) from None


def _parse_override(text: str) -> dict[str, dict[str, Any]]:
    path, equals, raw = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot or not key:
        raise ConfigError(f"--set {text}: write it as section.key=value, for example plan.epsilon=0.02")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return {section: {key: value}}


def _overlay(values: dict[str, dict[str, Any]], new: Mapping[str, Any], origin: str) -> None:
    for section, entries in new.items():
        if section not in _SECTIONS:
            raise ConfigError(f"{origin}: unknown section [{section}]{_closest(section, _SECTIONS)}")
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{origin}: [{section}] must be a table of keys")
        types = {field.name: field.type for field in fields(_SECTIONS[section])}
        for key, value in entries.items():
            if key not in types:
                raise ConfigError(f"{origin}: unknown key {section}.{key}{_closest(key, types)}")
            values[section][key] = _coerce(value, str(types[key]), f"{origin}: {section}.{key}")


def _coerce(value: Any, declared: str, where: str) -> Any:
    """Accept an integer where a number is declared; refuse every other change of type."""
    allowed = [name.strip().partition("[")[0] for name in declared.split("|")]
    actual = type(value).__name__
    if actual in allowed:
        return value
    if actual == "int" and "float" in allowed:
        return float(value)
    raise ConfigError(f"{where} is {value!r} ({actual}), but must be {' or '.join(allowed)}")


def _closest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {match[0]}?" if match else f"; known are {', '.join(sorted(known))}"
