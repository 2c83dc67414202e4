"""What all jobs share: common flags, exit codes, errors in one line, the JSON summary."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemroot_spark.config import Config, load_config
from stemroot_spark.errors import StemRootError, UsageError
from stemroot_spark.location import Location, check_id

if TYPE_CHECKING:
    from stemroot_spark.tables import Warehouse

Body = Callable[["Warehouse", argparse.Namespace, Config], "dict[str, Any] | None"]


class _Parser(argparse.ArgumentParser):
    """Reports a bad flag as UsageError, so that all jobs print errors alike."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; see {self.prog} --help")


def job_parser(description: str) -> argparse.ArgumentParser:
    """Parser with the flags that all jobs have; parsing starts no Spark."""
    parser = _Parser(description=description, allow_abbrev=False)
    where = parser.add_argument_group("where the tables are (one of)")
    where.add_argument(
        "--warehouse", metavar="URI", help="folder or URI; each table is the Delta path URI/TABLE"
    )
    where.add_argument("--schema", metavar="CATALOG.SCHEMA", help="metastore schema that holds the tables")
    common = parser.add_argument_group("options of every job")
    common.add_argument(
        "--config", metavar="FILE", action="append", default=[], help="TOML file; see conf/stemroot.toml"
    )
    common.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="one option (repeatable)"
    )
    common.add_argument("--summary-path", metavar="FILE", help="also write the JSON summary to this file")
    common.add_argument(
        "--replace", action="store_true", help="compute an id anew that has other options or input"
    )
    return parser


def run_job(
    parser: argparse.ArgumentParser,
    body: Body,
    *,
    start: Callable[..., Any] | None = None,
    config_flags: Callable[[argparse.Namespace], Mapping[str, Mapping[str, Any]]] = lambda _: {},
    precheck: Callable[[argparse.Namespace], None] = lambda _: None,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the flags, start the session with ``start``, run the body and print its summary; returns the exit code.

    ``precheck`` may refuse the flags before Spark starts: a mistyped path should not cost the time of a session.
    Exit code 0: done; 1: ran and failed; 2: wrong usage, configuration or environment.
    """
    name = Path(sys.argv[0]).stem
    try:
        args = parser.parse_args(argv)
        config = load_config(args.config, args.set, config_flags(args))
        _check_common(args)
        precheck(args)
        summary = _with_warehouse(name, body, args, config, start)
        if summary is not None:
            _publish(summary, args.summary_path)
    except StemRootError as error:
        print(f"{name}: error [{error.code}]: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted; rerun the same command to finish", file=sys.stderr)
        return 1
    except Exception as error:
        if os.environ.get("STEMROOT_DEBUG"):
            raise
        print(
            f"{name}: error [internal]: {_one_line(error)}; set STEMROOT_DEBUG=1 to see where",
            file=sys.stderr,
        )
        return 1
    return 0


def _check_common(args: argparse.Namespace) -> None:
    for flag in ("run_id", "plan_id", "results_id", "from_run_id", "evaluation_id", "against_run_id"):
        if getattr(args, flag, None) is not None:
            check_id(f"--{flag.replace('_', '-')}", getattr(args, flag))
    Location(args.warehouse, args.schema)


def _with_warehouse(
    name: str, body: Body, args: argparse.Namespace, config: Config, start: Callable[..., Any] | None
) -> dict[str, Any] | None:
    # Imported here so that --help and usage errors need neither Spark nor Java.
    from stemroot_spark.session import start_session
    from stemroot_spark.tables import Warehouse

    location = Location(args.warehouse, args.schema)
    spark = (start or start_session)(f"stemroot-{name}", metastore=args.schema is not None)
    try:
        return body(Warehouse(spark, location, config.io), args, config)
    finally:
        spark.stop()


def _publish(summary: dict[str, Any], path: str | None) -> None:
    text = json.dumps(summary, sort_keys=True)
    if path is not None:
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--summary-path {path}: {error.strerror}; the tables are written") from None
    print(text, flush=True)


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:300]}"
