"""Fingerprints: what determines the rows of an id, as canonical JSON and its SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256_of(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def digest_of_strings(strings: Iterable[str]) -> str:
    """SHA-256 (hex) of a set of strings, whatever their order."""
    digest = hashlib.sha256()
    for text in sorted(strings):
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


@dataclass(frozen=True)
class Fingerprint:
    """Options and inputs that determine the rows of an id."""

    inputs: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """Hex digest that is stored with the rows."""
        return sha256_of(dict(self.inputs))

    @property
    def json(self) -> str:
        """The inputs as canonical JSON."""
        return canonical_json(dict(self.inputs))

    def differences(self, stored_json: str) -> list[str]:
        """One text per input that differs from the stored ones: name, stored value, value asked for now."""
        stored = json.loads(stored_json)
        asked = json.loads(self.json)
        return [
            f"{name} was {stored.get(name)!r}, now {asked.get(name)!r}"
            for name in sorted(stored.keys() | asked.keys())
            if stored.get(name) != asked.get(name)
        ]
