"""Writes a fleet in the layout of `nsys export --type=parquetdir`, a folder per rank, its truth beside it.

Rows leave by row groups of one block of iterations: memory does not depend on the size of the fleet.
"""

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stemroot_spark.fleet.changes import FleetError
from stemroot_spark.fleet.rows import Columns, KernelRows, NvtxRows, RuntimeRows, Strings, place
from stemroot_spark.fleet.schema import (
    KERNEL,
    NEWEST,
    NVTX,
    RUNTIME,
    STRINGS,
    TABLES,
    Version,
    arrow_schema,
    rung,
)
from stemroot_spark.fleet.sequence import Ints
from stemroot_spark.fleet.spec import FleetSpec
from stemroot_spark.fleet.tables import Process, small_tables
from stemroot_spark.fleet.timeline import FIRST_ITERATION_NS
from stemroot_spark.fleet.workload import BLOCK_LAUNCHES, Workload

RANK_FOLDER = "rank-{:05d}"
# A dictionary of values that hardly repeat costs time and is thrown away.
DISTINCT_COLUMNS = frozenset({"start", "end", "correlationId", "gridId"})


@dataclass(frozen=True)
class WriterOptions:
    """How a fleet is exported.

    Attributes:
        schema_version: a name of `schema.RUNGS`.
        is_lazy: leave tables without rows out, instead of writing them empty.
        has_nvtx, has_runtime: write NVTX_EVENTS and CUPTI_ACTIVITY_KIND_RUNTIME.
        has_layer_ranges: NVTX ranges of layers too.
        has_autograd_thread: the backward pass is launched by a second thread, as PyTorch does.
        hardware_id: top byte of serialised process ids; None alternates 0 and 1, 128 or more sets the sign.
        plant_secrets: recognisable fake secrets in environment, command line and host name.
        block_launches: about the number of rows of a row group.
    """

    schema_version: str = NEWEST
    is_lazy: bool = True
    has_nvtx: bool = True
    has_runtime: bool = True
    has_layer_ranges: bool = False
    has_autograd_thread: bool = False
    hardware_id: int | None = None
    plant_secrets: bool = False
    block_launches: int = BLOCK_LAUNCHES

    def __post_init__(self) -> None:
        rung(self.schema_version)
        if self.hardware_id is not None and not 0 <= self.hardware_id <= 255:
            raise FleetError(f"hardware_id is {self.hardware_id}, it must be in 0 to 255")


@dataclass(frozen=True)
class RankTotals:
    """What was written for a rank: launches and time per kernel, in the order of the kernel table."""

    launches: Ints
    total_ns: Ints


class TableFile:
    """One table of a report, written a row group at a time."""

    def __init__(self, folder: Path, table: str, version: Version) -> None:
        schema = arrow_schema(table, version)
        if schema is None:
            raise FleetError(f"schema version {version} has no table {table}")
        self._schema = schema
        dictionary = [name for name in self._schema.names if name not in DISTINCT_COLUMNS]
        self._writer = pq.ParquetWriter(
            folder / f"{table}.parquet",
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionary or False,
        )
        self._repeated: dict[tuple[str, int], pa.Array] = {}

    def __enter__(self) -> "TableFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def write(self, columns: Columns, n_rows: int) -> None:
        """Append rows as one row group; columns the schema version lacks are dropped."""
        arrays = [self._array(field, columns.get(field.name), n_rows) for field in self._schema]
        self._writer.write_table(pa.table(arrays, schema=self._schema), row_group_size=max(n_rows, 1))

    def _array(self, field: pa.Field, values: Any, n_rows: int) -> pa.Array:
        if isinstance(values, np.ndarray | list):
            return pa.array(values, type=field.type)
        if (field.name, n_rows) not in self._repeated:
            self._repeated = {key: array for key, array in self._repeated.items() if key[1] == n_rows}
            self._repeated[field.name, n_rows] = pa.repeat(pa.scalar(values, type=field.type), n_rows)
        return self._repeated[field.name, n_rows]


def write_rank(folder: Path, workload: Workload, rank: int, options: WriterOptions) -> RankTotals:
    """Write the report of one rank into an existing folder."""
    spec = workload.spec
    hardware_id = rank % 2 if options.hardware_id is None else options.hardware_id
    process = Process(rank, spec.ranks, spec.night, hardware_id)
    strings = Strings(first_id=1_000 + 37 * rank)
    end_ns, totals = _write_events(folder, workload, process, strings, options)

    target = rung(options.schema_version)
    tables = small_tables(
        process,
        target,
        end_ns + 1_000_000_000,
        is_lazy=options.is_lazy,
        has_nvtx=options.has_nvtx,
        plant_secrets=options.plant_secrets,
    )
    tables[STRINGS] = [{"id": number, "value": value} for value, number in strings.ids.items()]
    for table in TABLES:
        _write_small(folder, table, tables.get(table, []), target.version, is_lazy=options.is_lazy)
    return totals


