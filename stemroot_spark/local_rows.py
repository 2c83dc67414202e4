"""Rows made on the driver as a DataFrame that Spark knows to be local: it plans no job and no partitions for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType


def local_rows(
    spark: SparkSession, rows: Iterable[Mapping[Any, Any] | Sequence[Any]], schema: str
) -> DataFrame:
    """Rows with a schema in DDL: mappings column -> value with absent ones null, or values in the schema's order.

    ``createDataFrame`` of a list would make an RDD with a task per core; of an Arrow table it makes a local relation.
    """
    struct = cast("StructType", DataType.fromDDL(schema))
    columns = [
        {name: row.get(name) for name in struct.names}
        if isinstance(row, Mapping)
        else dict(zip(struct.names, row, strict=True))
        for row in rows
    ]
    table: Any = pa.Table.from_pylist(columns, schema=to_arrow_schema(struct))
    return spark.createDataFrame(table, schema=struct)
