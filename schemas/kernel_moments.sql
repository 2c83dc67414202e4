-- Header of moments: written last, its rows mark the moments of a run as complete.
CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  n BIGINT NOT NULL COMMENT 'Launches.',
  total_ns BIGINT NOT NULL COMMENT 'Sum of the durations, ns.',
  mean_ns DOUBLE NOT NULL COMMENT 'Mean duration, ns.',
  stddev_ns DOUBLE NOT NULL COMMENT 'Standard deviation with divisor n, ns.',
  cov DOUBLE NOT NULL COMMENT 'stddev_ns / mean_ns.',
  min_ns BIGINT NOT NULL COMMENT 'Shortest duration, ns.',
  max_ns BIGINT NOT NULL COMMENT 'Longest duration, ns.',
  time_share DOUBLE NOT NULL COMMENT 'total_ns over the total of all kernels of the run.',
  skewness DOUBLE COMMENT 'Third standardised moment, divisor n, to 9 significant digits; null for equal durations.',
  excess_kurtosis DOUBLE COMMENT 'Fourth standardised moment minus 3, divisor n, to 9 significant digits; null for equal durations.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine the moments of this run.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Moments of each kernel of a run.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.n_positive' = 'n > 0'
)
