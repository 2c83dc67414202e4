"""The schema files: complete, of one form, and readable by every reader of version 1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stemroot_spark.tables import ddl

_FILES = sorted((Path(__file__).resolve().parents[2] / "schemas").glob("*.sql"))
_TABLES = [path.stem for path in _FILES]


def test_every_schema_file_is_a_table_of_the_package() -> None:
    assert ddl.table_names() == _TABLES
    assert {"trace_files", "runs", "kernels", "launch_configs", "kernel_launches"} <= set(_TABLES)


@pytest.mark.parametrize("path", _FILES, ids=_TABLES)
def test_the_parsed_columns_are_all_that_the_file_declares(path: Path) -> None:
    # Everything between the brackets, a line per column, whatever the parser of the package makes of it.
    body = path.read_text(encoding="utf-8").split("{table} (\n", 1)[1].split("\n)\n", 1)[0]
    declared = [line.strip().split(" ")[:2] for line in body.split("\n")]
    assert [[column.name, column.type] for column in ddl.columns(path.stem)] == declared
    required = [" NOT NULL " in line for line in body.split("\n")]
    assert [column.required for column in ddl.columns(path.stem)] == required


@pytest.mark.parametrize("table", _TABLES)
def test_every_table_and_column_has_a_comment_and_a_portable_name(table: str) -> None:
    assert ddl.table_comment(table).endswith(".")
    names = [column.name for column in ddl.columns(table)]
    assert len(set(names)) == len(names)
    for column in ddl.columns(table):
        assert column.comment.strip(), column.name
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", column.name)
        assert column.type in {
            "STRING",
            "INT",
            "BIGINT",
            "DOUBLE",
            "BOOLEAN",
            "TIMESTAMP",
            "DECIMAL(38,0)",
            "ARRAY<INT>",
            "ARRAY<BIGINT>",
        }


@pytest.mark.parametrize("table", _TABLES)
def test_no_table_asks_for_more_than_reader_version_1(table: str) -> None:
    statement = ddl.create_statement(table, "t")
    assert "'delta.enableDeletionVectors' = 'false'" in statement
    for feature in ("GENERATED", "IDENTITY", "columnMapping", "DEFAULT ", "TIMESTAMP_NTZ", "VARIANT"):
        assert feature not in statement


@pytest.mark.parametrize("table", _TABLES)
def test_constraints_speak_of_columns_of_the_table(table: str) -> None:
    names = {column.name for column in ddl.columns(table)}
    for expression in re.findall(
        r"'delta\.constraints\.\w+' = '((?:[^']|'')*)'", ddl.create_statement(table, "t")
    ):
        words = set(re.findall(r"[a-z_]+", re.sub(r"''\w+''", "", expression)))
        assert words, expression
        assert words <= names


def test_the_identifier_is_put_in_once_and_as_it_is() -> None:
    statement = ddl.create_statement("kernels", "delta.`/tmp/a {table} b`")
    assert statement.count("{table}") == 1
    assert "CREATE TABLE IF NOT EXISTS delta.`/tmp/a {table} b` (" in statement


def test_doubled_quotes_of_comments_are_undone() -> None:
    comments = {column.name: column.comment for column in ddl.columns("kernel_launches")}
    assert "two's complement" in comments["graph_node_id"]


def test_the_documentation_page_has_every_table_and_column() -> None:
    page = ddl.markdown()
    for table in _TABLES:
        assert f"\n## {table}\n" in page
    rows = [line for line in page.split("\n") if line.startswith("| `")]
    assert len(rows) == sum(len(ddl.columns(table)) for table in _TABLES)
    assert all(re.fullmatch(r"\| `\w+` \| `[^`]+` \| [^|]+ \|", row) for row in rows)
