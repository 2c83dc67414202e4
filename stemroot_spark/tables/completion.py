"""What a job writes under one id, from the check whether it is done already to the header that marks it complete.

The header row is written last and holds the fingerprint of the options and inputs. An id without a header is a
leftover of a job that was stopped, and its rows are replaced by the next run.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark import __version__
from stemroot_spark.errors import ConcurrentWriteError, FingerprintMismatchError
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.progress import stage
from stemroot_spark.tables.warehouse import Commit, Warehouse


class JobWrites:
    """The writes of one job under one id.

    ``key`` maps the id columns of all its tables to their values, for example ``{"run_id": "night-1"}``.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        job: str,
        header: str,
        key: dict[str, str],
        fingerprint: Fingerprint,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._warehouse = warehouse
        self._header = header
        self._key = key
        self._fingerprint = fingerprint
        self._metadata = {
            "job": job,
            "code_version": __version__,
            "fingerprint": fingerprint.sha256,
            **(metadata or {}),
        }
        self._written: dict[str, int] = {}
        # Version of the header table that was seen to lack the id: looking again costs a Spark job.
        self._free_at: int | None = None

    def is_complete(self) -> bool:
        """Whether the id has a header, with whatever fingerprint."""
        return self._stored() is not None

    def is_done(self, replace: bool) -> bool:
        """Whether the id is complete with this fingerprint.

        With another fingerprint it raises FingerprintMismatchError naming the difference, unless ``replace`` is set:
        then the header is taken away first, so that the id counts as incomplete until it is written anew.
        """
        stored = self._stored()
        if stored is None:
            return False
        if stored[0] == self._fingerprint.sha256:
            return True
        if not replace:
            raise FingerprintMismatchError(
                f"{self._name()} is already in table {self._header} with other options or input: "
                f"{'; '.join(self._fingerprint.differences(stored[1]))}. Use another id, or --replace to compute anew"
            )
        self._take_header_away()
        return False

    def replace(self, table: str, rows: DataFrame) -> Commit:
        """Replace the rows of the id in a table."""
        commit = self._write(table, rows)
        if commit.version is not None:
            self._written[table] = commit.version
        # A header that came while the rows were on their way speaks of rows that are gone.
        self._check_not_taken()
        return commit

    def clear(self, table: str) -> None:
        """Take away the rows of the id in a table; one that nobody has written to is left alone."""
        if self._warehouse.version(table) > 0:
            self.replace(table, self._warehouse.read(table).limit(0))

    def insert_new(self, table: str, rows: DataFrame, key: str) -> Commit:
        """Insert rows into a table that ids share."""
        with stage(f"extend {table}") as report:
            commit = self._warehouse.insert_new(table, rows, key, self._metadata)
            report.rows, report.table, report.version = commit.rows, table, commit.version
        return commit

    def finish(self, header_rows: DataFrame) -> Commit:
        """Write the header, checking that no other writer of the same id came between; if one did, no header stays."""
        if self._commits_of_others():
            raise ConcurrentWriteError(
                f"another writer replaced {self._name()} while this job ran; let it finish, then rerun this job"
            )
        with_fingerprint = header_rows.withColumns(
            {
                "fingerprint": F.lit(self._fingerprint.sha256),
                "fingerprint_inputs": F.lit(self._fingerprint.json),
            }
        )
        commit = self._write(self._header, with_fingerprint)
        if any(entry.get("fingerprint") != self._fingerprint.sha256 for entry in self._commits_of_others()):
            self._take_header_away()
            raise ConcurrentWriteError(self._mixed())
        return commit

    def _write(self, table: str, rows: DataFrame) -> Commit:
        with stage(f"write {table}") as report:
            commit = self._warehouse.replace(table, rows, self._key, self._metadata, self._check_not_taken)
            report.rows, report.table, report.version = commit.rows, table, commit.version
        return commit

    def _commits_of_others(self) -> list[dict[str, Any]]:
        """Metadata of what others wrote under this id into the tables this job has written, since it did."""
        return [
            entry
            for table, version in self._written.items()
            for entry in self._warehouse.commits_since(table, version)
            if all(entry.get(column) == value for column, value in self._key.items())
        ]

    def _stored(self) -> tuple[str, str] | None:
        self._warehouse.unpin(self._header)
        if self._warehouse.version(self._header) == self._free_at:
            return None
        rows = self._warehouse.read(self._header)
        for column, value in self._key.items():
            rows = rows.where(F.col(column) == value)
        row = rows.select("fingerprint", "fingerprint_inputs").first()
        if row is not None:
            return str(row[0]), str(row[1])
        self._free_at = self._warehouse.input_versions(self._header)[self._header]
        return None

    def _check_not_taken(self) -> None:
        stored = self._stored()
        if stored is None:
            return
        if self._written and stored[0] != self._fingerprint.sha256:
            self._take_header_away()
            raise ConcurrentWriteError(self._mixed())
        raise ConcurrentWriteError(
            f"another writer completed {self._name()} while this job ran; its rows stand and nothing was changed"
        )

    def _take_header_away(self) -> None:
        empty = self._warehouse.read(self._header).limit(0)
        self._warehouse.replace(self._header, empty, self._key, self._metadata)

    def _mixed(self) -> str:
        return (
            f"another writer wrote {self._name()} with other options or input at the same time, so that it counts as "
            "incomplete now; rerun the job whose rows you want"
        )

    def _name(self) -> str:
        return ", ".join(f"{column} {value}" for column, value in self._key.items())
