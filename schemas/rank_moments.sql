CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run.',
  rank INT NOT NULL COMMENT 'Rank.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  n BIGINT NOT NULL COMMENT 'Launches.',
  sum_ns BIGINT NOT NULL COMMENT 'Sum of the durations, ns.',
  sum_sq DECIMAL(38,0) NOT NULL COMMENT 'Exact sum of duration_ns^2, ns^2.',
  min_ns BIGINT NOT NULL COMMENT 'Shortest duration, ns.',
  max_ns BIGINT NOT NULL COMMENT 'Longest duration, ns.'
)
USING DELTA
COMMENT 'Exact moments of each kernel on each rank.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.n_positive' = 'n > 0'
)
