"""The demonstration: a small generated fleet planned on its first night and checked against its second.

With the user's own traces it runs the main job on them and stops at the plan.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stemroot_spark import progress
from stemroot_spark.config import Config, load_config
from stemroot_spark.fleet import FleetSpec, WriterOptions, iterations_for, write_fleet
from stemroot_spark.ingest import ingest
from stemroot_spark.moments import moments
from stemroot_spark.pipeline import pipeline
from stemroot_spark.planning import plan
from stemroot_spark.reconstruct import reconstruct
from stemroot_spark.results import import_results
from stemroot_spark.tables import Warehouse

_RANKS = 4
_LAUNCHES = 100_000
_SEED = 1
# Both nights have launch noise of their own, 0.03 by default, so they differ by its square root of two.
_LAUNCH_NOISE = 0.045


def demo(warehouse: Warehouse, folder: Path) -> None:
    """Generate two nights, plan on the first, replay the second as results, print estimate and truth."""
    spec = FleetSpec(ranks=_RANKS, iterations=1, seed=_SEED)
    spec = FleetSpec(ranks=_RANKS, iterations=iterations_for(_LAUNCHES, spec), seed=_SEED)
    second = FleetSpec(ranks=_RANKS, iterations=spec.iterations, seed=_SEED, night=1)
    nights = {"night-1": spec, "night-2": second}
    config = load_config(flags={"plan": {"launch_noise": _LAUNCH_NOISE}})

    with _step(f"generate two nights of a fleet of {_RANKS} ranks"):
        truths = {
            name: write_fleet(
                folder / "traces" / name, night, WriterOptions(has_runtime=False), overwrite=True
            )
            for name, night in nights.items()
        }
    with _step("ingest the first night"), ThreadPoolExecutor(1) as pool:
        # What comes later needs tables too; they are made while the tasks of the probe are waited for.
        made = pool.submit(_create_tables, Warehouse(warehouse.spark, warehouse.location, config.io))
        ingested = _ingest(warehouse, folder, "night-1", config)
        made.result()
    with _step("compute moments and plan; ingest the second night meanwhile"):
        planned = _plan_and_ingest(warehouse, folder, config)
    # As a job of its own would: tables as they are now, not as they were when the first night was planned.
    warehouse = Warehouse(warehouse.spark, warehouse.location, config.io)
    with _step("replay the drawn launches from the second night, estimate its time"):
        import_results(
            warehouse,
            plan_id="demo",
            results_id="night-2",
            simulator="profile",
            source=None,
            from_run_id="night-2",
            clock_mhz=None,
        )
        estimate = reconstruct(warehouse, plan_id="demo", results_id="night-2")
    truth_ns = sum(k["total_ns"] for k in truths["night-2"]["kernels"] if not k["is_communication"])
    _print_table([*_plan_rows({"ingest": ingested, **planned}), *_estimate_rows(estimate, truth_ns)])
    _print_where(warehouse)


def _create_tables(warehouse: Warehouse) -> None:
    for table in ("estimates", "simulation_results", "plans", "sample_manifest", "strata", "kernel_moments"):
        warehouse.create(table)


def _ingest(warehouse: Warehouse, folder: Path, night: str, config: Config) -> dict[str, Any]:
    return ingest(
        warehouse,
        sources=[str(folder / "traces" / night)],
        run_id=night,
        workload="demo",
        rank=None,
        config=config.ingest,
    )


def _plan_and_ingest(warehouse: Warehouse, folder: Path, config: Config) -> dict[str, Any]:
    """Moments and plan of the first night beside the ingest of the second: they write different tables.

    Most of what a stage of a small run costs is one thread of the driver, so two together take hardly longer than one.
    """
    beside = Warehouse(warehouse.spark, warehouse.location, config.io)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(_ingest, beside, folder, "night-2", config)
        summary = {"moments": moments(warehouse, run_id="night-1")}
        summary["plan"] = plan(warehouse, run_id="night-1", plan_id="demo", config=config)
        second.result()
    return summary


def demo_of_traces(warehouse: Warehouse, traces: str) -> None:
    """Ingest the user's traces and plan them; run id and plan id are ``demo-traces``."""
    with _step(f"ingest {traces}, compute moments, plan"):
        planned = pipeline(
            warehouse,
            sources=[traces],
            run_id="demo-traces",
            plan_id="demo-traces",
            workload=None,
            rank=None,
            config=load_config(),
            replace=True,
        )
    _print_table(_plan_rows(planned))
    _print_where(warehouse)


def _plan_rows(planned: dict[str, Any]) -> list[tuple[str, str]]:
    plan = planned["plan"]
    rows = [
        ("launches", f"{planned['moments']['n_launches']:,} on {planned['ingest']['n_ranks']} ranks"),
        ("kernels", f"{planned['moments']['n_kernels']:,}, of these planned {plan['n_kernels']:,}"),
        ("samples", f"{plan['n_samples']:,} launches in {plan['n_strata']:,} strata"),
        ("speedup", f"{plan['speedup']:.1f}x less kernel time to simulate"),
        (
            "planned error",
            f"{plan['planned_relative_error']:.2%} of the total at {plan['confidence']:.0%} confidence",
        ),
    ]
    if plan["excluded_time_ns"]:
        rows.append(
            ("communication", f"{_ms(plan['excluded_time_ns'])} left out of the plan, reported apart")
        )
    return rows


def _estimate_rows(estimate: dict[str, Any], truth_ns: int) -> list[tuple[str, str]]:
    inside = estimate["ci_low"] <= truth_ns <= estimate["ci_high"]
    return [
        ("estimate", f"{_ms(estimate['estimate'])} for the second night"),
        ("95 % interval", f"{_ms(estimate['ci_low'])} to {_ms(estimate['ci_high'])}"),
        ("truth", f"{_ms(truth_ns)}, {'inside' if inside else 'outside'} the interval"),
        ("error", f"{estimate['estimate'] / truth_ns - 1:+.2%}"),
    ]


def _ms(duration_ns: float) -> str:
    return f"{duration_ns / 1e6:,.1f} ms"


def _print_table(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def _print_where(warehouse: Warehouse) -> None:
    location = warehouse.location
    print(
        f"\nThe tables are in {location.warehouse or location.schema}. A first query, the launches to simulate:\n"
    )
    query = (
        "SELECT rank, launch_index, weight, kernel_name "
        f"FROM {location.identifier('sample_manifest')} ORDER BY weight DESC LIMIT 10"
    )
    spark_sql = (
        "PYSPARK_PYTHON=.venv/bin/python .venv/bin/spark-sql --properties-file conf/spark-defaults.conf"
    )
    print(f"  {spark_sql} -e {_shell_quoted(query)}\n")


def _shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def _step(title: str) -> Iterator[None]:
    """One line per step: its title, a dot per stage that ended, its seconds."""
    started = time.monotonic()
    print(f"{title} ", end="", flush=True)
    dot: Callable[[progress.Stage], None] = lambda _: print(".", end="", flush=True)  # noqa: E731
    progress.listeners.append(dot)
    try:
        yield
    except BaseException:
        print(" failed", file=sys.stdout, flush=True)
        raise
    finally:
        progress.listeners.remove(dot)
    print(f" {time.monotonic() - started:.0f} s", flush=True)
