"""What the trace generator writes: schemas, bounded memory and row groups, secrets, and its command."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stemroot_spark.fleet import (
    Workload,
    WriterOptions,
    iterations_for,
    launches,
    write_fleet,
)
from stemroot_spark.fleet import writer as writer_module
from stemroot_spark.fleet.__main__ import main
from stemroot_spark.fleet.schema import RUNGS, TABLES, arrow_schema
from tests.fleet_files import SMALL, contents, read_table


def test_memory_does_not_grow_with_the_fleet() -> None:
    peaks = []
    for iterations in (150, 600):
        spec = replace(SMALL, iterations=iterations)
        tracemalloc.start()
        for block in Workload(spec).blocks(0, block_launches=5_000):
            assert len(block.config_id) < 6_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("version", list(RUNGS))
def test_each_schema_version_has_its_columns(version: str, tmp_path: Path) -> None:
    tiny = replace(SMALL, ranks=1, layers=1, iterations=1)
    write_fleet(tmp_path / "f", tiny, WriterOptions(schema_version=version))
    kernel = pq.read_schema(tmp_path / "f/rank-00000/CUPTI_ACTIVITY_KIND_KERNEL.parquet").names
    counts = {"oldest": 26, "2.9.1": 27, "3.1.7": 27, "3.13.2": 28, "3.23.3": 38, "3.25.0": 40}
    assert len(kernel) == counts[version]
    assert (kernel[4] == "greenContextId") == (counts[version] >= 28)
    assert ("mangledName" in kernel) == (version != "oldest")
    tables = {path.stem for path in (tmp_path / "f/rank-00000").iterdir()}
    assert ("EXPORT_META_DATA" in tables) == (version in ("2.9.1", "3.1.7"))
    assert ("META_DATA_EXPORT" in tables) == (counts[version] >= 28)
    assert ("TARGET_INFO_SYSTEM_ENV" in tables) == (version != "oldest")
    assert ("TARGET_INFO_CUDA_DEVICE" in tables) == (counts[version] >= 38)
    for table in tables & {"EXPORT_META_DATA", "META_DATA_EXPORT"}:
        rows = read_table(tmp_path / "f", table)
        metadata = dict(zip(rows["name"], rows["value"], strict=True))
        assert metadata["EXPORT_SCHEMA_VERSION"] == version
        assert metadata["EXPORT_PARAM_LAZY" if counts[version] >= 28 else "EXPORT_LAZY"] == "true"


def test_non_lazy_writes_empty_tables(tmp_path: Path) -> None:
    tiny = replace(SMALL, ranks=1, layers=1, iterations=1)
    quiet = WriterOptions(has_nvtx=False, has_runtime=False)
    write_fleet(tmp_path / "lazy", tiny, quiet)
    write_fleet(tmp_path / "full", tiny, replace(quiet, is_lazy=False))
    lazy, full = (
        {path.stem for path in (tmp_path / name / "rank-00000").iterdir()} for name in ("lazy", "full")
    )
    newest = RUNGS["3.25.0"].version
    assert full == {table for table in TABLES if arrow_schema(table, newest) is not None}
    assert {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"} <= full - lazy
    assert all(
        pq.read_metadata(tmp_path / f"full/rank-00000/{table}.parquet").num_rows == 0 for table in full - lazy
    )


def test_a_high_hardware_id_uses_the_top_bit(tmp_path: Path) -> None:
    tiny = replace(SMALL, ranks=1, layers=1, iterations=1)
    write_fleet(tmp_path / "f", tiny, WriterOptions(hardware_id=254, has_layer_ranges=True))
    assert int(read_table(tmp_path / "f", "CUPTI_ACTIVITY_KIND_KERNEL")["globalPid"][0]) > 1 << 63


@pytest.mark.parametrize("wanted", [1, 5_000, 1_000_000])
def test_iterations_reach_the_wanted_number_of_launches(wanted: int) -> None:
    spec = replace(SMALL, iterations=iterations_for(wanted, SMALL))
    total = spec.ranks * Workload(spec).launches_per_rank()
    assert total == pytest.approx(max(wanted, spec.ranks * len(Workload(spec).template(0))), rel=0.06)


def test_the_number_of_launches_is_the_one_announced() -> None:
    assert len(launches(SMALL, 0).duration_ns) == Workload(SMALL).launches_per_rank()


def test_command_writes_prints_and_refuses_to_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet"
    command = ["--out", str(out), "--ranks", "1", "--layers", "1", "--launches", "300", "--seed", "3"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "straggler_tail_index = 1.6" in printed.err
    truth = json.loads((tmp_path / "fleet.truth.json").read_text())
    assert json.loads(printed.out)["total_ns"] == truth["total_ns"]
    before = contents(out)

    assert main([*command, "--night", "1"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert contents(out) == before
    assert main([*command, "--night", "1", "--overwrite"]) == 0
    assert contents(out) != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet", "fleet.truth.json"]


def test_command_replaces_nothing_but_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["--out", str(tmp_path), "--overwrite"]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--change", "nonsense"],
        ["--launches", "0"],
        ["--workers", "0"],
        ["--drift", "2"],
        ["--truth", "OUT/truth.json"],
    ],
)
def test_command_ends_with_2_and_one_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet"
    assert main(["--out", str(out), *(flag.replace("OUT", str(out)) for flag in flags)]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert not out.exists()


def test_a_failing_writer_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(writer_module, "write_rank", fail)
    with pytest.raises(OSError, match="no space"):
        write_fleet(tmp_path / "fleet", SMALL)
    assert list(tmp_path.iterdir()) == []
