"""Score sampling methods on a run whose launches are all known: evaluations, and kernel_features with --features."""

import argparse
import sys
from typing import Any

from stemroot_spark.cli import job_parser, run_job
from stemroot_spark.config import Config
from stemroot_spark.flags import add_evaluate_flags, check_evaluation, evaluate_options


def parser() -> argparse.ArgumentParser:
    result = job_parser(__doc__ or "")
    result.add_argument("--run-id", required=True, help="run to choose launches of")
    add_evaluate_flags(result)
    return result


def body(warehouse: Any, args: argparse.Namespace, config: Config) -> dict[str, Any]:
    from stemroot_spark.evaluate import Request, evaluate

    request = Request(
        run_id=args.run_id,
        evaluation_id=args.evaluation_id,
        against_run_id=args.against_run_id,
        repeat_run_id=args.repeat_run_id,
        methods=args.methods,
        protocols=args.protocols,
        features=args.features,
        suite_with=args.suite_with,
    )
    return evaluate(warehouse, request, config=config, replace=args.replace)


if __name__ == "__main__":
    sys.exit(run_job(parser(), body, config_flags=evaluate_options, precheck=check_evaluation))
