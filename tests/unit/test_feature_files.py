"""Files of features: ncu CSV of both pages and both locales, tracer statistics, basic-block vectors, and bad ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from stemroot_spark.errors import DataError, SourceError
from stemroot_spark.evaluation.feature_files import FeatureFile, base_unit, parse_numbers, read_features
from stemroot_spark.evaluation.features import attach, check_shapes
from stemroot_spark.evaluation.population import Population
from tests import traces

needs_traces = pytest.mark.skipif(not traces.DATA.is_dir(), reason=f"no real files at {traces.DATA}")

RAW_COLUMNS = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,device__attribute_clock_rate,dram__bytes_read.sum,"
    "gpu__time_duration.sum,launch__block_size,launch__grid_size,sm__name,smsp__inst_executed.sum"
)
RAW_HEAD = ",".join(f'"{name}"' for name in RAW_COLUMNS.split(","))
RAW = f"""\
Final sum = 100.0; sum/n = 1.0
==PROF== Connected to process 7
{RAW_HEAD}
"","","","","","","","hz","Kbyte","usecond","","","","inst"
==PROF== a line in between
"0","7","secret.exe","host1","vecAdd","1","7","1,759,000.00","7.55","2.72","1,024.00","1.00","GV100","12,345"
"1","7","secret.exe","host1","vecAdd","1","7","1,759,000.00","1,000.50","3","1,024.00","2.00","GV100","n/a"
"""
DETAILS_HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"\n'
)


def _read(text: str) -> FeatureFile:
    return read_features(text.splitlines(keepends=True), "features.csv")


def _values(found: FeatureFile) -> dict[tuple[int, str], float]:
    keys = zip(found.rows["launch_index"], found.rows["feature"], strict=True)
    return dict(zip(keys, found.rows["value"], strict=True))


def test_raw_page_is_read_with_units_and_thousands_and_without_noise_lines() -> None:
    found = _read(RAW)
    assert found.kind == "ncu"
    assert _values(found) == {
        (0, "dram__bytes_read.sum"): 7550.0,
        (0, "gpu__time_duration.sum"): 2720.0,
        (0, "launch__block_size"): 1024.0,
        (0, "launch__grid_size"): 1.0,
        (0, "smsp__inst_executed.sum"): 12345.0,
        (1, "dram__bytes_read.sum"): 1_000_500.0,
        (1, "gpu__time_duration.sum"): 3000.0,
        (1, "launch__block_size"): 1024.0,
        (1, "launch__grid_size"): 2.0,
    }
    assert found.shapes.to_numpy().tolist() == [[0, 1.0, 1024.0], [1, 2.0, 1024.0]]
    units = dict(zip(found.rows["feature"], found.rows["unit"], strict=True))
    assert (units["dram__bytes_read.sum"], units["gpu__time_duration.sum"]) == ("byte", "ns")


def test_nothing_of_process_host_or_device_comes_along() -> None:
    text = _read(RAW).rows.to_csv()
    assert not any(word in text for word in ("secret", "host1", "vecAdd", "Process", "device__"))


def test_details_page_is_read_and_rows_of_rules_are_passed_over() -> None:
    row = '"{}","7","p","h","k","1","7","(128, 2, 1)","(1, 16, 1)","s","{}","{}","{}",""\n'
    text = (
        DETAILS_HEAD
        + row.format(0, "dram__bytes_read.sum", "Mbyte", "1.28")
        + row.format(1, "dram__bytes_read.sum", "Kbyte", "35")
        + row.format(1, "Registers", "register/thread", "1,016")
        + '"1","7","p","h","k","1","7","(128, 2, 1)","(1, 16, 1)","s","","","","SOLBottleneck"\n'
        + '"1","7","p","h"\n'
    )
    found = _read(text)
    assert _values(found) == {
        (0, "dram__bytes_read.sum"): 1_280_000.0,
        (1, "dram__bytes_read.sum"): 35_000.0,
        (1, "Registers"): 1016.0,
    }
    assert found.shapes.to_numpy().tolist() == [[0, 16.0, 256.0], [1, 16.0, 256.0]]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["27.595.520", "65,77", "1.234"], [27_595_520.0, 65.77, 1234.0]),
        (["2,097,152.00", "1.234", "1,234"], [2_097_152.0, 1.234, 1234.0]),
        (["1,234", "7"], [1234.0, 7.0]),
        (["1e3", "-2.5E-1", "+4"], [1000.0, -0.25, 4.0]),
        (["12345,678", "0"], [12345.678, 0.0]),
    ],
)
def test_decimal_mark_is_that_of_the_whole_file(texts: list[str], values: list[float]) -> None:
    assert parse_numbers(texts) == values


def test_text_is_no_number_and_does_not_decide_the_decimal_mark() -> None:
    found = parse_numbers(["1.2.3", "(0.40,0.40)", "", "nan", "8,192.00", "12 %"])
    assert found[4] == 8192.0
    assert np.isnan(found[:4] + found[5:]).all()


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("Mbyte", ("byte", 1e6)),
        ("Gbyte/second", ("byte/second", 1e9)),
        ("byte", ("byte", 1.0)),
        ("msecond", ("ns", 1e6)),
        ("us", ("ns", 1e3)),
        ("Mhz", ("hz", 1e6)),
        ("Kinst", ("inst", 1e3)),
        ("%", ("%", 1.0)),
        ("register/thread", ("register/thread", 1.0)),
        ("", ("", 1.0)),
    ],
)
def test_units_lose_their_prefix(unit: str, expected: tuple[str, float]) -> None:
    name, factor = base_unit(unit)
    assert name == expected[0]
    assert factor == pytest.approx(expected[1])


TRACER_HEAD = (
    "kernel id, kernel mangled name, grid_dimX, grid_dimY, grid_dimZ, #blocks, block_dimX, block_dimY, block_dimZ, "
    "#threads, total_insts, total_reported_insts\n"
)


def test_tracer_statistics_count_launches_from_one() -> None:
    text = TRACER_HEAD + (
        "kernel-2.trace, _Z1f, 16, 1, 10, 160, 128, 1, 1, 128, 55880,55880\n"
        "kernel-1-ctx_0x1.traceg.xz, _Z1f, 1, 1, 1, 1, 64, 1, 1, 64, 74,70\n"
    )
    found = _read(text)
    assert found.kind == "instructions"
    assert _values(found) == {(1, "instructions"): 55880.0, (0, "instructions"): 74.0}
    assert found.shapes.to_numpy().tolist() == [[1, 160.0, 128.0], [0, 1.0, 64.0]]


def test_block_vectors_have_a_feature_per_block() -> None:
    found = _read("launch_index,block,instructions\n0,a,10\n0,b,2.5\n3,a,0\n\n")
    assert found.kind == "vectors"
    assert _values(found) == {(0, "block:a"): 10.0, (0, "block:b"): 2.5, (3, "block:a"): 0.0}
    assert found.shapes["blocks"].isna().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header"),
        ("a,b\n1,2\n", "no header"),
        (RAW_HEAD, "no number below"),
        (TRACER_HEAD, "no number below"),
        (TRACER_HEAD + "kernel-1.trace, _Z1f, 1, 1, 1, 1, 64", "cut or malformed"),
        (TRACER_HEAD + "kernel-0.trace, f, 1, 1, 1, 1, 64, 1, 1, 64, 7,7\n", "cut or malformed"),
        (TRACER_HEAD + 2 * "kernel-1.trace, f, 1, 1, 1, 1, 64, 1, 1, 64, 7,7\n", "twice"),
        ("launch_index,block,instructions\n0,a,-1\n", "no launch_index"),
        ("launch_index,block,instructions\n0,,1\n", "no launch_index"),
        ("launch_index,block,instructions\n0,a,1\n0,a,1\n", "twice"),
        (RAW.replace('"1","7","secret', '"1","8","secret'), "several processes"),
        (RAW.replace('"1","7","secret', '"x","7","secret'), "column ID"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        _read(text)
    assert str(raised.value).startswith("features.csv: ")


def _population() -> Population:
    return Population.of_frame(
        pd.DataFrame(
            {
                "rank": [1, 0, 0, 0],
                "launch_index": [0, 2, 0, 1],
                "kernel_id": [5, 5, 5, 6],
                "kernel_invocation": [0, 1, 0, 0],
                "launch_config_id": [1, 1, 1, 2],
                "duration_ns": [10, 20, 30, 40],
                "blocks": [1, 1, 1, 160],
                "threads_per_block": [64, 64, 64, 128],
            }
        )
    )


def test_features_find_their_launches_by_rank_and_order() -> None:
    rows = pd.DataFrame(
        [
            (0, 1, "m", 7.0),
            (1, 0, "m", 8.0),
            (0, 9, "m", 9.0),
            (0, 2, "block:a", 3.0),
            (0, 2, "block:b", 1.0),
        ],
        columns=["rank", "launch_index", "feature", "value"],
    )
    features = attach(_population(), rows).features
    np.testing.assert_array_equal(features.metrics["m"], [np.nan, 7.0, np.nan, 8.0])
    assert features.vectors.toarray().tolist() == [[0, 0], [0, 0], [3, 1], [0, 0]]
    part = features.at(np.array([2, 3]))
    assert part.vectors.toarray().tolist() == [[3, 1], [0, 0]]
    assert part.metrics["m"][1] == 8.0


def test_shapes_tell_whether_features_are_of_this_run() -> None:
    shapes = pd.DataFrame(
        {"launch_index": [0, 1, 7], "blocks": [1.0, None, 3.0], "threads_per_block": [64.0, 128.0, 1.0]}
    )
    assert check_shapes(_population(), 0, shapes, "f.csv") == 2
    with pytest.raises(DataError, match=r"f\.csv: 1 of 2 launches have another shape.*launch 1"):
        check_shapes(_population(), 0, shapes.assign(threads_per_block=[64.0, 32.0, 1.0]), "f.csv")
    with pytest.raises(DataError, match="none of its 3 launches is a launch of rank 5"):
        check_shapes(_population(), 5, shapes, "f.csv")


@needs_traces
def test_real_files_are_read() -> None:
    folder = traces.DATA / "simulators"
    with (folder / "accelsim_tracer_stats_1101.csv").open(encoding="utf-8") as stream:
        tracer = read_features(stream, "tracer")
    assert len(tracer.rows) == 1101
    assert tracer.rows["value"].iloc[[0, 1, -1]].tolist() == [74.0, 55880.0, 741.0]
    raw = []
    for name in ("ncu_raw_2023.csv", "ncu_raw_2023_with_noise.txt"):
        with (folder / name).open(encoding="utf-8") as stream:
            raw.append(read_features(stream, name))
    pd.testing.assert_frame_equal(raw[0].rows, raw[1].rows)
    values = _values(raw[0])
    assert values[0, "dram__read_bytes"] == 7552.0
    assert values[0, "dram__bytes_per_sec"] == pytest.approx(2_917_647_058.82)
    assert raw[0].shapes.to_numpy().tolist() == [[i, 1.0, 1024.0] for i in range(3)]
    with (folder / "ncu_details_probe.csv").open(encoding="utf-8") as stream:
        details = _values(read_features(stream, "details"))
    assert details[1, "dram__bytes_read.sum"] == pytest.approx(2_350_000.0)
