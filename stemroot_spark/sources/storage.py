"""Files at local paths or URIs, through pyarrow's filesystems; used on the driver and on the executors."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from stemroot_spark.errors import UsageError

_CHUNK_BYTES = 8 << 20
_PARQUET = ".parquet"
_GLOB_CHARACTERS = str.maketrans({character: f"\\{character}" for character in "*?[]{}\\"})


def locate(uri: str) -> tuple[fs.FileSystem, str]:
    """Filesystem and path of a URI or a local path; ``s3a``, the scheme of Hadoop, is read as ``s3``."""
    scheme = urlparse(uri).scheme
    if len(scheme) < 2 or scheme == "file":
        # Spark writes file:/path, others file:///path; what follows is taken as it is, not as percent-encoded.
        local = Path("/" + uri[len("file:") :] if scheme == "file" else uri).absolute()
        return fs.LocalFileSystem(), "/" + os.path.normpath(local).lstrip("/")
    try:
        filesystem, path = fs.FileSystem.from_uri("s3" + uri[3:] if scheme == "s3a" else uri)
    except pa.ArrowInvalid:
        raise UsageError(
            f"{uri}: no file system is known for {scheme}:; give a local path (./ before a name with a colon), or a "
            "URI of file, s3, s3a, gs, abfs or hdfs"
        ) from None
    return filesystem, path


def spark_path(uri: str) -> str:
    """Path that Spark takes literally: it would expand glob characters, and a relative path means another folder."""
    filesystem, path = locate(uri)
    return (path if isinstance(filesystem, fs.LocalFileSystem) else uri).translate(_GLOB_CHARACTERS)


def read_start(uri: str, n_bytes: int) -> bytes:
    """First bytes of a file."""
    filesystem, path = locate(uri)
    with filesystem.open_input_file(path) as stream:
        return bytes(stream.read(n_bytes))


def update_digest(digest: hashlib.blake2b, uri: str) -> int:
    """Feed a file to a digest in chunks; returns its size in bytes."""
    filesystem, path = locate(uri)
    size = 0
    with filesystem.open_input_stream(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size


def file_content_id(uri: str, flag: str) -> str:
    """Digest of the file that a flag names; UsageError where there is none."""
    filesystem, path = locate(uri)
    if filesystem.get_file_info(path).type != fs.FileType.File:
        raise UsageError(f"{flag} {uri}: no such file; check the path")
    digest = hashlib.blake2b(digest_size=16)
    update_digest(digest, uri)
    return digest.hexdigest()


@contextmanager
def local_copy(uri: str) -> Iterator[Path]:
    """The file as a local path: itself where it is local, else a copy that lives as long as the context."""
    filesystem, path = locate(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="stemroot-") as folder:
        target = Path(folder) / "source"
        with filesystem.open_input_stream(path) as stream, target.open("wb") as copy:
            shutil.copyfileobj(stream, copy, _CHUNK_BYTES)
        yield target


def leaves_folder(uri: str, folder: str) -> bool:
    """Whether a local path leads out of a folder once its symbolic links are followed; never for object stores."""
    filesystem, path = locate(uri)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return False
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(locate(folder)[1]))


def table_files(uri: str) -> dict[str, str]:
    """Parquet files of a folder of tables: table in lower case -> URI."""
    filesystem, path = locate(uri)
    return {
        entry.base_name[: -len(_PARQUET)].lower(): f"{uri.rstrip('/')}/{entry.base_name}"
        for entry in filesystem.get_file_info(fs.FileSelector(path))
        if entry.type == fs.FileType.File and entry.base_name.lower().endswith(_PARQUET)
    }
