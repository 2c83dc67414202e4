"""Delta tables at a path or in a metastore schema: create, read at a version, replace an id, insert new rows."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.config import IoConfig
from stemroot_spark.errors import ConcurrentWriteError, DataError
from stemroot_spark.location import Location
from stemroot_spark.tables import ddl
from stemroot_spark.tables.delta_log import DeltaLog

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MAX_BACKOFF_S = 10.0
# In Python these do not derive from the first, as they do on the JVM.
_CONFLICTS = (
    DeltaConcurrentModificationException,
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
# What a table looks like whose folder another writer has made, and whose first version not yet.
_HALF_MADE = (
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
)
_HALF_MADE_ATTEMPTS = 5


@dataclass(frozen=True)
class Commit:
    """A commit of this process: rows written and the version it made, None where nothing had to be written."""

    rows: int
    version: int | None


class Warehouse:
    """The only place that reads and writes the project's tables.

    The session is given, never made. Every table read is pinned to the version it had when first asked for, and
    ``input_versions`` tells which that was.
    """

    def __init__(self, spark: SparkSession, location: Location, io: IoConfig) -> None:
        self.spark = spark
        self.location = location
        self._io = io
        self._pinned: dict[str, tuple[int, DataFrame]] = {}
        self._checked: set[str] = set()
        self._logs: dict[str, DeltaLog] = {}

    def exists(self, table: str) -> bool:
        """Whether the table has been created."""
        if self.location.warehouse is not None:
            return bool(DeltaTable.isDeltaTable(self.spark, self.location.path(table)))
        return bool(self.spark.catalog.tableExists(self.location.identifier(table)))

    def create(self, table: str) -> None:
        """Create a table unless it exists; raise DataError where an existing one lacks columns."""
        if table in self._checked:
            return
        present: set[str] = set()
        problems: list[AnalysisException] = []

        def ensure() -> None:
            try:
                if not self.exists(table):
                    if self.location.schema is not None:
                        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.location.schema}")
                    self.spark.sql(ddl.create_statement(table, self.location.identifier(table)))
                present.update(self._latest(table).columns)
            except AnalysisException as error:
                if error.getCondition() not in _HALF_MADE:
                    raise
                problems.append(error)
                if len(problems) == _HALF_MADE_ATTEMPTS:
                    # A folder that stays like this is no table in the making.
                    reason = str(problems[0]).strip().splitlines()[0]
                    raise DataError(
                        f"table {self.location.identifier(table)} cannot be made: {reason} Its folder may hold other "
                        "files; use a new --warehouse"
                    ) from error
                raise DeltaConcurrentModificationException(str(error)) from error

        self._retry(table, ensure, None)
        missing = [column.name for column in ddl.columns(table) if column.name not in present]
        if missing:
            raise DataError(
                f"table {self.location.identifier(table)} has no column {', '.join(missing)}: it was made by another "
                f"version or program; use a new --warehouse, or add the columns as schemas/{table}.sql declares them"
            )
        self._checked.add(table)

    def read(self, table: str) -> DataFrame:
        """Read a table at the version it had when this warehouse first read it; an absent table is created empty."""
        if table not in self._pinned:
            self.create(table)
            version = self.version(table)
            reader = self.spark.read.format("delta").option("versionAsOf", version)
            if self.location.warehouse is not None:
                rows = reader.load(self.location.path(table))
            else:
                rows = reader.table(self.location.identifier(table))
            self._pinned[table] = (version, rows)
        return self._pinned[table][1]

    def unpin(self, *tables: str) -> None:
        """Forget the pinned version of tables that this process is about to change or has changed."""
        for table in tables:
            self._pinned.pop(table, None)

    def input_versions(self, *tables: str) -> dict[str, int]:
        """Versions of the given tables that were read."""
        return {table: self._pinned[table][0] for table in sorted(tables) if table in self._pinned}

    def version(self, table: str) -> int:
        """Latest version of a table."""
        self.create(table)
        return self._log(table).version()

    def replace(
        self,
        table: str,
        rows: DataFrame,
        key: Mapping[str, str],
        metadata: Mapping[str, Any],
        before_commit: Callable[[], None] | None = None,
    ) -> Commit:
        """Replace the rows of an id (column -> value) by ``rows``, atomically.

        ``before_commit`` runs before every attempt and may raise to give up.
        """
        self.create(table)
        predicate = " AND ".join(f"{column} = '{value}'" for column, value in key.items())
        before, token = self.version(table), uuid.uuid4().hex
        user_metadata = json.dumps({**metadata, **key, "commit": token}, sort_keys=True)
        writer = (
            self._conform(table, rows)
            .write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", predicate)
            .option("userMetadata", user_metadata)
        )
        if self.location.warehouse is not None:
            self._retry(table, lambda: writer.save(self.location.path(table)), before_commit)
        else:
            self._retry(table, lambda: writer.saveAsTable(self.location.identifier(table)), before_commit)
        self.unpin(table)
        return self._commit_since(table, before, token)

    def insert_new(self, table: str, rows: DataFrame, key: str, metadata: Mapping[str, Any]) -> Commit:
        """Insert the rows whose key is not in the table yet; existing rows stay as they are."""
        before, token = self.version(table), uuid.uuid4().hex
        known = self._latest(table).select(key)
        source = self._conform(table, rows).join(known, key, how="left_anti").persist()
        try:
            if source.isEmpty():
                return Commit(0, None)
            merge = (
                self._delta(table)
                .alias("known")
                .merge(source.alias("found"), f"known.{key} = found.{key}")
                .whenNotMatchedInsertAll()
            )
            self.spark.conf.set(_USER_METADATA, json.dumps({**metadata, "commit": token}, sort_keys=True))
            self._retry(table, merge.execute, None)
        finally:
            self.spark.conf.unset(_USER_METADATA)
            source.unpersist()
        self.unpin(table)
        return self._commit_since(table, before, token)

    def commits_since(self, table: str, version: int) -> list[dict[str, Any]]:
        """User metadata of the commits after a version; empty for commits of other programs."""
        log = self._log(table)
        return [log.user_metadata(later) for later in range(version + 1, log.version() + 1)]

    def _latest(self, table: str) -> DataFrame:
        return self.spark.table(self.location.identifier(table))

    def _delta(self, table: str) -> DeltaTable:
        if self.location.warehouse is not None:
            return DeltaTable.forPath(self.spark, self.location.path(table))
        return DeltaTable.forName(self.spark, self.location.identifier(table))

    def _conform(self, table: str, rows: DataFrame) -> DataFrame:
        """Columns in the declared order and type; a missing one is a mistake in the calling stage."""
        declared = ddl.columns(table)
        missing = [column.name for column in declared if column.name not in rows.columns]
        if missing:
            raise DataError(f"rows for table {table} lack {', '.join(missing)}")
        return rows.select(*[F.col(column.name).cast(column.type).alias(column.name) for column in declared])

    def _log(self, table: str) -> DeltaLog:
        if table not in self._logs:
            if self.location.warehouse is not None:
                path = self.location.path(table)
            else:
                detail = self.spark.sql(f"DESCRIBE DETAIL {self.location.identifier(table)}").first()
                path = detail["location"] if detail is not None else ""
            self._logs[table] = DeltaLog(self.spark, path)
        return self._logs[table]

    def _commit_since(self, table: str, version: int, token: str) -> Commit:
        """The commit that carries the token, among those after a version: others may write between."""
        log = self._log(table)
        for later in range(log.version(), version, -1):
            if log.user_metadata(later).get("commit") == token:
                metrics = log.commit_info(later).get("operationMetrics") or {}
                rows = metrics.get("numTargetRowsInserted", metrics.get("numOutputRows", 0))
                return Commit(int(rows), later)
        return Commit(0, None)

    def _retry(
        self, table: str, commit: Callable[[], object], before_commit: Callable[[], None] | None
    ) -> None:
        for attempt in range(1, self._io.commit_attempts + 1):
            if before_commit is not None:
                before_commit()
            try:
                commit()
                return
            except _CONFLICTS as error:
                if attempt == self._io.commit_attempts:
                    raise ConcurrentWriteError(
                        f"table {self.location.identifier(table)}: other writers were first {attempt} times; rerun the "
                        "job, or raise io.commit_attempts"
                    ) from error
                backoff = min(self._io.commit_backoff_s * 2 ** (attempt - 1), _MAX_BACKOFF_S)
                time.sleep(backoff * (0.5 + random.random()))
