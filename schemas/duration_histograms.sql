-- Exact integer histogram: nights merge by adding n, sum_ns, sum_sq and taking the outer min and max.
CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  launch_config_id BIGINT NOT NULL COMMENT 'Launch configuration, see launch_configs.',
  bucket INT NOT NULL COMMENT 'floor(ln(duration_ns) * 1024 / ln 2): 1024 buckets per doubling of the duration.',
  reference_ns BIGINT NOT NULL COMMENT 'Lower edge of the bucket rounded down to ns; sum_sq is taken about it.',
  n BIGINT NOT NULL COMMENT 'Launches in the bucket.',
  sum_ns BIGINT NOT NULL COMMENT 'Sum of their durations, ns.',
  sum_sq DECIMAL(38,0) NOT NULL COMMENT 'Exact sum of (duration_ns - reference_ns)^2, ns^2.',
  min_ns BIGINT NOT NULL COMMENT 'Shortest duration, ns.',
  max_ns BIGINT NOT NULL COMMENT 'Longest duration, ns.'
)
USING DELTA
COMMENT 'Durations of each kernel and launch configuration in buckets of 1/1024 octave.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.n_positive' = 'n > 0'
)
