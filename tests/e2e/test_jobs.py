"""Jobs run as users run them: spark-submit of the zip on a cluster, reruns, kills, and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import ROOT, run_job, run_job_killed_after, standalone_cluster, submit
from comparison import assert_same_tables, versions

from stemroot_spark.fleet import FleetSpec, WriterOptions, write_fleet


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "night-1"
    write_fleet(
        folder,
        FleetSpec(ranks=3, layers=2, iterations=6, seed=7),
        WriterOptions(has_nvtx=False, has_runtime=False),
    )
    return folder


def pipeline_flags(warehouse: Path, traces: Path) -> list[str]:
    return [
        "--warehouse",
        str(warehouse),
        "--source",
        str(traces),
        "--run-id",
        "night-1",
        "--plan-id",
        "plan-1",
        "--workload",
        "llm",
    ]


@pytest.fixture(scope="module")
def undisturbed(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Warehouse of the main job on a local session."""
    warehouse = tmp_path_factory.mktemp("undisturbed") / "warehouse"
    done = run_job("pipeline", *pipeline_flags(warehouse, traces))
    assert done.returncode == 0, done.stderr[-3000:]
    return warehouse


def test_submitting_the_zip_to_a_cluster_gives_the_tables_of_a_local_session(
    undisturbed: Path, traces: Path, tmp_path: Path
) -> None:
    package = tmp_path / "stemroot_spark.zip"
    subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "build_zip.py"), "--out", str(package)], check=True, timeout=60
    )
    warehouse = tmp_path / "warehouse"
    with standalone_cluster(tmp_path) as master:
        done = submit(
            "pipeline", *pipeline_flags(warehouse, traces), master=master, package=package, cwd=tmp_path
        )
        executors = list(tmp_path.glob("worker-*/app-*/*"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(executors) == 2, "both workers took part"
    assert json.loads(done.stdout.splitlines()[-1])["plan"]["plan_id"] == "plan-1"
    assert_same_tables(undisturbed, warehouse)


def test_a_rerun_writes_nothing_and_another_epsilon_is_refused(undisturbed: Path, traces: Path) -> None:
    before = versions(undisturbed)
    again = run_job("pipeline", *pipeline_flags(undisturbed, traces))
    assert again.returncode == 0, again.stderr[-3000:]
    assert versions(undisturbed) == before
    other = run_job("pipeline", *pipeline_flags(undisturbed, traces), "--epsilon", "0.1")
    assert other.returncode == 2
    assert "epsilon was 0.05, now 0.1" in other.stderr
    assert "Traceback" not in other.stderr
    assert versions(undisturbed) == before


def test_killed_runs_are_finished_by_the_next_with_the_tables_of_an_undisturbed_one(
    undisturbed: Path, traces: Path, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    flags = pipeline_flags(warehouse, traces)
    # Between two jobs, and inside each of them.
    for moment in ("extend kernels", "write runs", "write rank_moments", "write strata"):
        assert run_job_killed_after(moment, "pipeline", *flags), f"the job ended before '{moment}'"
    done = run_job("pipeline", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_tables(undisturbed, warehouse)


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--set", "plan.epsilom=0.1"], 2, "did you mean epsilon"),
        (["--epsilon", "0"], 2, "plan.epsilon is 0.0"),
        (["--epsilon", "7"], 2, "plan.epsilon is 7.0"),
        (["--no-such-option"], 2, "--no-such-option"),
        (["--source", "no-such-folder"], 2, "no such file or folder"),
        (["--plan-id", "a b"], 2, "--plan-id"),
    ],
)
def test_mistakes_in_flags_end_in_one_line_before_anything_is_written(
    extra: list[str], code: int, words: str, traces: Path, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    done = run_job("pipeline", *pipeline_flags(warehouse, traces), *extra)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not warehouse.exists()


def broken_sources(folder: Path, traces: Path) -> dict[str, str]:
    """Sources that cannot be read, with a word of the reason each must give."""
    rank = sorted(entry for entry in traces.iterdir() if entry.is_dir())[0]
    kernel, strings = "CUPTI_ACTIVITY_KIND_KERNEL.parquet", "StringIds.parquet"
    no_kernels = folder / "no-kernels"
    no_kernels.mkdir(parents=True)
    (no_kernels / strings).write_bytes((rank / strings).read_bytes())
    cut = folder / "cut"
    cut.mkdir()
    (cut / strings).write_bytes((rank / strings).read_bytes())
    content = (rank / kernel).read_bytes()
    (cut / kernel).write_bytes(content[: len(content) // 2])
    return {"no-kernels": "no kernel table", "cut": "is cut or not a Parquet file"}


def test_sources_without_a_good_one_leave_the_ledger_alone_and_no_run(traces: Path, tmp_path: Path) -> None:
    reasons = broken_sources(tmp_path / "sources", traces)
    warehouse = tmp_path / "warehouse"
    done = run_job("pipeline", *pipeline_flags(warehouse, tmp_path / "sources"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for name, reason in reasons.items():
        assert name in done.stderr
        assert reason in done.stderr
    held = {name for name, version in versions(warehouse).items() if version > 0}
    assert held == {"trace_files"}


def test_unknown_ids_are_named_with_the_known_ones(undisturbed: Path) -> None:
    before = versions(undisturbed)
    done = run_job("plan", "--warehouse", str(undisturbed), "--run-id", "night-9", "--plan-id", "p")
    assert done.returncode == 2
    assert "night-9" in done.stderr
    assert "night-1" in done.stderr
    assert "Traceback" not in done.stderr
    assert versions(undisturbed) == before
