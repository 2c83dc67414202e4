"""The log of a Delta table, read through the JVM of the session.

``DESCRIBE HISTORY`` tells the same with a Spark job of its own, which on small tables costs more than the write it is
asked about; a job asks after every write.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pyspark.sql import SparkSession


class DeltaLog:
    """Versions and commits of the table at a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._none = jvm.scala.Option.empty()
        self._log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
        self._conf = session.sessionState().newHadoopConf()
        self._jvm = jvm

    def version(self) -> int:
        """Latest version of the table."""
        return int(self._log.update(False, self._none, self._none).version())

    def commit_info(self, version: int) -> dict[str, Any]:
        """The ``commitInfo`` action of a version: operation, operationMetrics, userMetadata; empty if it is gone."""
        java = self._jvm.java.io
        folder = self._jvm.org.apache.hadoop.fs.Path(self._log.logPath().toString())
        file = self._jvm.org.apache.hadoop.fs.Path(folder, f"{version:020d}.json")
        filesystem = file.getFileSystem(self._conf)
        if not filesystem.exists(file):
            return {}
        reader = java.BufferedReader(java.InputStreamReader(filesystem.open(file), "UTF-8"))
        try:
            while (line := reader.readLine()) is not None:
                action = json.loads(line)
                if "commitInfo" in action:
                    return cast("dict[str, Any]", action["commitInfo"])
        finally:
            reader.close()
        return {}

    def user_metadata(self, version: int) -> dict[str, Any]:
        """The JSON object that the writer of a version left as user metadata; empty for other programs' commits."""
        try:
            value = json.loads(self.commit_info(version).get("userMetadata") or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
