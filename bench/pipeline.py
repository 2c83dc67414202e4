"""How the time of each stage grows with the launches: the same fleet at N and at 4 N launches, in one warm session.

Absolute seconds depend on the machine, so the table is to be read by its ratios. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from stemroot_spark.config import load_config
from stemroot_spark.ingest import ingest
from stemroot_spark.moments import moments
from stemroot_spark.planning import plan
from stemroot_spark.reconstruct import reconstruct
from stemroot_spark.results import import_results
from stemroot_spark.session import start_session
from stemroot_spark.tables import Location, Warehouse

WARM_UP_LAUNCHES = 20_000
GROWTH = 4


def generate(folder: Path, launches: int) -> float:
    """Write a fleet of about ``launches`` launches; returns the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "stemroot_spark.fleet", "--out", str(folder), "--overwrite"]
    subprocess.run([*command, "--launches", str(launches)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def run_stages(warehouse: Warehouse, fleet: Path, name: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Run every stage once, replaying the profile as the simulation; returns seconds by stage, and the figures."""
    config = load_config()
    stages: dict[str, Callable[[], dict[str, Any]]] = {
        "ingest": lambda: ingest(
            warehouse, sources=[str(fleet)], run_id=name, workload="bench", rank=None, config=config.ingest
        ),
        "moments": lambda: moments(warehouse, run_id=name),
        "plan": lambda: plan(warehouse, run_id=name, plan_id=name, config=config),
        "import_results": lambda: import_results(
            warehouse,
            plan_id=name,
            results_id=name,
            simulator="profile",
            source=None,
            from_run_id=name,
            clock_mhz=None,
        ),
        "reconstruct": lambda: reconstruct(warehouse, plan_id=name, results_id=name),
    }
    seconds: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for stage, run in stages.items():
        started = time.monotonic()
        summary = run()
        seconds[stage] = time.monotonic() - started
        if stage == "moments":
            figures["launches"] = summary["n_launches"]
        if stage == "plan":
            figures["sample"] = summary["n_samples"]
    histogram = warehouse.read("duration_histograms").where(F.col("run_id") == name)
    figures["histogram"] = histogram.count()
    return seconds, figures


def report(
    small: tuple[dict[str, float], dict[str, Any]], large: tuple[dict[str, float], dict[str, Any]]
) -> str:
    """The table: seconds per million launches at both sizes and their ratio, then rows per launch."""
    (small_s, small_n), (large_s, large_n) = small, large
    growth = large_n["launches"] / small_n["launches"]
    lines = [
        f"{small_n['launches']:,} and {large_n['launches']:,} launches, {growth:.2f} times as many",
        "",
        f"{'':16}{'s per million launches':>24}{'time':>10}{'share of':>10}",
        f"{'stage':16}{'N':>12}{f'{GROWTH} N':>12}{'grows':>10}{'all':>10}",
    ]
    small_s, large_s = (s | {"all stages": sum(s.values())} for s in (small_s, large_s))
    for stage in large_s:
        lines.append(
            f"{stage:16}{small_s[stage] / small_n['launches'] * 1e6:12.2f}"
            f"{large_s[stage] / large_n['launches'] * 1e6:12.2f}{large_s[stage] / small_s[stage]:9.2f}x"
            f"{large_s[stage] / large_s['all stages']:10.0%}"
        )
    lines += ["", f"{'rows per launch':16}{'N':>12}{f'{GROWTH} N':>12}{'grows':>10}"]
    for name in ("histogram", "sample"):
        lines.append(
            f"{name:16}{small_n[name] / small_n['launches']:12.4f}{large_n[name] / large_n['launches']:12.4f}"
            f"{large_n[name] / small_n[name]:9.2f}x"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--launches", type=int, default=500_000, help="N, the smaller size (default %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/bench"), help="scratch folder, emptied first"
    )
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    sizes = {"warm_up": WARM_UP_LAUNCHES, "small": args.launches, "large": GROWTH * args.launches}
    for name, launches in sizes.items():
        print(f"writing {launches:,} launches: {generate(args.folder / name, launches):.1f} s", flush=True)
    os.environ.setdefault("STEMROOT_SPARK_CONF", "spark.ui.showConsoleProgress=false;spark.ui.enabled=false")
    spark = start_session("stemroot-bench")
    try:
        measured = {}
        for name in sizes:
            warehouse = Warehouse(
                spark, Location(warehouse=str((args.folder / f"tables_{name}").resolve())), load_config().io
            )
            started = time.monotonic()
            measured[name] = run_stages(warehouse, args.folder / name, name)
            print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
    finally:
        spark.stop()
    print()
    print(report(measured["small"], measured["large"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
