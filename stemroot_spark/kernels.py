"""Kernel names: a short name for display, and the category by the rules of ``conf/kernel_categories.toml``."""

from __future__ import annotations

import re
import tomllib
from functools import cache

from stemroot_spark.resources import read_text

COMMUNICATION = "communication"
OTHER = "other"
_SHORT_NAME_LENGTH = 120
_OPERATOR = re.compile(r"operator\s*(?:\(\)|<=>|<<=?|>>=?|<=?|>=?|->)")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}|<unnamed>")


@cache
def _rules() -> list[tuple[str, re.Pattern[str]]]:
    rules = tomllib.loads(read_text("conf", "kernel_categories.toml"))["rule"]
    return [(rule["category"], re.compile(rule["pattern"], re.IGNORECASE)) for rule in rules]


def category(kernel_name: str) -> str:
    """Category of a kernel by its full demangled name; ``other`` where no rule matches."""
    return next((name for name, pattern in _rules() if pattern.search(kernel_name)), OTHER)


def short_name(kernel_name: str) -> str:
    """Base name of a demangled function: no return type, namespaces, template arguments and parameters.

    For display only: distinct kernels can share it.
    """
    text = _ANONYMOUS.sub("anonymous", _OPERATOR.sub("operator", kernel_name))
    text = _outside_brackets(text)
    base = text.strip().split(" ")[-1].split("::")[-1] if text.strip() else ""
    return (base or kernel_name.strip() or "unnamed")[:_SHORT_NAME_LENGTH]


def _outside_brackets(text: str) -> str:
    """The text before the parameter list, with everything between angle brackets left out."""
    kept: list[str] = []
    depth = 0
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif depth == 0:
            if character == "(":
                break
            kept.append(character)
    return "".join(kept)
