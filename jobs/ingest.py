"""Ingest nsys exports as one run: trace_files, kernels, launch_configs, kernel_launches, runs."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config
from stemroot_spark.flags import add_ingest_flags, check_sources, ingest_options


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--run-id", required=True, help="name of this run")
    add_ingest_flags(result)
    return result


def body(warehouse: Any, args: argparse.Namespace, config: Config) -> dict[str, Any]:
    from stemroot_spark.ingest import ingest

    return ingest(
        warehouse,
        sources=args.source,
        run_id=args.run_id,
        workload=args.workload,
        rank=args.rank,
        config=config.ingest,
        replace=args.replace,
    )


if __name__ == "__main__":
    sys.exit(run_job(parser(), body, config_flags=ingest_options, precheck=check_sources))
