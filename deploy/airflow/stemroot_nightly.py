"""Airflow DAG: plan every night's traces, wait for the simulator, estimate the time of the whole workload.

Needs Airflow 3 with the providers apache-spark and standard, and a Spark connection ``spark_default``. The checkout
with ``dist/stemroot_spark.zip`` (``make dist``) is at ``STEMROOT_HOME`` on the machine that submits.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import DAG

HOME = os.environ.get("STEMROOT_HOME", "/opt/stemroot-spark")
WAREHOUSE = os.environ.get("STEMROOT_WAREHOUSE", "s3a://my-bucket/stemroot")
TRACES = os.environ.get("STEMROOT_TRACES", "s3a://my-bucket/traces")
RESULTS = os.environ.get("STEMROOT_RESULTS", "/data/stemroot/results")
WORKLOAD = "pretrain"
# {{ ds }} is the date of the run, filled in by Airflow.
NIGHT = f"{WORKLOAD}-{{{{ ds }}}}"
RESULTS_CSV = f"{RESULTS}/{NIGHT}.csv"


def job(name: str, *flags: str) -> SparkSubmitOperator:
    """A task that submits ``jobs/<name>.py``."""
    return SparkSubmitOperator(
        task_id=name,
        application=f"{HOME}/jobs/{name}.py",
        py_files=f"{HOME}/dist/stemroot_spark.zip",
        properties_file=f"{HOME}/conf/spark-defaults.conf",
        application_args=["--warehouse", WAREHOUSE, *flags],
    )


with DAG(
    dag_id="stemroot_nightly",
    schedule="30 4 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    # Safe to repeat: an id that is complete writes nothing.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
):
    plan = job(
        "pipeline",
        *("--source", f"{TRACES}/{{{{ ds }}}}"),
        *("--run-id", NIGHT, "--plan-id", NIGHT, "--workload", WORKLOAD),
    )
    # The simulator takes the launches in table sample_manifest and leaves rank, launch_index, value, unit in this file.
    wait = FileSensor(
        task_id="wait_for_results",
        filepath=RESULTS_CSV,
        mode="reschedule",
        poke_interval=600,
        timeout=timedelta(hours=20).total_seconds(),
    )
    results = job(
        "import_results",
        *("--plan-id", NIGHT, "--results-id", NIGHT, "--simulator", "csv", "--source", RESULTS_CSV),
    )
    estimate = job("reconstruct", "--plan-id", NIGHT, "--results-id", NIGHT)
    plan >> wait >> results >> estimate
