"""All table IO: schemas, reading at a recorded version, writing, completion and reruns."""

from stemroot_spark.location import Location
from stemroot_spark.tables.completion import JobWrites
from stemroot_spark.tables.warehouse import Warehouse

__all__ = ["JobWrites", "Location", "Warehouse"]
