"""The optimal planner: strata and samples chosen together under one bound, in pure numpy and pandas."""
