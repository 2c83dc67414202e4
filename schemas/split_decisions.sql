CREATE TABLE IF NOT EXISTS {table} (
  plan_id STRING NOT NULL COMMENT 'Plan.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  node STRING NOT NULL COMMENT 'Node of the tree as a path of 0 (shorter) and 1 (longer); empty for the root.',
  n_population BIGINT NOT NULL COMMENT 'Launches in the node.',
  cut_ns BIGINT COMMENT 'Longest duration of the shorter side of the best cut, ns; null where all durations fall in one bucket.',
  cost_before DOUBLE NOT NULL COMMENT 'Planned simulation time of the node unsplit, ns.',
  cost_after DOUBLE COMMENT 'Planned simulation time of the node split at cut_ns, ns; null without a cut.',
  accepted BOOLEAN NOT NULL COMMENT 'True where the split was kept.',
  stability DOUBLE COMMENT 'Share of bootstrap replicates of the kernel whose tree has an accepted cut at this place: with at most 5 % of the launches of the smaller side of the cut in between. For a rejected cut, near 0 where replicates reject it too. Null without a cut, or where plan.stability_replicates is 0.'
)
USING DELTA
COMMENT 'Every decision of ROOT; empty for methods that do not split by a tree.'
TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')
