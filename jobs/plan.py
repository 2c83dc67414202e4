"""Choose the launches of a run to simulate: strata, split_decisions, sample_manifest, plans."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config
from stemroot_spark.flags import add_plan_flags, plan_options


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--run-id", required=True, help="run to plan for")
    result.add_argument(
        "--repeat-run-id", metavar="ID", help="second profile of the same workload, to plan from both"
    )
    add_plan_flags(result)
    return result


def body(warehouse: Any, args: argparse.Namespace, config: Config) -> dict[str, Any]:
    from stemroot_spark.planning import plan

    return plan(
        warehouse,
        run_id=args.run_id,
        plan_id=args.plan_id,
        config=config,
        repeat_run_id=args.repeat_run_id,
        replace=args.replace,
    )


if __name__ == "__main__":
    sys.exit(run_job(parser(), body, config_flags=plan_options))
