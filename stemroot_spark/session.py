"""How a job starts Spark. Only the entry points in ``jobs/`` call this; the package itself is handed a session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from stemroot_spark.errors import EnvironmentSetupError
from stemroot_spark.resources import read_text

_EXTENSIONS = "spark.sql.extensions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_MINIMUM_JAVA = 17


def start_session(app_name: str, *, metastore: bool = False) -> SparkSession:
    """Session with Delta Lake.

    Under ``spark-submit`` the session has what was submitted, and lacking Delta Lake is an error that says what to
    pass. Started with plain python it gets ``conf/spark-defaults.conf``; properties in the environment variable
    ``STEMROOT_SPARK_CONF`` (``key=value`` separated by ``;``) come last, ``local[*]`` is the default master.
    """
    # Workers would otherwise take whichever python3 is first on their path, with or without numpy.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _check_java()
        properties = packaged_properties()
        for key, value in _environment_properties().items():
            # Options of the JVM add up; everything else replaces what the package says.
            joined = f"{properties.get(key, '')} {value}".strip() if key.endswith("JavaOptions") else value
            properties[key] = joined
        properties.setdefault("spark.master", "local[*]")
        for key, value in properties.items():
            builder = builder.config(key, value)
    if metastore:
        builder = builder.enableHiveSupport()
    spark = builder.getOrCreate()
    if _DELTA_EXTENSION not in (spark.conf.get(_EXTENSIONS, "") or ""):
        raise EnvironmentSetupError(
            "the session has no Delta Lake; add --properties-file conf/spark-defaults.conf to spark-submit, or its "
            "properties to the cluster's defaults"
        )
    return spark


def packaged_properties() -> dict[str, str]:
    """Properties of ``conf/spark-defaults.conf``, with the packaged log settings."""
    properties = {}
    for line in read_text("conf", "spark-defaults.conf").splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            key, _, value = text.partition(" ")
            properties[key] = value.strip()
    log_settings = Path(__file__).parent / "conf" / "log4j2.properties"
    if log_settings.is_file():
        properties["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log_settings.as_uri()}"
    return properties


def _environment_properties() -> dict[str, str]:
    properties = {}
    for entry in os.environ.get("STEMROOT_SPARK_CONF", "").split(";"):
        key, equals, value = entry.partition("=")
        if equals and key.strip():
            properties[key.strip()] = value.strip()
        elif entry.strip():
            raise EnvironmentSetupError(f"STEMROOT_SPARK_CONF holds {entry!r}; write key=value;key=value")
    return properties


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = f"install a JDK of version {_MINIMUM_JAVA} or later and put it on PATH, or set JAVA_HOME to it"
    if java is None or not Path(java).is_file():
        raise EnvironmentSetupError(f"Java was not found; {remedy}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < _MINIMUM_JAVA:
        raise EnvironmentSetupError(
            f"Java at {java} is {version[1] if version else 'of unknown version'}; {remedy}"
        )
