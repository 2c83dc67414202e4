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
  first_window_ratio DOUBLE COMMENT 'Mean duration of the first 32 launches of every rank over the mean of all launches, to 9 significant digits: far from 1, a window of first launches is biased by as much.',
  autocorrelation DOUBLE COMMENT 'Correlation r of the durations of successive launches of the kernel on a rank, to 9 significant digits: a window of k successive launches tells about k (1 - r) / (1 + r) independent ones, so that above 0.3 first-k windows are biased whatever their place. Null for equal durations, and where moments.autocorrelation_ranks is 0.',
  last_iteration INT COMMENT 'Largest iteration of its launches; null where iterations are unknown.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine the moments of this run.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Moments of each kernel of a run.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.n_positive' = 'n > 0'
)
