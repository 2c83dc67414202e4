-- Dictionary of launch configurations, shared by runs: rows are only ever inserted.
CREATE TABLE IF NOT EXISTS {table} (
  launch_config_id BIGINT NOT NULL COMMENT 'xxhash64 of the ten columns below, -1 standing for what a source does not tell.',
  grid_x INT COMMENT 'Blocks in x; null where the source does not tell.',
  grid_y INT COMMENT 'Blocks in y.',
  grid_z INT COMMENT 'Blocks in z.',
  block_x INT COMMENT 'Threads per block in x.',
  block_y INT COMMENT 'Threads per block in y.',
  block_z INT COMMENT 'Threads per block in z.',
  dynamic_shared_memory_bytes BIGINT COMMENT 'Dynamic shared memory per block, bytes.',
  cluster_x INT COMMENT 'Blocks per cluster in x; 0 for a launch without clusters.',
  cluster_y INT COMMENT 'Blocks per cluster in y.',
  cluster_z INT COMMENT 'Blocks per cluster in z.'
)
USING DELTA
COMMENT 'Distinct launch configurations.'
TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')
