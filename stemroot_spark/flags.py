"""Flags that several jobs share, and how they map to the configuration."""

from __future__ import annotations

import argparse
from typing import Any

from stemroot_spark.config import COMMUNICATION, FORMATS, GUARANTEES, METHODS
from stemroot_spark.errors import UsageError
from stemroot_spark.location import check_id


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
    _add_aim_flags(flags)


def plan_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Configuration values given by the flags of plan."""
    return {"plan": {name: getattr(args, name) for name in ("method", "guarantee", *_AIMS)}}


def add_evaluate_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of evaluate, ``--run-id`` left out."""
    flags = parser.add_argument_group("evaluate")
    flags.add_argument("--evaluation-id", required=True, help="name of this evaluation")
    flags.add_argument("--against-run-id", help="run that stands for the simulation, for P1 and P2:run")
    flags.add_argument(
        "--repeat-run-id", help="second profile of the workload, for methods that plan from two"
    )
    flags.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="methods, such as optimal/transfer, optimal or two-profiles; default: all",
    )
    flags.add_argument(
        "--protocols",
        nargs="+",
        default=[],
        metavar="P",
        help="P0, P1, P2:run, P2:kernel:SD, P2:configuration:SD, P2:modes[:PROBABILITY]; default: P0, and P1 with "
        "--against-run-id",
    )
    flags.add_argument("--draws", type=int, metavar="N", help="samples drawn per method and protocol")
    flags.add_argument(
        "--features",
        metavar="[RANK=]URI",
        action="append",
        default=[],
        help="ncu CSV, instruction counts or basic-block vectors of the run to import first (repeatable)",
    )
    flags.add_argument(
        "--suite-with",
        metavar="ID",
        action="append",
        default=[],
        help="finished evaluation to summarise together with this one (repeatable)",
    )
    _add_aim_flags(flags)


def evaluate_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Configuration values given by the flags of evaluate."""
    return {
        "plan": {name: getattr(args, name) for name in _AIMS},
        "evaluate": {"draws": args.draws},
    }


def check_evaluation(args: argparse.Namespace) -> None:
    """Refuse methods, protocols and ids that cannot be, before Spark starts."""
    from stemroot_spark.evaluation.designs import methods_named
    from stemroot_spark.evaluation.protocols import Protocol

    methods_named(args.methods)
    protocols = [Protocol.parse(name) for name in args.protocols]
    if args.against_run_id is None and any(protocol.needs_run for protocol in protocols):
        raise UsageError("protocols P1 and P2:run need another run: give --against-run-id")
    for name in args.suite_with:
        check_id("--suite-with", name)


_AIMS = ("epsilon", "confidence", "factor_spread", "launch_noise", "communication", "seed")


def _add_aim_flags(flags: argparse._ArgumentGroup) -> None:
    """What a plan aims at; methods that are evaluated aim at the same."""
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


def _rank(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**31 - 1}")
    return int(text)


def _noise(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number") from None
