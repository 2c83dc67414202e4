"""Speed and memory of the Kineto reader on a trace of any size: MB/s of JSON and peak resident memory.

    python bench/kineto_memory.py --megabytes 2000
    python bench/kineto_memory.py --megabytes 2000 --ingest

The trace is the same for the same size, and is deleted afterwards. Reading runs in a process of its own, so that
writing does not count. With --ingest the ingest job reads it, and the Python workers of Spark are watched (Linux).
"""

from __future__ import annotations

import argparse
import json
import re
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
    command.add_argument(
        "--ingest", action="store_true", help="ingest the trace with Spark, and watch its workers"
    )
    command.add_argument("--read", type=Path, help="read this trace instead, in this process")
    arguments = command.parse_args()
    if arguments.read is not None:
        print(json.dumps(_read(arguments.read, arguments.rows_per_batch)))
        return 0
    with tempfile.TemporaryDirectory(prefix="kineto-", dir=arguments.folder) as folder:
        path = Path(folder) / ("rank-0.json.gz" if arguments.gzip else "rank-0.json")
        expected = _write(path, arguments.megabytes * 1_000_000)
        if arguments.ingest:
            return _watched_ingest(path, expected)
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


def _watched_ingest(path: Path, expected: dict[str, float]) -> int:
    """Ingest the trace in the default session, and print the largest peak of any of its Python workers."""
    job = Path(__file__).resolve().parents[1] / "jobs" / "ingest.py"
    warehouse, log = path.parent / "warehouse", path.parent / "ingest.log"
    started = time.monotonic()
    with log.open("w") as errors:
        ingest = subprocess.Popen(
            [
                sys.executable,
                str(job),
                "--warehouse",
                str(warehouse),
                "--run-id",
                "big",
                "--source",
                str(path),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        peaks: dict[int, float] = {}
        while ingest.poll() is None:
            for pid, peak_mb in _worker_peaks(ingest.pid).items():
                peaks[pid] = max(peak_mb, peaks.get(pid, 0.0))
            time.sleep(0.1)
    if ingest.returncode or ingest.stdout is None:
        print(log.read_text()[-2_000:], file=sys.stderr)
        return 1
    found = json.loads(ingest.stdout.read().splitlines()[-1])
    print(
        f"{expected['n_characters'] / 1e6:,.0f} MB of JSON, {expected['n_kernels']:,} kernels, ingested in "
        f"{time.monotonic() - started:.0f} s by {len(peaks)} Python workers; largest peak of one "
        f"{max(peaks.values()):.0f} MB"
    )
    is_same = found["n_launches"] == expected["n_kernels"]
    print(f"launches {'are those written' if is_same else 'DIFFER from those written'}")
    return 0 if is_same else 1


def _worker_peaks(job: int) -> dict[int, float]:
    """Peak resident memory in MB of the Python workers that the process of a job started, by pid."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold anything but ends with the last bracket: state and parent.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended meanwhile
    peaks = {}
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, job):
            ancestor = parents.get(ancestor, 0)
        try:
            if ancestor == job and b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
                if peak:
                    peaks[pid] = int(peak[1]) / 1e3
        except OSError:
            continue
    return peaks


def _peak_mb() -> float:
    # Kilobytes on Linux, bytes on macOS.
    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


if __name__ == "__main__":
    sys.exit(main())
