"""Compute the moments of a run: duration_histograms, rank_moments, kernel_moments."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--run-id", required=True, help="run to summarise")
    return result


def body(warehouse: Any, args: argparse.Namespace, config: Config) -> dict[str, Any]:
    from stemroot_spark.moments import moments

    return moments(
        warehouse,
        run_id=args.run_id,
        autocorrelation_ranks=config.moments.autocorrelation_ranks,
        replace=args.replace,
    )


if __name__ == "__main__":
    sys.exit(run_job(parser(), body))
