"""A real standalone cluster on loopback, and jobs run as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
# Optimising code that runs for seconds costs more than it saves.
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
QUIET = "spark.ui.enabled=false;spark.ui.showConsoleProgress=false;spark.sql.shuffle.partitions=2"
_START_SECONDS = 60
_JOB_SECONDS = 600


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **extra}


def run_job(job: str, *args: str, master: str = "local[2]") -> subprocess.CompletedProcess[str]:
    """Run a job with plain python on a local session."""
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *args],
        env=environment(
            STEMROOT_SPARK_CONF=f"spark.master={master};{QUIET};spark.driver.extraJavaOptions={JAVA}"
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_JOB_SECONDS,
        check=False,
    )


def run_job_killed_after(line: str, job: str, *args: str) -> bool:
    """Run a job and kill it, driver and JVM, a moment after its log shows ``line``; False if it ended before."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *args],
        env=environment(
            STEMROOT_SPARK_CONF=f"spark.master=local[2];{QUIET};spark.driver.extraJavaOptions={JAVA}"
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        for text in process.stderr:
            if re.search(line, text):
                time.sleep(0.4)
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait() == -signal.SIGKILL
        return False
    finally:
        process.stderr.close()
        process.wait()


def submit(job: str, *args: str, master: str, package: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """spark-submit a job with the built zip, from a folder without the package."""
    settings = [part for entry in QUIET.split(";") for part in ("--conf", entry)]
    return subprocess.run(
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master",
            master,
            "--properties-file",
            str(ROOT / "conf" / "spark-defaults.conf"),
            "--py-files",
            str(package),
            *settings,
            "--driver-java-options",
            JAVA,
            "--conf",
            f"spark.executor.extraJavaOptions={JAVA}",
            str(ROOT / "jobs" / f"{job}.py"),
            *args,
        ],
        env=environment(SPARK_HOME=str(SPARK_HOME)),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_JOB_SECONDS,
        check=False,
    )


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """One master and two workers of one core each on loopback; yields the master's URL and ends just these."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(
            _start(folder / "master.log", "master.Master", "--host", "127.0.0.1", "--port", str(port))
        )
        _wait_for_port(port, processes[0])
        for number in (1, 2):
            work = folder / f"worker-{number}"
            work.mkdir(parents=True)
            arguments = (
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "2g",
                "--work-dir",
                str(work),
                url,
            )
            processes.append(_start(folder / f"worker-{number}.log", "worker.Worker", *arguments))
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                "--webui-port",
                "0",
                *arguments,
            ],
            env=environment(SPARK_HOME=str(SPARK_HOME), SPARK_NO_DAEMONIZE="1"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the master ended before it listened"
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"the master does not listen after {_START_SECONDS} s")
