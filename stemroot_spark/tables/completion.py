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
        self._header_version = -1

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
        empty = self._warehouse.read(self._header).limit(0)
        self._warehouse.replace(self._header, empty, self._key, self._metadata)
        return False

    def replace(self, table: str, rows: DataFrame) -> Commit:
        """Replace the rows of the id in a table."""
        with stage(f"write {table}") as report:
            commit = self._warehouse.replace(table, rows, self._key, self._metadata, self._check_not_taken)
            report.rows, report.table, report.version = commit.rows, table, commit.version
        if commit.version is not None:
            self._written[table] = commit.version
        return commit

    def insert_new(self, table: str, rows: DataFrame, key: str) -> Commit:
        """Insert rows into a table that ids share."""
        with stage(f"extend {table}") as report:
            commit = self._warehouse.insert_new(table, rows, key, self._metadata)
            report.rows, report.table, report.version = commit.rows, table, commit.version
        return commit

    def finish(self, header_rows: DataFrame) -> Commit:
        """Write the header, after checking that no other writer of the same id came between."""
        for table, version in self._written.items():
            for entry in self._warehouse.commits_since(table, version):
                if all(entry.get(column) == value for column, value in self._key.items()):
                    raise ConcurrentWriteError(
                        f"another writer replaced {self._name()} in table {table} while this job ran; "
                        "let it finish, then rerun this job"
                    )
        with_fingerprint = header_rows.withColumns(
            {
                "fingerprint": F.lit(self._fingerprint.sha256),
                "fingerprint_inputs": F.lit(self._fingerprint.json),
            }
        )
        return self.replace(self._header, with_fingerprint)

    def _stored(self) -> tuple[str, str] | None:
        self._warehouse.unpin(self._header)
        self._header_version = self._warehouse.version(self._header)
        rows = self._warehouse.read(self._header)
        for column, value in self._key.items():
            rows = rows.where(F.col(column) == value)
        row = rows.select("fingerprint", "fingerprint_inputs").first()
        return None if row is None else (str(row[0]), str(row[1]))

    def _check_not_taken(self) -> None:
        if self._warehouse.version(self._header) != self._header_version and self._stored() is not None:
            raise ConcurrentWriteError(
                f"another writer completed {self._name()} while this job ran; its rows stand and nothing was changed"
            )

    def _name(self) -> str:
        return ", ".join(f"{column} {value}" for column, value in self._key.items())
