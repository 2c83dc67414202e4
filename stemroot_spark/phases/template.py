"""One period of a launch sequence as a template, and the sequence divided by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Stretch = tuple[Ints, int]
"""Starts of the periods of a steady stretch, and the end of its last."""

# Periods that a stretch has to hold.
FEWEST_PERIODS = 3
# An irregular period is as long as the template within this share of it, and at least this share of it matches.
_SLACK = 0.1
_LEAST_MATCH = 0.6
# Launches compared to find where the next period begins.
_PROBE = 64
_BASE = 0x9E37_79B9_7F4A_7C15
_INVERSE = pow(_BASE, -1, 2**64)


@dataclass(frozen=True)
class Template:
    """The kernels of one period, in order of launch."""

    codes: Codes

    @staticmethod
    def at_lag(codes: Codes, lag: int) -> Template | None:
        """The template of a lag, None where no stretch of that length stands twice in a row.

        Its kernels are those of the longest stretch that repeats at the lag. Where a period begins is a matter of
        convention: here it is the earliest place after which they follow in cyclic order, the end of the prologue.
        """
        runs = _runs(codes[:-lag] == codes[lag:])
        lengths = runs[:, 1] - runs[:, 0]
        if not len(runs) or lengths.max() < lag:
            return None
        repeated = int(runs[np.argmax(lengths), 0])
        found = codes[repeated : repeated + lag]
        rotations = _window_hashes(np.concatenate([found, found[:-1]]), lag)
        # Equal rotations are a shorter period, which has a lag of its own; one kernel over and over tells nothing.
        if len(np.unique(rotations)) < lag or np.all(found == found[0]):
            return None
        first = int(np.argmax(np.isin(_window_hashes(codes, lag), rotations)))
        return Template(codes[first : first + lag])

    def __len__(self) -> int:
        return len(self.codes)

    def occurrences(self, codes: Codes) -> Ints:
        """Where it stands in a sequence, from the first place on, without overlaps."""
        size = len(self)
        if len(codes) < size:
            return np.empty(0, dtype=np.int64)
        wanted = _window_hashes(self.codes, size)[0]
        apart: list[int] = []
        for position in np.flatnonzero(_window_hashes(codes, size) == wanted).tolist():
            if not apart or position >= apart[-1] + size:
                apart.append(position)
        found = np.array(apart, dtype=np.int64)
        # Equal hashes are a strong hint and no more.
        windows = np.lib.stride_tricks.sliding_window_view(codes, size)
        return found[np.all(windows[found] == self.codes, axis=1)]


def _window_hashes(codes: Codes, size: int) -> npt.NDArray[np.uint64]:
    """Hash of every window of a sequence, as rolling hashes modulo 2^64 (Karp and Rabin 1987)."""
    n = len(codes)
    weighted = _powers(_BASE, n)
    weighted *= (codes + 1).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])
    hashes: npt.NDArray[np.uint64] = (sums[size:] - sums[:-size]) * _powers(_INVERSE, n - size + 1)
    return hashes


def _powers(base: int, n: int) -> npt.NDArray[np.uint64]:
    factors = np.full(n, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def divide(codes: Codes, template: Template) -> list[Stretch]:
    """Steady stretches of a sequence: periods equal to the template, and irregular ones between them.

    A few launches more between two periods belong to the one before. At the end a period may be cut. A stretch has
    at least ``FEWEST_PERIODS``.
    """
    size = len(template)
    whole = template.occurrences(codes)
    # Periods that follow one another at once are taken together: there can be very many of them.
    followers = np.append(whole[1:], len(codes))
    last_of_run = np.flatnonzero(followers != whole + size) if len(whole) else whole
    if len(whole) and followers[-1] == whole[-1] + size:
        last_of_run = np.append(last_of_run, len(whole) - 1)
    stretches: list[Stretch] = []
    starts: list[Ints] = []
    begin = 0
    for last in last_of_run.tolist():
        starts.append(whole[begin : last + 1])
        begin = last + 1
        end, follower = int(whole[last]) + size, int(followers[last])
        is_last = follower == len(codes)
        between = _irregular(codes[end:follower], template.codes, is_last=is_last)
        if between is not None:
            starts.append(end + np.array(between, dtype=np.int64))
        if between is None or is_last:
            together = np.concatenate(starts)
            if len(together) >= FEWEST_PERIODS:
                stretches.append((together, end if between is None else follower))
            starts = []
    return stretches


def _irregular(piece: Codes, template: Codes, *, is_last: bool) -> list[int] | None:
    """Starts of the irregular periods of a piece between whole ones; None where it does not hold periods.

    The last piece may end inside a period.
    """
    size, slack = len(template), int(_SLACK * len(template))
    starts: list[int] = []
    begin = 0
    while begin < len(piece):
        rest = piece[begin:]
        n_head = np.count_nonzero(rest[:size] == template[: len(rest)])
        if is_last and n_head == len(rest):
            return [*starts, begin]
        if len(rest) <= slack:
            return starts
        if is_last and len(rest) < size - slack:
            return [*starts, begin] if n_head >= _LEAST_MATCH * len(rest) else None
        length = len(rest)
        if length > size + slack:
            length = _next_start(rest, template, size - slack, size + slack)
        if _match(rest[:length], template) < _LEAST_MATCH * size:
            return None
        starts.append(begin)
        begin += length
    return starts


def _match(piece: Codes, template: Codes) -> int:
    """Most launches of a piece that match a template laid at its head up to some launch and at its tail after it."""
    n = min(len(piece), len(template))
    head = np.concatenate([[0], np.cumsum(piece[:n] == template[:n])])
    tail = np.concatenate([[0], np.cumsum((piece[-n:] == template[-n:])[::-1])])[::-1]
    return int(np.max(head + tail))


def _next_start(rest: Codes, template: Codes, least: int, most: int) -> int:
    """Length of the first period of a piece, by where the beginning of the template fits best after it."""
    probe = template[:_PROBE]
    positions = np.arange(max(1, least), min(most, len(rest) - 1) + 1)
    windows = positions[:, None] + np.arange(len(probe))
    inside = windows < len(rest)
    equal = (rest[np.where(inside, windows, 0)] == probe) & inside
    hits = equal.sum(axis=1)
    # Of equally good places the one nearest to a whole period.
    best = np.flatnonzero(hits == hits.max())
    return int(positions[best[np.argmin(np.abs(positions[best] - len(template)))]])


def _runs(flags: npt.NDArray[np.bool_]) -> Ints:
    """Begin and end of each run of true values, (runs, 2)."""
    edges = np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], axis=1)
