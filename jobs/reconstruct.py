"""Estimate the time of the workload and of each kernel from imported results: estimates."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--plan-id", required=True, help="plan the results belong to")
    result.add_argument("--results-id", required=True, help="imported results")
    return result


def body(warehouse: Any, args: argparse.Namespace, _config: Config) -> dict[str, Any]:
    from stemroot_spark.reconstruct import reconstruct

    return reconstruct(warehouse, plan_id=args.plan_id, results_id=args.results_id, replace=args.replace)


if __name__ == "__main__":
    sys.exit(run_job(parser(), body))
