"""Speed and memory of the Kineto reader on a trace of any size: MB/s of JSON and peak resident memory.

    python bench/kineto_memory.py --megabytes 2000

The trace is the same for the same size, and is deleted afterwards. Reading runs in a process of its own, so that
writing does not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# A launch of the fleet takes about this many characters; more are planned than are written.
_LEAST_CHARACTERS_PER_LAUNCH = 500


def main() -> int:
    """Run the command; returns the exit code."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--megabytes", type=int, default=200, help="size of the JSON (default %(default)s)")
    command.add_argument("--gzip", action="store_true", help="write and read the trace as gzip")
    command.add_argument("--rows-per-batch", type=int, default=10_000, help="default %(default)s")
    command.add_argument(
        "--folder", type=Path, help="where the trace is written (default: the temporary folder)"
    )
    command.add_argument("--read", type=Path, help="read this trace instead, in this process")
    arguments = command.parse_args()
    if arguments.read is not None:
        print(json.dumps(_read(arguments.read, arguments.rows_per_batch)))
        return 0
    with tempfile.TemporaryDirectory(prefix="kineto-", dir=arguments.folder) as folder:
        path = Path(folder) / ("rank-0.json.gz" if arguments.gzip else "rank-0.json")
        expected = _write(path, arguments.megabytes * 1_000_000)
        reader = [
            sys.executable,
            __file__,
            "--read",
            str(path),
            "--rows-per-batch",
            str(arguments.rows_per_batch),
        ]
        found = json.loads(subprocess.run(reader, check=True, capture_output=True, text=True).stdout)
    is_same = all(found[key] == expected[key] for key in ("n_kernels", "n_copies", "total_ns"))
    megabytes = expected["n_characters"] / 1e6
    print(
        f"{megabytes:,.0f} MB of JSON, {expected['n_kernels']:,} kernels, written at {expected['rate']:.0f} MB/s"
    )
    for step in ("probe", "read"):
        wall_s, cpu_s = found[f"{step}_s"], found[f"{step}_cpu_s"]
        print(
            f"{step:5} {megabytes / wall_s:6.1f} MB/s, {megabytes / cpu_s:6.1f} MB per CPU second ({wall_s:.1f} s)"
        )
    print(
        f"peak resident memory {found['peak_mb']:.0f} MB, {found['idle_mb']:.0f} MB of it before the trace is opened"
    )
    print(f"kernels, copies and time {'are those written' if is_same else 'DIFFER from those written'}")
    return 0 if is_same else 1


def _write(path: Path, n_characters: int) -> dict[str, float]:
    # Imported here: the reading process shall not hold what the generator needs.
    from stemroot_spark.fleet.kineto_writer import write_kineto
    from stemroot_spark.fleet.spec import FleetSpec
    from stemroot_spark.fleet.workload import Workload, iterations_for

    spec = FleetSpec(ranks=1)
    n_launches = n_characters // _LEAST_CHARACTERS_PER_LAUNCH
    workload = Workload(FleetSpec(ranks=1, iterations=iterations_for(n_launches, spec)))
    started = time.monotonic()
    totals = write_kineto(path, workload, 0, max_characters=n_characters)
    rate = totals.n_characters / 1e6 / (time.monotonic() - started)
    return {
        "n_kernels": totals.n_kernels,
        "n_copies": totals.n_copies,
        "total_ns": totals.total_ns,
        "n_characters": totals.n_characters,
        "rate": rate,
    }


def _read(path: Path, rows_per_batch: int) -> dict[str, float]:
    import pyarrow.compute as pc

    from stemroot_spark.sources.kineto import probe_kineto, read_batches

    idle_mb = _peak_mb()
    started, started_cpu = time.monotonic(), time.process_time()
    report = probe_kineto(path)
    probed, probed_cpu = time.monotonic(), time.process_time()
    n_rows = total_ns = 0
    for batch in read_batches(path, rows_per_batch, report):
        n_rows += batch.num_rows
        total_ns += pc.sum(pc.subtract(batch["end_ns"], batch["start_ns"])).as_py()
    return {
        "n_kernels": n_rows if n_rows == report.n_kept else -1,
        "n_copies": report.n_copies,
        "total_ns": total_ns,
        "probe_s": probed - started,
        "read_s": time.monotonic() - probed,
        "probe_cpu_s": probed_cpu - started_cpu,
        "read_cpu_s": time.process_time() - probed_cpu,
        "peak_mb": _peak_mb(),
        "idle_mb": idle_mb,
    }


def _peak_mb() -> float:
    # Kilobytes on Linux, bytes on macOS.
    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


if __name__ == "__main__":
    sys.exit(main())
