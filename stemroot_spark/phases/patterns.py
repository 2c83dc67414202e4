"""Names of NVTX ranges -> iteration number and phase, by the patterns of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

NONE = -1
_MAX_ITERATION = 2**31 - 1


class Match(NamedTuple):
    """What a name means; every field is ``NONE`` where it means nothing.

    ``rank`` is the position of the iteration pattern that matched, ``number`` the number in the name, ``phase`` the
    position of the phase.
    """

    rank: int
    number: int
    phase: int


@dataclass(frozen=True)
class Patterns:
    """Regular expressions for names of NVTX ranges, searched anywhere in the name; the first that matches counts.

    ``iteration`` may hold a group for the number of the iteration. ``phases`` are pairs of the name that goes into
    tables and an expression. ``domains`` are the NVTX domains to look at, all where it is empty; the default domain
    has the empty name.
    """

    iteration: tuple[str, ...]
    phases: tuple[tuple[str, str], ...]
    domains: tuple[str, ...] = ()

    @staticmethod
    def of(iteration: Sequence[str], phases: Mapping[str, str], domains: Sequence[str]) -> Patterns:
        """Patterns as the configuration holds them."""
        return Patterns(tuple(iteration), tuple(phases.items()), tuple(domains))

    @cached_property
    def phase_names(self) -> tuple[str, ...]:
        """Names by the positions that ``match`` returns."""
        return tuple(name for name, _ in self.phases)

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """All expressions; a name that none of them matches means nothing."""
        return (*self.iteration, *(expression for _, expression in self.phases))

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        return (
            [re.compile(expression, re.ASCII) for expression in self.iteration],
            [re.compile(expression, re.ASCII) for _, expression in self.phases],
        )

    def match(self, name: str) -> Match:
        """What a name of a range means."""
        iterations, phases = self._compiled
        rank, number = NONE, NONE
        for position, pattern in enumerate(iterations):
            found = pattern.search(name)
            if found is None:
                continue
            digits = next(
                (group for group in found.groups() if group is not None and group.isdecimal()), None
            )
            # A number that no counter of iterations reaches is something else, an address or a time.
            if digits is None or (len(digits) <= 10 and int(digits) <= _MAX_ITERATION):
                rank, number = position, NONE if digits is None else int(digits)
                break
        phase = next((i for i, pattern in enumerate(phases) if pattern.search(name)), NONE)
        return Match(rank, number, phase)
