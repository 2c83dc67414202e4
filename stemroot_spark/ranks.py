"""The first ranks of a run: what repeats on every rank is looked for on a few."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# This many ranks tell what all of them repeat, such as noise and warm-up; more would only cost time.
REPRESENTATIVE_RANKS = 8


def of_first_ranks(rows: DataFrame, count: int, ranks: DataFrame | None = None) -> DataFrame:
    """Rows of the lowest ``count`` ranks there are; ``ranks`` is a smaller table that names them all, if any."""
    lowest = (rows if ranks is None else ranks).select("rank").distinct().orderBy("rank").limit(count)
    return rows.join(F.broadcast(lowest), "rank", how="left_semi")
