"""Which sources a ``--source`` names: a file, a folder of tables, a folder of either, or a glob of these."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from pyarrow import fs

from stemroot_spark.errors import UsageError
from stemroot_spark.sources.recognise import START_BYTES, recognise
from stemroot_spark.sources.storage import leaves_folder, locate, read_start

_GLOB = re.compile(r"[*?[]")
# Files by whose name a user means a trace: unreadable ones are quarantined. Others are passed over unless their
# content is a trace's.
_TRACE_SUFFIXES = (".sqlite", ".parquet", ".nsys-rep", ".qdrep", ".db")
_LINK_SUFFIXES = (*_TRACE_SUFFIXES, ".csv", ".json", ".gz")
_MAX_DEPTH = 4


@dataclass(frozen=True, order=True)
class Source:
    """A report to ingest: a file, or a folder of one Parquet file per table.

    ``boundary`` is the folder that the operator named, which symbolic links must not leave; None for no limit.
    """

    name: str
    uri: str
    is_folder: bool
    boundary: str | None = field(default=None, compare=False)


def discover(uris: list[str]) -> list[Source]:
    """All sources named by the given URIs, sorted by name, each once, whatever the order of the URIs.

    ``name`` is the path relative to the URI that named it, its last part where it is the source itself; names that
    would be equal get as many parent folders as tell them apart. Raises UsageError where a URI matches nothing.
    """
    found: dict[str, Source] = {}
    for uri in sorted(set(uris)):
        sources = [source for match in _expand(uri) for source in _sources_of(match)]
        if not sources:
            raise UsageError(
                f"--source {uri}: no trace in this folder; expected nsys exports (.sqlite, folders of .parquet tables, "
                "stats .csv) or Kineto .json traces"
            )
        for source in sources:
            known = found.get(source.uri)
            if known is None or len(source.name) < len(known.name):
                found[source.uri] = source
    return sorted(_with_distinct_names(list(found.values())))


def _expand(uri: str) -> list[str]:
    filesystem, path = locate(uri)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        return [uri]
    if not _GLOB.search(path):
        raise UsageError(f"--source {uri}: no such file or folder; check the path")
    prefix = uri[: len(uri) - len(path)] if uri.endswith(path) else ""
    matches = [""]
    for part in path.strip("/").split("/"):
        matches = [
            f"{parent}/{name}"
            for parent in matches
            for name in ([part] if not _GLOB.search(part) else _matching(filesystem, parent or "/", part))
        ]
    existing = [m for m in matches if filesystem.get_file_info(m).type != fs.FileType.NotFound]
    if not existing:
        raise UsageError(
            f"--source {uri}: nothing matches this pattern; check the path, and quote it in the shell"
        )
    return [prefix + match for match in sorted(existing)]


def _matching(filesystem: fs.FileSystem, folder: str, pattern: str) -> list[str]:
    entries = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    # As in a shell, hidden names need a pattern that begins with a dot: a killed writer leaves such folders behind.
    names = [e.base_name for e in entries if pattern.startswith(".") or not e.base_name.startswith(".")]
    return sorted(name for name in names if fnmatchcase(name, pattern))


def _sources_of(uri: str) -> list[Source]:
    filesystem, path = locate(uri)
    path = path.rstrip("/")
    # A local source is known by its normal path: other spellings of it must not count its launches twice.
    uri = path if isinstance(filesystem, fs.LocalFileSystem) else uri.rstrip("/")
    info = filesystem.get_file_info(path)
    last = path.rsplit("/", 1)[-1]
    if info.type == fs.FileType.File:
        return [Source(last, uri, is_folder=False)]
    return _walk(filesystem, path, uri, boundary=uri, prefix="", last=last, depth=0)


def _walk(
    filesystem: fs.FileSystem, path: str, uri: str, *, boundary: str, prefix: str, last: str, depth: int
) -> list[Source]:
    entries = sorted(filesystem.get_file_info(fs.FileSelector(path)), key=lambda entry: entry.base_name)
    visible = [entry for entry in entries if not entry.base_name.startswith((".", "_"))]
    if any(e.type == fs.FileType.File and e.base_name.lower().endswith(".parquet") for e in visible):
        return [Source(prefix.rstrip("/") or last, uri, is_folder=True, boundary=boundary)]
    found: list[Source] = []
    for entry in visible:
        name, child = f"{prefix}{entry.base_name}", f"{uri}/{entry.base_name}"
        is_directory = entry.type == fs.FileType.Directory
        if leaves_folder(child, boundary):
            # Not looked into; what has the name of a trace stands in the ledger with its reason.
            if is_directory or entry.base_name.lower().endswith(_LINK_SUFFIXES):
                found.append(Source(name, child, is_directory, boundary))
        elif is_directory:
            if depth < _MAX_DEPTH:
                found += _walk(
                    filesystem,
                    entry.path,
                    child,
                    boundary=boundary,
                    prefix=f"{name}/",
                    last=entry.base_name,
                    depth=depth + 1,
                )
        elif entry.base_name.lower().endswith(_TRACE_SUFFIXES) or _is_trace(child):
            found.append(Source(name, child, is_folder=False, boundary=boundary))
    return found


def _is_trace(uri: str) -> bool:
    try:
        return recognise(read_start(uri, START_BYTES)) is not None
    except OSError:
        return False


def _with_distinct_names(sources: list[Source]) -> list[Source]:
    """Lengthen equal names by parent folders until all differ; URIs differ, so this ends."""
    names = {source.uri: source.name for source in sources}
    parts = 1
    while True:
        counts = Counter(names.values())
        clashing = [source for source in sources if counts[names[source.uri]] > 1]
        if not clashing:
            return [replace(s, name=names[s.uri]) for s in sources]
        parts += 1
        for source in clashing:
            pieces = locate(source.uri)[1].rstrip("/").split("/")
            names[source.uri] = source.uri if parts > len(pieces) else "/".join(pieces[-parts:])
