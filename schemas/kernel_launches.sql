-- The population: one row per kernel launch. Copies and memsets are not rows.
CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run.',
  rank INT NOT NULL COMMENT 'Rank of the process.',
  device_id INT COMMENT 'CUDA device ordinal inside the process.',
  context_id INT COMMENT 'CUDA context inside the process.',
  stream_id BIGINT COMMENT 'CUDA stream inside the context.',
  launch_index BIGINT NOT NULL COMMENT '0-based order of launch among the kernels of the capture of the process; rejected rows keep their number.',
  kernel_invocation BIGINT NOT NULL COMMENT '0-based: this is the n-th launch of this kernel in the process.',
  kernel_id BIGINT NOT NULL COMMENT 'Kernel, see kernels.',
  launch_config_id BIGINT NOT NULL COMMENT 'Launch configuration, see launch_configs.',
  start_ns BIGINT NOT NULL COMMENT 'Start on the GPU, ns since the start of the profiling session.',
  duration_ns BIGINT NOT NULL COMMENT 'End minus start on the GPU, ns.',
  correlation_id BIGINT COMMENT 'CUPTI correlation id; unique inside the process at most.',
  graph_node_id BIGINT COMMENT 'CUDA graph node, for graphs traced by node; unsigned value as two''s complement.',
  iteration INT COMMENT 'Training iteration: the number in the name of the NVTX range around the launching call, else the range counted from 0; without ranges the period of the launch sequence, from 0 (where layers alone repeat, these are counted). Null outside and where nothing repeats.',
  phase STRING COMMENT 'Phase by the NVTX ranges, a name of ingest.phase_patterns (forward, backward, optimizer, ...); without ranges the steady stretch, from 0 (stretch 0). Null elsewhere.'
)
USING DELTA
CLUSTER BY (run_id, rank)
COMMENT 'Kernel launches of all runs.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.dataSkippingStatsColumns' = 'run_id,rank,kernel_id',
  'delta.constraints.duration_positive' = 'duration_ns > 0'
)
