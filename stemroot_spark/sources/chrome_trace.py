"""The GPU events of a Chrome trace in JSON, streamed: nothing but a chunk of text and one event is held.

Why not a streaming JSON library: ijson 3.6 with its C backend yajl2_c read the same files at half the speed, refuses
NaN, control characters and bad UTF-8, which profilers write, and ends the interpreter with a segmentation fault on an
integer of 5,000 digits, which takes the Python worker with it. Here a regular expression finds where an event ends,
and the json module of the standard library decodes the few events that concern the GPU. Events of the CPU are
skipped undecoded, so that a Windows path or a quotation in a Python function's name costs nothing.

Skipping must not lose kernels: a stray quote turns text inside out and could let an "event" reach into the next one.
A skipped text therefore holds exactly one "ph" and one "cat"; whatever does not is decoded, and refused if it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

from stemroot_spark.sources.text_stream import ReadLimits, UnusableSourceError

KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
SPAN_CATEGORY = "Trace"
_DECODED_CATEGORIES = KERNEL_CATEGORIES | COPY_CATEGORIES | {SPAN_CATEGORY}

Event = dict[str, Any]
"""A decoded event; its numbers are texts, so that no digit is lost and no number too long to convert."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# An object whose members hold at most objects of plain values. Possessive: no backtracking, whatever the text.
_EVENT = re.compile(
    rf'\{{[^{{}}"]*+(?:(?:{_STRING}|\{{[^{{}}"]*+(?:{_STRING}[^{{}}"]*+)*+\}})[^{{}}"]*+)*+\}}', re.DOTALL
)
_CATEGORY = re.compile(r'"cat"\s*+:\s*+"([^"\\]*+)"')
_SEPARATOR = re.compile(r"[ \t\r\n]*+,[ \t\r\n]*+(?=\{)")
_WHITESPACE = re.compile(r"[ \t\r\n]*+")
# What C and C++ print for numbers that are none; strings are matched first, to be left alone.
_BARE_NON_FINITE = re.compile(
    rf"({_STRING})|[-+]?\b(?:inf(?:inity)?|nan(?:\([^()]*\))?)", re.DOTALL | re.IGNORECASE
)
# What is left at the place of the decoder's complaint where JSON ends too early, other than inside a string.
_TWO_CLOSED = re.compile(r"[\]}]\s*[\]}]\s*\Z")
_LONGEST_END = 1_000
_BEGINNING_OF_TOKEN = re.compile(r"\\?[-+.\w]*+\s*+")

_decode = JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, strict=False).raw_decode


