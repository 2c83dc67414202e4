"""Import the simulated times of a plan's sample: simulation_results."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--plan-id", required=True, help="plan whose sample was simulated")
    result.add_argument("--results-id", required=True, help="name of these results")
    result.add_argument(
        "--simulator",
        choices=("csv", "profile"),
        required=True,
        help="csv: a file with rank, launch_index, value, unit; profile: durations of another run",
    )
    result.add_argument("--source", metavar="URI", help="the file of results, for csv")
    result.add_argument("--from-run-id", help="the run to replay, for profile")
    result.add_argument("--clock-mhz", type=float, metavar="MHZ", help="turn cycles into ns at this clock")
    return result


def body(warehouse: Any, args: argparse.Namespace, _config: Config) -> dict[str, Any]:
    from stemroot_spark.results import import_results

    return import_results(
        warehouse,
        plan_id=args.plan_id,
        results_id=args.results_id,
        simulator=args.simulator,
        source=args.source,
        from_run_id=args.from_run_id,
        clock_mhz=args.clock_mhz,
        replace=args.replace,
    )


if __name__ == "__main__":
    sys.exit(run_job(parser(), body))
