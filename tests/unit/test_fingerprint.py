"""Fingerprints: equal inputs give equal digests whatever their order, and differences are named."""

from __future__ import annotations

import hashlib
import random

import pytest

from stemroot_spark.fingerprint import Fingerprint, canonical_json, digest_of_strings, sha256_of


def test_the_order_of_keys_does_not_matter_and_any_value_does() -> None:
    one = Fingerprint({"a": 1, "b": {"x": [1, 2], "y": None}})
    same = Fingerprint({"b": {"y": None, "x": [1, 2]}, "a": 1})
    assert one.sha256 == same.sha256
    others = [
        Fingerprint({"a": 2, "b": {"x": [1, 2], "y": None}}),
        Fingerprint({"a": 1, "b": {"x": [2, 1], "y": None}}),
        Fingerprint({"a": 1, "b": {"x": [1, 2], "y": False}}),
        Fingerprint({"a": "1", "b": {"x": [1, 2], "y": None}}),
        Fingerprint({"a": 1, "b": {"x": [1, 2]}}),
    ]
    assert len({one.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


def test_the_digest_is_the_sha256_of_the_stored_json() -> None:
    fingerprint = Fingerprint({"name": "nächt/1", "epsilon": 0.05})
    assert fingerprint.json == '{"epsilon":0.05,"name":"n\\u00e4cht/1"}'
    assert fingerprint.sha256 == hashlib.sha256(fingerprint.json.encode()).hexdigest()
    assert sha256_of({"epsilon": 0.05, "name": "nächt/1"}) == fingerprint.sha256


def test_differences_name_what_changed_and_nothing_else() -> None:
    stored = Fingerprint({"epsilon": 0.05, "seed": 1, "gone": True})
    now = Fingerprint({"epsilon": 0.02, "seed": 1, "new": "x"})
    assert now.differences(stored.json) == [
        "epsilon was 0.05, now 0.02",
        "gone was True, now None",
        "new was None, now 'x'",
    ]
    assert now.differences(now.json) == []


def test_differences_see_through_json() -> None:
    with_tuple = Fingerprint({"pair": (1, 2), "nested": {"b": 1, "a": 2}})
    assert with_tuple.differences(with_tuple.json) == []


def test_a_set_of_strings_has_one_digest_in_any_order() -> None:
    strings = [f"rank-{i}\0{i * i}" for i in range(50)]
    shuffled = strings.copy()
    random.Random(4).shuffle(shuffled)
    assert digest_of_strings(strings) == digest_of_strings(shuffled)
    assert digest_of_strings(strings) != digest_of_strings(strings[:-1])
    assert digest_of_strings(["ab", "c"]) != digest_of_strings(["a", "bc"])
    assert digest_of_strings([]) != digest_of_strings([""])


def test_names_that_are_not_text_of_the_file_system_still_have_a_digest() -> None:
    assert digest_of_strings(["bad\udcff"]) != digest_of_strings(["bad?"])


def test_canonical_json_is_ascii() -> None:
    canonical_json({"ü": "漢"}).encode("ascii")
    with pytest.raises(TypeError):
        canonical_json({"when": object()})
