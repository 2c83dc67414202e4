"""The main job: ingest traces as one run, compute its moments and plan its sample, in one application."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config
from stemroot_spark.flags import add_ingest_flags, add_plan_flags, check_sources, ingest_options, plan_options


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--run-id", required=True, help="name of this run")
    add_ingest_flags(result)
    add_plan_flags(result)
    return result


def config_flags(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    return {**ingest_options(args), **plan_options(args)}


def body(warehouse: Any, args: argparse.Namespace, config: Config) -> dict[str, Any]:
    from stemroot_spark.pipeline import pipeline

    return pipeline(
        warehouse,
        sources=args.source,
        run_id=args.run_id,
        plan_id=args.plan_id,
        workload=args.workload,
        rank=args.rank,
        config=config,
        replace=args.replace,
    )


if __name__ == "__main__":
    sys.exit(run_job(parser(), body, config_flags=config_flags, precheck=check_sources))
