"""Where the tables are, and which ids may name what is in them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from stemroot_spark.errors import UsageError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}")
_SCHEMA = re.compile(r"\w+(\.\w+)?")


def check_id(flag: str, value: str) -> str:
    """Return an id that is safe in predicates and paths, or raise UsageError naming the flag."""
    if not _ID.fullmatch(value):
        raise UsageError(
            f"{flag} is {value!r}; use up to 128 letters, digits and . _ : + -, beginning with a letter or digit"
        )
    return value


@dataclass(frozen=True)
class Location:
    """Where the tables are: Delta paths below ``warehouse``, or tables of the metastore schema ``schema``."""

    warehouse: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        if (self.warehouse is None) == (self.schema is None):
            raise UsageError("give either --warehouse URI or --schema catalog.schema")
        if self.warehouse is not None and not self.warehouse.strip():
            raise UsageError("--warehouse is empty; give a folder or URI")
        if (
            self.warehouse is not None
            and "://" not in self.warehouse
            and not self.warehouse.startswith("file:")
        ):
            # Spark reads a relative path in SQL as a table name, and executors have another working folder.
            object.__setattr__(self, "warehouse", os.path.abspath(self.warehouse))
        if self.schema is not None and not _SCHEMA.fullmatch(self.schema):
            raise UsageError(f"--schema is {self.schema!r}; write it as catalog.schema")

    def path(self, table: str) -> str:
        """Path of a table below the warehouse."""
        return f"{str(self.warehouse).rstrip('/')}/{table}"

    def identifier(self, table: str) -> str:
        """Quoted identifier of a table in SQL."""
        if self.warehouse is not None:
            return f"delta.`{self.path(table).replace('`', '``')}`"
        return f"{self.schema}.{table}"
