"""Flags that several jobs share, and how they map to the configuration."""

from __future__ import annotations

import argparse
from typing import Any

from stemroot_spark.config import COMMUNICATION, FORMATS, GUARANTEES, METHODS


def add_ingest_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ingest, ``--run-id`` left out."""
    flags = parser.add_argument_group("ingest")
    flags.add_argument(
        "--source", metavar="URI", action="append", required=True, help="file, folder or glob (repeatable)"
    )
    flags.add_argument("--workload", help="name of the workload, the same every night")
    flags.add_argument("--format", choices=FORMATS, help="default: recognise each source by its content")
    flags.add_argument("--rank", type=_rank, metavar="N", help="rank of the one process in the source")
    flags.add_argument("--max-bad-fraction", type=float, metavar="F", help="share of bad sources to accept")


def ingest_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Configuration values given by the flags of ingest."""
    return {"ingest": {"format": args.format, "max_bad_fraction": args.max_bad_fraction}}


def check_sources(args: argparse.Namespace) -> None:
    """Refuse a ``--source`` that names nothing."""
    from stemroot_spark.sources.discover import discover

    discover(args.source)


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of plan, ``--run-id`` left out."""
    flags = parser.add_argument_group("plan")
    flags.add_argument("--plan-id", required=True, help="name of this plan")
    flags.add_argument("--method", choices=METHODS, help="how strata and sample sizes are chosen")
    flags.add_argument("--guarantee", choices=GUARANTEES, help="what the error bound speaks of")
    flags.add_argument("--epsilon", type=float, metavar="E", help="relative error bound, above 0 and below 1")
    flags.add_argument("--confidence", type=float, metavar="P", help="probability that the bound holds")
    flags.add_argument(
        "--factor-spread", type=float, metavar="S", help="spread of the factor per launch configuration"
    )
    flags.add_argument(
        "--launch-noise",
        type=_noise,
        metavar="auto|S",
        help="spread per launch between profile and simulation",
    )
    flags.add_argument(
        "--communication", choices=COMMUNICATION, help="whether communication kernels are planned"
    )
    flags.add_argument("--seed", type=int, metavar="N", help="seed of the draw")


def plan_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Configuration values given by the flags of plan."""
    names = (
        "method",
        "guarantee",
        "epsilon",
        "confidence",
        "factor_spread",
        "launch_noise",
        "communication",
        "seed",
    )
    return {"plan": {name: getattr(args, name) for name in names}}


def _rank(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**31 - 1}")
    return int(text)


def _noise(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number") from None
