"""The packaged ``schemas/*.sql`` files: the single source of columns, types, comments and constraints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stemroot_spark.resources import list_names, read_text

_COLUMN = re.compile(
    r"^  (?P<name>\w+) (?P<type>[A-Z]+(?:[(<][^ ]*[)>])?)(?P<required> NOT NULL)?"
    r" COMMENT '(?P<comment>(?:[^']|'')*)',?$",
    re.MULTILINE,
)
_TABLE_COMMENT = re.compile(r"^COMMENT '(?P<comment>(?:[^']|'')*)'$", re.MULTILINE)


@dataclass(frozen=True)
class Column:
    """A column as the schema file declares it."""

    name: str
    type: str
    required: bool
    comment: str


def table_names() -> list[str]:
    """Names of all tables, sorted."""
    return [name.removesuffix(".sql") for name in list_names("schemas", ".sql")]


def create_statement(table: str, identifier: str) -> str:
    """CREATE TABLE IF NOT EXISTS statement of a table for a quoted identifier."""
    return read_text("schemas", f"{table}.sql").replace("{table}", identifier, 1)


def columns(table: str) -> list[Column]:
    """Columns of a table in order."""
    return [
        Column(
            found["name"], found["type"], found["required"] is not None, found["comment"].replace("''", "'")
        )
        for found in _COLUMN.finditer(read_text("schemas", f"{table}.sql"))
    ]


def table_comment(table: str) -> str:
    """Comment of a table."""
    found = _TABLE_COMMENT.search(read_text("schemas", f"{table}.sql"))
    return found["comment"].replace("''", "'") if found else ""


def markdown() -> str:
    """The documentation page of all tables."""
    parts = ["# Tables", "", "Made from `schemas/*.sql` by `make docs`; edit those files instead.", ""]
    for table in table_names():
        parts += [f"## {table}", "", table_comment(table), "", "| column | type | |", "|---|---|---|"]
        for column in columns(table):
            kind = column.type + (" NOT NULL" if column.required else "")
            parts.append(f"| `{column.name}` | `{kind}` | {column.comment} |")
        parts.append("")
    return "\n".join(parts)
