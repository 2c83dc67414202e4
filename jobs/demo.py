"""Demonstrate the whole way: a small generated fleet, or your own traces up to the plan."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--folder", type=Path, required=True, help="where traces and tables are written")
    result.add_argument("--traces", metavar="FOLDER", help="your nsys exports; stops at the plan")
    return result


def body(warehouse: Any, args: argparse.Namespace, _config: Config) -> None:
    from stemroot_spark.demo import demo, demo_of_traces

    if args.traces:
        demo_of_traces(warehouse, args.traces)
    else:
        demo(warehouse, args.folder)


def main() -> int:
    # A small fleet on one machine: few partitions, and no time spent on optimising plans and code that run for seconds.
    os.environ.setdefault(
        "STEMROOT_SPARK_CONF",
        "spark.sql.shuffle.partitions=2;spark.databricks.delta.snapshotPartitions=1;spark.sql.adaptive.enabled=false;"
        "spark.sql.codegen.wholeStage=false;spark.ui.enabled=false;spark.ui.showConsoleProgress=false;"
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    )
    given = parser()
    args = sys.argv[1:]
    folder, _ = given.parse_known_args(args)
    return run_job(given, body, argv=[*args, "--warehouse", str(folder.folder.absolute() / "warehouse")])


if __name__ == "__main__":
    sys.exit(main())
