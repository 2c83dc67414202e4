-- The ledger of ingest: one row per source and process, and one per source that could not be read.
CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run this source belongs to.',
  source_uri STRING NOT NULL COMMENT 'File or folder of tables, relative to the --source that named it.',
  process_key STRING COMMENT 'Process inside the report (globalPid, decimal); null for a source that was not read.',
  format STRING COMMENT 'nsys-parquet, nsys-sqlite, nsys-csv or kineto; null where it was not recognised.',
  content_id STRING COMMENT 'Digest of the bytes that ingest reads; the same content has the same id under any name.',
  size_bytes BIGINT COMMENT 'Size in bytes of the file, or of the files of the folder that ingest reads.',
  producer_version STRING COMMENT 'Version of the profiler that wrote the export.',
  schema_version STRING COMMENT 'Version of the export schema (nsys EXPORT_SCHEMA_VERSION).',
  session_start_ns BIGINT COMMENT 'Start of the profiling session, ns since 1970-01-01 UTC; null where not recorded.',
  rank INT COMMENT 'Rank given to the process.',
  rank_source STRING COMMENT 'Where the rank comes from: option, environment, distributedInfo, name or order.',
  n_kernels_read BIGINT COMMENT 'Launches of kernels and graphs in the source for this process, copies and memsets left out.',
  n_kernels_kept BIGINT COMMENT 'Rows that became kernel launches.',
  n_kernels_rejected BIGINT COMMENT 'Rows left out; read = kept + rejected.',
  rejected_by_reason STRING COMMENT 'JSON object: reason -> number of rows.',
  n_graph_launches BIGINT COMMENT 'Of the rows read, launches of whole CUDA graphs, whose kernels were not traced.',
  n_copies BIGINT COMMENT 'Copies and memsets in the whole source, which are no launches.',
  is_windowed BOOLEAN COMMENT 'True when the capture starts after the process did; null where nothing tells.',
  status STRING NOT NULL COMMENT 'ingested, quarantined, or duplicate: the same content as another source of the run.',
  reason STRING COMMENT 'Why the source was quarantined, or which source it repeats.'
)
USING DELTA
COMMENT 'Ledger of ingested and quarantined trace sources, one row per source and process.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.status_known' = 'status IN (''ingested'', ''quarantined'', ''duplicate'')',
  'delta.constraints.rows_add_up' = 'n_kernels_read IS NULL OR n_kernels_read = n_kernels_kept + n_kernels_rejected'
)
