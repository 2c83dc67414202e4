CREATE TABLE IF NOT EXISTS {table} (
  plan_id STRING NOT NULL COMMENT 'Plan.',
  run_id STRING NOT NULL COMMENT 'Run the launch belongs to.',
  rank INT NOT NULL COMMENT 'Rank of the process.',
  launch_index BIGINT NOT NULL COMMENT '0-based order of launch among the kernels of the capture of the process.',
  kernel_invocation BIGINT NOT NULL COMMENT '0-based: the n-th launch of this kernel in the process.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  kernel_name STRING NOT NULL COMMENT 'Full demangled name.',
  stratum_id INT NOT NULL COMMENT 'Stratum inside the kernel, see strata.',
  duration_ns BIGINT NOT NULL COMMENT 'Profiled duration, ns.',
  inclusion_probability DOUBLE NOT NULL COMMENT 'Probability that this launch is drawn.',
  weight DOUBLE NOT NULL COMMENT 'Launches this one stands for: 1 / inclusion_probability.',
  warmup_launches INT NOT NULL COMMENT 'Preceding launches of the process to run first so that caches are warm.'
)
USING DELTA
COMMENT 'The launches to simulate, with their weights.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.probability_domain' = 'inclusion_probability > 0 AND inclusion_probability <= 1'
)
