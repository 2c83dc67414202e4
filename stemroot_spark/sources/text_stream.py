"""Text of a trace file, plain or gzip, as a stream of chunks: memory does not grow with the file.

What is wrong with a file ends in ``UnusableSourceError``, whose text is a reason in our own words: it never quotes the
file, which may hold environments, host names and tokens.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stemroot_spark.errors import SourceError
from stemroot_spark.sources.storage import locate

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
_GZIP_WINDOW_BITS = 31
# As many bytes as the longest mark at the beginning of a file has.
_MARK_BYTES = 4


class UnusableSourceError(SourceError):
    """A source that cannot be used; the text is the reason, and ``is_cut`` tells that its end is missing."""

    def __init__(self, reason: str, *, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.is_cut = is_cut


@dataclass(frozen=True)
class ReadLimits:
    """What a text file may cost before it is taken for an attack.

    Attributes:
        text_bytes: most bytes of text, after decompression.
        gzip_ratio: most bytes of text per byte of gzip; traces reach 20 to 60, a bomb 1,000.
        gzip_free_bytes: text up to this size is read whatever its ratio.
        record_characters: longest single record (an event, a line).
    """

    text_bytes: int = 1 << 40
    gzip_ratio: int = 200
    gzip_free_bytes: int = 256 << 20
    record_characters: int = 16 << 20


@contextmanager
def open_source(source: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """The bytes of a local path, a URI or an open binary stream, from their beginning.

    A stream is rewound where it can be, and left open.
    """
    if not isinstance(source, str | Path):
        if source.seekable():
            source.seek(0)
        yield source
        return
    filesystem, path = locate(str(source))
    # Not open_input_stream: that one decompresses by the name of the file, without a limit.
    with filesystem.open_input_file(path) as stream:
        yield stream


def text_chunks(stream: IO[bytes], limits: ReadLimits) -> Iterator[str]:
    """Decode a stream: gzip by its magic, UTF-16 by its byte order mark, else UTF-8.

    Bytes that are no text become U+FFFD. Raises UnusableSourceError for a damaged or cut gzip stream and beyond the
    limits.
    """
    chunks = _limited(_byte_chunks(stream), limits)
    first = b""
    while len(first) < _MARK_BYTES and (chunk := next(chunks, b"")):
        first += chunk
    decoder = codecs.getincrementaldecoder(_encoding(first))("replace")
    if first:
        yield decoder.decode(first)
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def text_start(start: bytes) -> str:
    """Text of the first bytes of a file, as far as it goes; empty where it is none."""
    if start.startswith(GZIP_MAGIC):
        try:
            start = zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(start, CHUNK_BYTES)
        except zlib.error:
            return ""
    return codecs.getincrementaldecoder(_encoding(start))("replace").decode(start)


def _encoding(first: bytes) -> str:
    # PowerShell redirects text as UTF-16.
    is_utf16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if is_utf16 else "utf-8-sig"


def _byte_chunks(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Chunks of content, and the number of bytes of the file read so far where they were compressed, else 0."""
    first = b""
    # A stream may return less than it was asked for.
    while len(first) < _MARK_BYTES and (chunk := stream.read(CHUNK_BYTES)):
        first += chunk
    if first.startswith(GZIP_MAGIC):
        yield from _gunzipped(stream, first)
        return
    while first:
        yield first, 0
        first = stream.read(CHUNK_BYTES)


def _gunzipped(stream: IO[bytes], chunk: bytes) -> Iterator[tuple[bytes, int]]:
    decoder = zlib.decompressobj(_GZIP_WINDOW_BITS)
    n_compressed = 0
    try:
        while chunk:
            n_compressed += len(chunk)
            while chunk:
                if decoder.eof:
                    # Members may follow one another, and zeros pad files to the blocks of a tape.
                    chunk = chunk.lstrip(b"\0")
                    if not chunk:
                        break
                    decoder = zlib.decompressobj(_GZIP_WINDOW_BITS)
                text = decoder.decompress(chunk, CHUNK_BYTES)
                if text:
                    yield text, n_compressed
                chunk = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            chunk = stream.read(CHUNK_BYTES)
        text = decoder.flush()
    except zlib.error:
        raise UnusableSourceError("the gzip stream is damaged; copy the file again") from None
    if text:
        yield text, n_compressed
    if not decoder.eof:
        raise UnusableSourceError(
            "the gzip stream is cut before its end; copy the file again or profile again", is_cut=True
        )


def _limited(chunks: Iterator[tuple[bytes, int]], limits: ReadLimits) -> Iterator[bytes]:
    n_bytes = 0
    for chunk, n_compressed in chunks:
        n_bytes += len(chunk)
        if n_bytes > limits.text_bytes:
            raise UnusableSourceError(f"more than {limits.text_bytes} bytes of text, the limit for one file")
        if n_compressed and n_bytes > max(limits.gzip_free_bytes, limits.gzip_ratio * n_compressed):
            raise UnusableSourceError(
                f"the gzip stream expands to more than {limits.gzip_ratio} times its size, as a bomb does; "
                "decompress the file first if it is to be trusted"
            )
        yield chunk
