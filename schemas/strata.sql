CREATE TABLE IF NOT EXISTS {table} (
  plan_id STRING NOT NULL COMMENT 'Plan.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  stratum_id INT NOT NULL COMMENT '0-based number of the stratum inside its kernel, by rising duration; parts of a kernel one after the other; where strata follow launch configurations, by their mean duration first.',
  launch_config_ids ARRAY<BIGINT> COMMENT 'Launch configurations of the stratum; null for all.',
  part STRING COMMENT 'Part of the kernel that the stratum lies in, as a condition on kernel_launches (plan.strata_by); null for all of it.',
  part_name STRING COMMENT 'Name of the part: a phase, ranks as 0-7, first or rest; null for all of the kernel.',
  lower_ns BIGINT NOT NULL COMMENT 'Shortest duration of the stratum, ns; the interval is closed.',
  upper_ns BIGINT NOT NULL COMMENT 'Longest duration of the stratum, ns; the interval is closed.',
  design STRING NOT NULL COMMENT 'expansion: every launch of the stratum is drawn with the same probability; pps: with probability n_samples x duration / total duration of the stratum (two profiles only).',
  n_population BIGINT NOT NULL COMMENT 'Launches in the stratum.',
  n_samples BIGINT NOT NULL COMMENT 'Launches drawn; 0 only with stem-root-paper, whose time is then missing from its estimate.',
  mean_ns DOUBLE NOT NULL COMMENT 'Mean duration, ns.',
  stddev_ns DOUBLE NOT NULL COMMENT 'Standard deviation with divisor n - 1, ns; 0 for a single launch.',
  model_stddev_ns DOUBLE COMMENT 'Root of the expected variance of the simulated time under the planning model, divisor n - 1, ns; stddev_ns where the plan allows for no change. With two profiles from the second one, so that the planned variance of the stratum is (n_population x this)^2 x (1 / n_samples - 1 / n_population), and for pps (n_population x this)^2 / n_samples.',
  depth INT COMMENT 'Depth in the tree of ROOT; null for methods without a tree.'
)
USING DELTA
COMMENT 'Strata of a plan: duration intervals of a kernel, or of some of its launch configurations, with their samples.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.interval_ordered' = 'lower_ns <= upper_ns',
  'delta.constraints.design_known' = 'design IN (''expansion'', ''pps'')',
  'delta.constraints.samples_within' = 'n_samples >= 0 AND n_samples <= n_population'
)