class ChromeTrace:
    """One pass over a trace, as an object with ``traceEvents`` or as a bare list of events."""

    def __init__(self, chunks: Iterator[str], header_keys: frozenset[str], limits: ReadLimits) -> None:
        self.header: dict[str, Any] = {}
        """Values of ``header_keys`` beside the events; complete when ``events`` is exhausted."""
        self._header_keys = header_keys
        self._chunks = chunks
        self._limits = limits
        self._text = ""
        self._at = 0

    def events(self) -> Iterator[Event | None]:
        """Kernels, copies, spans and events without category; None for a kernel that is no valid JSON.

        Raises UnusableSourceError where the file is cut, malformed, or no trace.
        """
        first = self._peek()
        if first == "[":
            yield from self._event_list()
        elif first == "{":
            yield from self._members()
        else:
            raise UnusableSourceError("not JSON: the file starts with neither an object nor a list")
        if self._peek():
            raise UnusableSourceError("malformed JSON: text follows the end of the trace")

    def _members(self) -> Iterator[Event | None]:
        self._at += 1
        has_events = False
        separator = "{"
        while separator != "}":
            if separator == "{" and self._peek() == "}":
                break
            key = self._value()
            self._expect(":")
            if key != "traceEvents":
                value = self._value()
                if key in self._header_keys:
                    self.header[key] = value
            elif has_events:
                raise UnusableSourceError("malformed trace: it has traceEvents twice")
            elif not self._peek():
                raise _cut()
            elif self._peek() != "[":
                raise UnusableSourceError("malformed trace: traceEvents is not a list")
            else:
                has_events = True
                yield from self._event_list()
            separator = self._expect(",}")
        if not has_events:
            raise UnusableSourceError("no traceEvents: JSON, but not a profiler's trace")

    def _event_list(self) -> Iterator[Event | None]:
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            is_wanted, event = self._event()
            if is_wanted:
                yield event
            separator = _SEPARATOR.match(self._text, self._at)
            if separator is not None:
                self._at = separator.end()
            elif self._expect(",]") == "]":
                return
            else:
                self._peek()

    def _event(self) -> tuple[bool, Event | None]:
        """Go past the event at hand; whether it is wanted, and what it holds."""
        while True:
            match = _EVENT.match(self._text, self._at)
            if match is not None:
                return self._classify(match.end())
            try:
                event, end = self._decode_here()
            except JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error) from None
                continue
            if not isinstance(event, dict):
                raise UnusableSourceError("malformed trace: an entry of traceEvents is not an event")
            self._at = end
            return True, event

    def _classify(self, end: int) -> tuple[bool, Event | None]:
        text, start = self._text, self._at
        found = _CATEGORY.search(text, start, end)
        category = None if found is None else found[1]
        is_one_event = text.count('"ph"', start, end) == 1 == text.count('"cat"', start, end)
        if is_one_event and category is not None and category not in _DECODED_CATEGORIES:
            self._at = end
            return False, None
        try:
            event, true_end = self._decode_here()
            self._at = true_end
        except JSONDecodeError as error:
            event = _repaired(text[start:end])
            if event is None and not (is_one_event and category in KERNEL_CATEGORIES):
                raise self._broken(error) from None
            self._at = end
        return True, event

    def _value(self) -> Any:
        """Decode the value at hand."""
        while True:
            self._peek()
            try:
                value, end = self._decode_here()
            except JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error) from None
                continue
            # A number may go on in the next chunk.
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _decode_here(self) -> tuple[Any, int]:
        try:
            return _decode(self._text, self._at)
        except RecursionError:
            raise UnusableSourceError("malformed JSON: nested too deeply") from None

    def _peek(self) -> str:
        """The next character that is not white space, empty at the end of the file."""
        while True:
            match = _WHITESPACE.match(self._text, self._at)
            self._at = len(self._text) if match is None else match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, characters: str) -> str:
        """Go past the next character, which must be one of these."""
        character = self._peek()
        if not character:
            raise _cut()
        if character not in characters:
            raise _malformed()
        self._at += 1
        return character

    def _more(self) -> bool:
        """Get the next chunk, drop what was read; False at the end of the file."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._text = self._text[self._at :] + chunk
        self._at = 0
        if len(self._text) > self._limits.record_characters + len(chunk):
            raise UnusableSourceError(
                f"malformed JSON, or one event of more than {self._limits.record_characters} characters"
            )
        return True

    def _broken(self, error: JSONDecodeError) -> UnusableSourceError:
        """The end of the file is missing, or what stands there is wrong."""
        if next(self._chunks, None) is not None:
            return _malformed()
        if error.msg.startswith("Unterminated string"):
            # The trace has its end, so a quotation mark is missing; names end with one such bracket at most.
            return _malformed() if _TWO_CLOSED.search(self._text[-_LONGEST_END:]) else _cut()
        return _cut() if _BEGINNING_OF_TOKEN.fullmatch(self._text, error.pos) else _malformed()


def _cut() -> UnusableSourceError:
    return UnusableSourceError(
        "the JSON is cut before its end; copy the file again or profile again", is_cut=True
    )


def _malformed() -> UnusableSourceError:
    return UnusableSourceError("malformed JSON; profile again with a newer version of the profiler")


def _repaired(text: str) -> Event | None:
    """An event whose only fault are bare inf and nan, which become texts; None if that does not help."""
    repaired = _BARE_NON_FINITE.sub(lambda match: match[1] or '"NaN"', text)
    try:
        event = _decode(repaired)[0]
    except (JSONDecodeError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
