"""Finding sources: files, folders, globs, odd names, duplicates; the order of the arguments does not matter."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from stemroot_spark.errors import UsageError
from stemroot_spark.sources.discover import Source, discover

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
ODD_NAMES = [
    "with space",
    "50%20 off",
    "a#b",
    "run[1]",
    "what?",
    "star*",
    "{x,y}",
    "ünïcode 漢字",
    "back\\slash",
    "colon:1",
    "semi;colon&and",
    "'quoted' \"twice\"",
]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / KERNEL).write_bytes(b"PAR1")
    return path


def _file(path: Path, content: bytes = b"SQLite format 3\0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _names(*uris: object) -> list[str]:
    return [source.name for source in discover([str(uri) for uri in uris])]


def test_a_file_is_one_source_whatever_it_holds(tmp_path: Path) -> None:
    path = _file(tmp_path / "trace.bin", b"?")
    assert discover([str(path)]) == [Source("trace.bin", str(path), is_folder=False)]


def test_a_folder_of_tables_is_one_source(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "report")
    _file(folder / "notes.sqlite")
    assert discover([str(folder)]) == [Source("report", str(folder), is_folder=True)]
    assert discover([f"{folder}/"]) == discover([str(folder)])


def test_a_folder_is_searched_for_files_and_folders_of_tables(tmp_path: Path) -> None:
    _folder(tmp_path / "night" / "rank-1")
    _folder(tmp_path / "night" / "deep" / "er" / "rank-0")
    _file(tmp_path / "night" / "a.sqlite")
    _file(tmp_path / "night" / "magic-without-suffix")
    _file(tmp_path / "night" / "raw.nsys-rep", b"raw")
    _file(tmp_path / "night" / "notes.txt", b"hello")
    _file(tmp_path / "night" / "truth.json", b"{}")
    _file(tmp_path / "night" / "empty", b"")
    _folder(tmp_path / "night" / ".partial")
    _file(tmp_path / "night" / "_temporary" / "x.sqlite")
    assert _names(tmp_path / "night") == [
        "a.sqlite",
        "deep/er/rank-0",
        "magic-without-suffix",
        "rank-1",
        "raw.nsys-rep",
    ]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_taken_literally(tmp_path: Path, name: str) -> None:
    folder = _folder(tmp_path / name / "rank 0")
    assert discover([str(tmp_path)]) == [Source(f"{name}/rank 0", str(folder), is_folder=True)]
    assert discover([str(tmp_path / name)])[0].uri == str(folder)
    assert discover([str(folder)]) == [Source("rank 0", str(folder), is_folder=True)]


def test_an_existing_name_with_glob_characters_is_not_a_pattern(tmp_path: Path) -> None:
    _folder(tmp_path / "run[1]")
    _folder(tmp_path / "run1")
    assert _names(tmp_path / "run[1]") == ["run[1]"]


def test_a_glob_matches_in_every_part_of_the_path(tmp_path: Path) -> None:
    for night, rank in itertools.product(("n1", "n2", "m1"), ("r0", "r1")):
        _folder(tmp_path / night / rank)
    _file(tmp_path / "n1" / "x.sqlite")
    assert _names(tmp_path / "n?") == ["n1/r0", "n1/r1", "n2/r0", "n2/r1", "x.sqlite"]
    assert _names(tmp_path / "[m]1" / "*") == ["r0", "r1"]
    assert _names(tmp_path / "*" / "r1") == ["m1/r1", "n1/r1", "n2/r1"]


def test_a_glob_passes_over_hidden_leftovers_of_a_killed_writer(tmp_path: Path) -> None:
    _folder(tmp_path / "night" / "rank-0")
    _folder(tmp_path / ".night.partial-17" / "rank-0")
    assert _names(tmp_path / "*") == ["rank-0"]
    assert _names(tmp_path / ".n*") == ["rank-0"]


def test_relative_paths_name_the_same_sources_as_absolute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "night" / "rank-0")
    monkeypatch.chdir(tmp_path)
    assert _names("night") == _names(tmp_path / "night") == ["rank-0"]
    assert _names("ni*") == ["rank-0"]


def test_a_file_uri_is_a_local_path(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "night 1")
    for scheme in ("file://", "file:", "file:/", "FILE://"):
        assert discover([f"{scheme}{folder}"]) == discover([str(folder)])
    assert _names(f"file://{tmp_path}/*1") == ["night 1"]


def test_a_name_with_a_colon_needs_a_folder_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "run:1")
    monkeypatch.chdir(tmp_path)
    assert _names("./run:1") == ["run:1"]
    for uri in ("run:1", "nosuch://bucket/trace"):
        with pytest.raises(UsageError, match="no file system is known"):
            discover([uri])


def test_a_source_named_several_times_is_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "night" / "rank-0")
    path = _file(tmp_path / "night" / "a.sqlite")
    monkeypatch.chdir(tmp_path)
    spellings = [
        str(folder),
        f"{folder}/",
        "night/rank-0",
        "./night/rank-0",
        str(tmp_path / "night" / ".." / "night" / "rank-0"),
        f"{tmp_path}/night//rank-0",
        f"file://{folder}",
        f"file:{folder}",
        f"//{folder}",
        str(tmp_path / "*"),
        str(tmp_path / "night"),
        "night/",
        str(path),
        "./night/a.sqlite",
        f"{tmp_path}//night/a.sqlite",
    ]
    for first in spellings:
        assert len(_names(first, *spellings)) == 2
    assert sorted(_names(*spellings)) == ["a.sqlite", "rank-0"]


def test_equal_names_get_the_folders_that_tell_them_apart(tmp_path: Path) -> None:
    for path in ("x/host1/rank-0", "x/host2/rank-0", "y/host2/rank-0", "y/host2/rank-1"):
        _folder(tmp_path / path)
    uris = [str(path) for path in tmp_path.glob("*/*/*")]
    found = discover(uris)
    assert len({source.name for source in found}) == 4
    assert {source.uri for source in found} == set(uris)
    assert "rank-1" in {source.name for source in found}
    for source in found:
        assert source.uri.endswith(f"/{source.name}")


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path) -> None:
    paths = [_folder(tmp_path / side / f"rank-{i}") for side in "ab" for i in range(2)]
    paths.append(_file(tmp_path / "c" / "rank-0"))
    expected = discover([str(path) for path in paths])
    assert [source.name for source in expected] == sorted(source.name for source in expected)
    for order in itertools.permutations(paths):
        assert discover([str(path) for path in order]) == expected


def test_what_is_not_there_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--source .*/nowhere: no such file or folder"):
        discover([str(tmp_path / "nowhere")])
    with pytest.raises(UsageError, match="nothing matches this pattern"):
        discover([str(tmp_path / "night-*")])
    with pytest.raises(UsageError, match="nothing matches this pattern"):
        discover([str(tmp_path / "*" / "nowhere" / "*")])


def test_a_folder_without_a_trace_is_refused_even_beside_good_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _file(tmp_path / "texts" / "notes.txt", b"hello")
    good = _folder(tmp_path / "good")
    for bad in ("empty", "texts"):
        with pytest.raises(UsageError, match=f"{bad}: no trace in this folder"):
            discover([str(good), str(tmp_path / bad)])


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    _folder(tmp_path / "night" / "rank-0")
    os.symlink(tmp_path / "night", tmp_path / "night" / "again", target_is_directory=True)
    assert "rank-0" in _names(tmp_path / "night")
