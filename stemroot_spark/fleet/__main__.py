"""The command `python -m stemroot_spark.fleet`."""

import argparse
import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from stemroot_spark.errors import StemRootError
from stemroot_spark.fleet.changes import SYNTAX, FleetError, parse_change
from stemroot_spark.fleet.schema import NEWEST, RUNGS
from stemroot_spark.fleet.spec import FleetSpec, describe
from stemroot_spark.fleet.workload import iterations_for
from stemroot_spark.fleet.writer import WriterOptions, write_fleet

EPILOG = """\
A second night with one kernel class 20 % faster and one shape slower:

  python -m stemroot_spark.fleet --out night1 --launches 1000000 --seed 1 --night 1 \\
      --change 'flash_fwd:factor=0.8' --change 'nvjet_tst_256x128@1:factor=1.4'

OUT appears whole or not at all; a killed run leaves a hidden .OUT.partial-PID beside it, to be deleted.
The specification goes to stderr, the truth's summary as one JSON line to stdout.
Exit code 0: written; 2: a flag or a change that cannot be, or a folder that is not empty.
"""
SPEC_HELP = {
    "layers": "transformer layers; an iteration has about 62 launches per layer",
    "seed": "of everything that repeats every night",
    "night": "which repetition of the fleet, with noise of its own",
    "launch_noise": "relative spread of a launch around its base",
    "clock_spread": "relative spread of the clock between phases",
    "clock_phase_iterations": "length of a clock phase",
    "drift": "relative slow-down from the first iteration to the last",
    "rank_spread": "relative spread between GPUs",
    "shape_spread": "relative spread of launch configurations around the catalogue",
    "second_mode_share": "share of the slower mode in bimodal configurations",
    "second_mode_ratio": "its duration over that of the faster mode",
    "length_sigma": "sigma of the lognormal sequence length",
    "length_exponent": "attention takes length ** exponent",
    "straggler_share": "share of communication launches that wait",
    "straggler_tail_index": "Pareto index of their waiting; infinite variance below 2",
    "warmup_iterations": "slower first iterations",
    "warmup_slowdown": "relative slowness of the first, halving with each",
    "evaluation_interval_iterations": "iterations between runs of the rare kernels",
}
# Flags of their own, not generated from the fields of the specification.
_OWN_FLAGS = frozenset({"ranks", "iterations", "changes", "stragglers_per_night"})


def parser() -> argparse.ArgumentParser:
    """The command line; every parameter of FleetSpec has a flag."""
    command = argparse.ArgumentParser(
        prog="python -m stemroot_spark.fleet",
        description="Write an LLM training fleet, one nsys parquetdir per rank, and its truth beside it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--out", type=Path, required=True, help="folder of the fleet, made by this command")
    command.add_argument("--truth", type=Path, help="file of the truth (default: OUT.truth.json)")
    command.add_argument("--overwrite", action="store_true", help="replace a fleet that is in OUT")
    command.add_argument("--workers", type=int, default=1, help="ranks written at the same time (default 1)")
    command.add_argument("--ranks", type=int, default=FleetSpec.ranks, help="GPUs (default %(default)s)")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--launches", type=int, help="about how many launches in all; gives the iterations")
    size.add_argument(
        "--iterations", type=int, default=FleetSpec.iterations, help="optimizer steps (default %(default)s)"
    )
    command.add_argument(
        "--change", action="append", default=[], metavar="CHANGE", help=SYNTAX.replace("%", "%%")
    )
    _add_export_flags(command.add_argument_group("export"))
    _add_spec_flags(command.add_argument_group("workload (see FleetSpec)"))
    return command


def _add_export_flags(group: argparse._ArgumentGroup) -> None:
    yes_no = argparse.BooleanOptionalAction
    group.add_argument(
        "--schema-version",
        choices=list(RUNGS),
        default=NEWEST,
        help="EXPORT_SCHEMA_VERSION (default %(default)s)",
    )
    group.add_argument(
        "--lazy",
        dest="is_lazy",
        action="store_true",
        default=True,
        help="no file for an empty table (default)",
    )
    group.add_argument(
        "--non-lazy", dest="is_lazy", action="store_false", help="a file of 0 rows for an empty table"
    )
    group.add_argument("--nvtx", action=yes_no, default=True, help="NVTX_EVENTS")
    group.add_argument("--nvtx-layers", action="store_true", help="ranges of layers too")
    group.add_argument("--runtime", action=yes_no, default=True, help="CUPTI_ACTIVITY_KIND_RUNTIME")
    group.add_argument(
        "--autograd-thread", action="store_true", help="launch the backward pass from a second thread"
    )
    group.add_argument(
        "--hardware-id", type=int, help="top byte of globalPid, 0 to 255 (default: 0 and 1 in turn)"
    )
    group.add_argument(
        "--plant-secrets", action="store_true", help="fake secrets in environment and command line"
    )


def _add_spec_flags(group: argparse._ArgumentGroup) -> None:
    for field in fields(FleetSpec):
        if field.name not in _OWN_FLAGS:
            flag = "--" + field.name.replace("_", "-")
            text = f"{SPEC_HELP[field.name]} (default %(default)s)"
            group.add_argument(flag, type=type(field.default), default=field.default, metavar="N", help=text)
    group.add_argument(
        "--stragglers-per-night",
        action=argparse.BooleanOptionalAction,
        default=FleetSpec.stragglers_per_night,
        help="draw the waiting of communication anew every night",
    )


def _spec(arguments: argparse.Namespace) -> FleetSpec:
    values = {
        field.name: getattr(arguments, field.name) for field in fields(FleetSpec) if field.name != "changes"
    }
    spec = FleetSpec(**values, changes=tuple(parse_change(text) for text in arguments.change))
    if arguments.launches is None:
        return spec
    if arguments.launches < 1:
        raise FleetError(f"--launches is {arguments.launches}, it must be at least 1")
    return replace(spec, iterations=iterations_for(arguments.launches, spec))


def _options(arguments: argparse.Namespace) -> WriterOptions:
    return WriterOptions(
        schema_version=arguments.schema_version,
        is_lazy=arguments.is_lazy,
        has_nvtx=arguments.nvtx,
        has_runtime=arguments.runtime,
        has_layer_ranges=arguments.nvtx_layers,
        has_autograd_thread=arguments.autograd_thread,
        hardware_id=arguments.hardware_id,
        plant_secrets=arguments.plant_secrets,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    started = time.monotonic()
    try:
        if arguments.workers < 1:
            raise FleetError(f"--workers is {arguments.workers}, it must be at least 1")
        spec = _spec(arguments)
        print(describe(spec), file=sys.stderr)
        truth = write_fleet(
            arguments.out,
            spec,
            _options(arguments),
            truth_path=arguments.truth,
            overwrite=arguments.overwrite,
            workers=arguments.workers,
        )
    except StemRootError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}; check the path and the space on it", file=sys.stderr)
        return 1
    summary = {"out": str(arguments.out), "launches": truth["launches"], "total_ns": truth["total_ns"]}
    print(json.dumps(summary | {"seconds": round(time.monotonic() - started, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
