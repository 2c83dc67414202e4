-- Header of ingest: written last, its row marks a run as complete.
CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run: one profiling night of one workload.',
  workload STRING COMMENT 'Name of the workload, as the operator gave it.',
  gpu_name STRING COMMENT 'GPU model, where the sources tell one and the same.',
  gpu_clock_mhz DOUBLE COMMENT 'Clock of the GPU in MHz as the sources tell it, where they agree.',
  world_size INT COMMENT 'Ranks the job had, where a source tells; else the largest rank found plus 1.',
  ranks_present INT NOT NULL COMMENT 'Ranks with at least one kernel launch.',
  ranks_missing ARRAY<INT> COMMENT 'Ranks below world_size without a launch.',
  is_complete BOOLEAN NOT NULL COMMENT 'False when a source was quarantined, a rank is missing, two processes claim one rank, or the profiler lost events.',
  is_windowed BOOLEAN COMMENT 'True when the capture starts after its process did; null where unknown.',
  incomplete_reason STRING COMMENT 'Why is_complete is false.',
  opaque_time_share DOUBLE COMMENT 'Share of the time that is launches of whole CUDA graphs, whose kernels were not traced.',
  remark STRING COMMENT 'What to do for a better trace, where something can be done.',
  n_sources BIGINT NOT NULL COMMENT 'Sources found, quarantined ones included.',
  n_sources_quarantined BIGINT NOT NULL COMMENT 'Sources that could not be read.',
  n_launches BIGINT NOT NULL COMMENT 'Kernel launches kept.',
  n_kernels BIGINT NOT NULL COMMENT 'Distinct kernels.',
  n_communication_kernels BIGINT NOT NULL COMMENT 'Distinct communication kernels.',
  started_at_utc TIMESTAMP COMMENT 'Earliest session start of the sources, UTC.',
  ingested_at TIMESTAMP NOT NULL COMMENT 'When this row was written, UTC.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine the rows of this run.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Ingested runs; a row here means the rows of the run in the other tables are complete.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.some_launches' = 'n_launches > 0'
)
