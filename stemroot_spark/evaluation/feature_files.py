"""Readers of what nsys does not record: ncu CSV, instruction counts of a tracer, basic-block vectors.

All give the same rows, one per launch and feature. Kernel names are not kept: tools spell them differently (mangled,
function only), so that launches are matched by their order and checked by their grid and block.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from stemroot_spark.errors import SourceError

KINDS = ("ncu", "instructions", "vectors")
INSTRUCTIONS = "instructions"
BLOCK_PREFIX = "block:"

_TRACER_COLUMNS = ("kernel id", "#blocks", "#threads", "total_insts")
VECTOR_COLUMNS = ("launch_index", "block", "instructions")
_NCU_FIXED = ("ID", "Kernel Name")
# Nothing of the process, host or user may come along; device attributes are the same for every launch.
_NCU_IGNORED = re.compile(
    r"device__|launch__(context|stream)_id|profiler__|ID$|Process |Host |Kernel |Context$|Stream$|CC$"
)
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_WITH_POINT = re.compile(rf"[+-]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{_EXPONENT}")
_WITH_COMMA = re.compile(rf"[+-]?(?:\d{{1,3}}(?:\.\d{{3}})+|\d+)(?:,\d+)?{_EXPONENT}")
_TRIPLE = re.compile(r"\(\s*([\d.,]+?)\s*,\s*([\d.,]+?)\s*,\s*([\d.,]+?)\s*\)")
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALED = re.compile(r"([numKkMGT]?)(byte|hz|inst|sector|cycle|request|thread|warp)\b(.*)")
_TIMES_NS = {
    "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9,
}  # fmt: skip


class FeatureFile(NamedTuple):
    """One file read.

    rows: launch_index, feature, value, unit. shapes: launch_index, blocks, threads_per_block of the launches where the
    file tells them, for the check that these are the launches of the run.
    """

    kind: str
    rows: pd.DataFrame
    shapes: pd.DataFrame


def read_features(lines: Iterable[str], where: str) -> FeatureFile:
    """Rows of a file recognised by its header; SourceError, naming the file, where it cannot be used.

    - ncu: `ncu --csv`, raw page (a row per launch and a row of units) or details page (a row per metric); lines before
      the header, and ==PROF== lines, are passed over. ID is the launch's number among the profiled ones, from 0.
    - instructions: kernel statistics of the Accel-Sim tracer; `kernel-7.trace` is the seventh launch.
    - vectors: CSV with launch_index (from 0), block (any name of a basic block) and instructions (executed in it).
    """
    rows = csv.reader(line for line in lines if not line.startswith("=="))
    for row in rows:
        header = [cell.strip().lstrip("\ufeff") for cell in row]
        if all(name in header for name in _TRACER_COLUMNS):
            return _tracer(header, rows, where)
        if all(name in header for name in VECTOR_COLUMNS):
            return _vectors(header, rows, where)
        if all(name in header for name in _NCU_FIXED):
            reader = _ncu_details if "Metric Name" in header else _ncu_raw
            return reader(header, rows, where)
    raise SourceError(
        f"{where}: no header of ncu --csv (ID, Kernel Name), of tracer statistics ({', '.join(_TRACER_COLUMNS)}) or of "
        f"basic-block vectors ({', '.join(VECTOR_COLUMNS)})"
    )


def parse_numbers(texts: list[str]) -> list[float]:
    """Numbers as ncu prints them, NaN for what is none; the decimal mark is that of the whole file.

    ncu writes in the locale of its user: 27.595.520 and 65,77, or 27,595,520 and 65.77. What 1,234 means, the numbers
    that can be read in one way only decide.
    """
    texts = [text.strip() for text in texts]
    point = sum(bool(_WITH_POINT.fullmatch(text)) for text in texts)
    comma = sum(bool(_WITH_COMMA.fullmatch(text)) for text in texts)
    return [_number(text, decimal_comma=comma > point) for text in texts]


def base_unit(unit: str) -> tuple[str, float]:
    """Unit without its prefix, and the factor: ncu scales each number by itself, Kbyte here and Mbyte there.

    Times become ns, everything else the plain unit.
    """
    if unit in _TIMES_NS:
        return "ns", _TIMES_NS[unit]
    found = _SCALED.fullmatch(unit)
    if not found or not found[1]:
        return unit, 1.0
    return found[2] + found[3], _PREFIXES[found[1]]


def _number(text: str, *, decimal_comma: bool) -> float:
    if not (_WITH_COMMA if decimal_comma else _WITH_POINT).fullmatch(text):
        return np.nan
    return float(text.replace(".", "").replace(",", ".") if decimal_comma else text.replace(",", ""))


def _tracer(header: list[str], rows: Iterator[list[str]], where: str) -> FeatureFile:
    places = [header.index(name) for name in _TRACER_COLUMNS]
    found = []
    for row in rows:
        if not row:
            continue
        cells = [row[place].strip() if place < len(row) else "" for place in places]
        number = re.fullmatch(r"kernel-(\d+)\b.*", cells[0])
        if number is None or int(number[1]) < 1 or not all(cell.isdecimal() for cell in cells[1:]):
            raise SourceError(
                f"{where}: the row {row[:1]} of kernel {cells[0]!r} is cut or malformed; copy the file anew"
            )
        found.append((int(number[1]) - 1, *map(int, cells[1:])))
    frame = pd.DataFrame(found, columns=["launch_index", "blocks", "threads_per_block", "value"])
    return _checked("instructions", frame.assign(feature=INSTRUCTIONS, unit="inst"), where)


def _vectors(header: list[str], rows: Iterator[list[str]], where: str) -> FeatureFile:
    places = [header.index(name) for name in VECTOR_COLUMNS]
    found = []
    for row in rows:
        if not row:
            continue
        cells = [row[place].strip() if place < len(row) else "" for place in places]
        count = _number(cells[2], decimal_comma=False)
        if not cells[0].isdecimal() or not cells[1] or not count >= 0:
            raise SourceError(
                f"{where}: the row {','.join(row)[:80]!r} is no launch_index, block, instructions"
            )
        found.append((int(cells[0]), BLOCK_PREFIX + cells[1], count))
    frame = pd.DataFrame(found, columns=["launch_index", "feature", "value"])
    return _checked("vectors", frame.assign(unit="inst", blocks=None, threads_per_block=None), where)


def _ncu_raw(header: list[str], rows: Iterator[list[str]], where: str) -> FeatureFile:
    kept = [place for place, name in enumerate(header) if not _NCU_IGNORED.match(name)]
    units = [""] * len(header)
    records = []
    for row in rows:
        if len(row) == len(header) and not row[header.index("ID")].strip():
            units = row
        elif len(row) == len(header):
            records += [(row, header[place], units[place], row[place]) for place in kept]
    return _ncu(header, records, where)


def _ncu_details(header: list[str], rows: Iterator[list[str]], where: str) -> FeatureFile:
    name, unit, value = (header.index(f"Metric {what}") for what in ("Name", "Unit", "Value"))
    # Rows of rules carry no metric and may be short.
    records = [
        (row, row[name], row[unit], row[value])
        for row in rows
        if len(row) > max(name, unit, value) and row[name].strip()
    ]
    return _ncu(header, records, where)


def _ncu(header: list[str], records: list[tuple[list[str], str, str, str]], where: str) -> FeatureFile:
    launch = header.index("ID")
    process = header.index("Process ID") if "Process ID" in header else launch
    if len({row[process] for row, *_ in records}) > 1 and process != launch:
        raise SourceError(
            f"{where}: several processes in one file; export one file per process, so that launches count from 0"
        )
    if any(not row[launch].strip().isdecimal() for row, *_ in records):
        raise SourceError(
            f"{where}: a row without a whole number in column ID; export it anew with ncu --csv"
        )
    values = parse_numbers([text for *_, text in records])
    blocks = [_product(row, header, "Grid Size") for row, *_ in records]
    threads = [_product(row, header, "Block Size") for row, *_ in records]
    scaled = [base_unit(unit.strip()) for _, _, unit, _ in records]
    frame = pd.DataFrame(
        {
            "launch_index": [int(row[launch]) for row, *_ in records],
            "feature": [name.strip() for _, name, _, _ in records],
            "value": [value * factor for value, (_, factor) in zip(values, scaled, strict=True)],
            "unit": [unit for unit, _ in scaled],
            "blocks": blocks,
            "threads_per_block": threads,
        }
    )
    frame = frame[np.isfinite(frame["value"].to_numpy(dtype=np.float64))]
    # The raw page tells the shape as metrics.
    for column, metric in (("blocks", "launch__grid_size"), ("threads_per_block", "launch__block_size")):
        known = (
            frame[frame["feature"] == metric]
            .drop_duplicates("launch_index")
            .set_index("launch_index")["value"]
        )
        frame[column] = frame[column].astype("float64").fillna(frame["launch_index"].map(known))
    return _checked("ncu", frame, where)


def _product(row: list[str], header: list[str], name: str) -> float:
    if name not in header or header.index(name) >= len(row):
        return np.nan
    found = _TRIPLE.fullmatch(row[header.index(name)].strip())
    return float(np.prod([int(re.sub("[.,]", "", part)) for part in found.groups()])) if found else np.nan


def _checked(kind: str, frame: pd.DataFrame, where: str) -> FeatureFile:
    if frame.empty:
        raise SourceError(f"{where}: a header and no number below it")
    keys = ["launch_index", "feature"]
    if frame.duplicated(keys).any():
        first = frame[frame.duplicated(keys)].iloc[0]
        raise SourceError(
            f"{where}: launch {first['launch_index']} has {first['feature']} twice; give each launch once"
        )
    shapes = frame[["launch_index", "blocks", "threads_per_block"]].drop_duplicates("launch_index")
    types = {"blocks": "Float64", "threads_per_block": "Float64"}
    rows = frame[["launch_index", "feature", "value", "unit"]].astype({"value": "float64"})
    return FeatureFile(kind, rows.reset_index(drop=True), shapes.astype(types).reset_index(drop=True))