def _write_events(
    folder: Path, workload: Workload, process: Process, strings: Strings, options: WriterOptions
) -> tuple[int, RankTotals]:
    """Stream the event tables; returns when the last iteration ended, and the totals."""
    autograd = options.has_autograd_thread
    makers: dict[str, KernelRows | RuntimeRows | NvtxRows] = {KERNEL: KernelRows(workload, process, strings)}
    if options.has_runtime:
        makers[RUNTIME] = RuntimeRows(workload, process, strings, has_autograd_thread=autograd)
    if options.has_nvtx:
        makers[NVTX] = NvtxRows(
            process, strings, has_layers=options.has_layer_ranges, has_autograd_thread=autograd
        )
    n_kernels = len(workload.kernels)
    totals = RankTotals(np.zeros(n_kernels, dtype=np.int64), np.zeros(n_kernels, dtype=np.int64))
    next_launch_index, next_start_ns = 0, FIRST_ITERATION_NS
    with ExitStack() as stack:
        version = rung(options.schema_version).version
        files = {table: stack.enter_context(TableFile(folder, table, version)) for table in makers}
        for block in workload.blocks(process.rank, options.block_launches):
            placed = place(block, next_launch_index, next_start_ns)
            for table, maker in makers.items():
                columns = maker.columns(placed)
                files[table].write(columns, len(columns["start"]))
            kernel_index = workload.config_kernel[block.config_id]
            np.add(totals.launches, np.bincount(kernel_index, minlength=n_kernels), out=totals.launches)
            # A block's sum stays far below 2 ** 53, where the float weights are still exact.
            block_ns = np.bincount(kernel_index, weights=block.duration_ns, minlength=n_kernels)
            np.add(totals.total_ns, block_ns.astype(np.int64), out=totals.total_ns)
            next_launch_index += len(block.config_id)
            next_start_ns = placed.next_start_ns
    return next_start_ns, totals


def _write_small(
    folder: Path, table: str, rows: list[dict[str, Any]], version: Version, *, is_lazy: bool
) -> None:
    schema = arrow_schema(table, version)
    path = folder / f"{table}.parquet"
    if schema is None or path.exists() or (is_lazy and not rows):
        return
    columns = [
        pa.array([row.get(name) for row in rows], type=schema.field(name).type) for name in schema.names
    ]
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")


def write_fleet(
    out: Path,
    spec: FleetSpec,
    options: WriterOptions | None = None,
    *,
    truth_path: Path | None = None,
    overwrite: bool = False,
    workers: int = 1,
) -> dict[str, Any]:
    """Write a fleet and its truth; the folder appears whole or not at all.

    Work goes on in a hidden sibling `.NAME.partial-PID`, which a killed run leaves behind and nobody reads.

    Args:
        out: folder of the fleet, holding one folder per rank afterwards.
        truth_path: `<out>.truth.json` when None; never inside `out`.
        overwrite: replace a fleet that is there. A folder holding anything else is never replaced.
        workers: processes writing ranks at the same time; the files do not depend on it.

    Returns:
        The truth, as written: launches, total_ns, kernels, ranks, spec and options.

    Raises:
        FleetError: when `out` is not empty, `truth_path` lies inside it, or a change cannot be applied.
    """
    options = options or WriterOptions()
    out = Path(os.path.abspath(out))
    truth_path = Path(os.path.abspath(truth_path or f"{out}.truth.json"))
    if out == truth_path or out in truth_path.parents:
        raise FleetError(
            f"the truth {truth_path} would lie inside the trace folder {out}; give another --truth"
        )
    _check_replaceable(out, overwrite)
    workload = Workload(spec)
    out.parent.mkdir(parents=True, exist_ok=True)
    truth_path.parent.mkdir(parents=True, exist_ok=True)
    with _partial_folder(out) as partial:
        by_rank = _write_ranks(partial, workload, options, workers)
        truth = _truth(workload, options, by_rank)
        partial_truth = truth_path.with_name(f".{truth_path.name}.partial-{os.getpid()}")
        partial_truth.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
        partial_truth.replace(truth_path)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    return truth


def _check_replaceable(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise FleetError(f"{out} is a file; give a folder with --out")
    names = [entry.name for entry in out.iterdir()]
    foreign = sorted(name for name in names if not name.startswith("rank-"))
    if foreign:
        raise FleetError(f"{out} holds {foreign[0]!r}, which no fleet has; give another --out")
    if names and not overwrite:
        raise FleetError(f"{out} is not empty; give another --out, or --overwrite to replace the fleet in it")


@contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_ranks(folder: Path, workload: Workload, options: WriterOptions, workers: int) -> list[RankTotals]:
    folders = [folder / RANK_FOLDER.format(rank) for rank in range(workload.spec.ranks)]
    for rank_folder in folders:
        rank_folder.mkdir()
    if workers == 1:
        return [write_rank(path, workload, rank, options) for rank, path in enumerate(folders)]
    # Forking is not safe once Arrow has started its threads.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(write_rank, path, workload, rank, options) for rank, path in enumerate(folders)]
        return [task.result() for task in tasks]


def _truth(workload: Workload, options: WriterOptions, by_rank: list[RankTotals]) -> dict[str, Any]:
    launches = np.sum([totals.launches for totals in by_rank], axis=0)
    total_ns = np.sum([totals.total_ns for totals in by_rank], axis=0)
    kernels = [
        {
            "kernel_name": kernel.name,
            "is_communication": kernel.is_communication,
            "launches": int(launches[i]),
            "total_ns": int(total_ns[i]),
        }
        for i, kernel in enumerate(workload.kernels)
        if launches[i] > 0
    ]
    ranks = [
        {"rank": rank, "launches": int(totals.launches.sum()), "total_ns": int(totals.total_ns.sum())}
        for rank, totals in enumerate(by_rank)
    ]
    return {
        "launches": int(launches.sum()),
        "total_ns": int(total_ns.sum()),
        "kernels": kernels,
        "ranks": ranks,
        "spec": workload.spec.to_dict(),
        "options": asdict(options),
    }
