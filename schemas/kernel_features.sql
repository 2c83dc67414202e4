CREATE TABLE IF NOT EXISTS {table} (
  run_id STRING NOT NULL COMMENT 'Run.',
  feature_kind STRING NOT NULL COMMENT 'ncu, instructions or vectors: what was imported, and replaced together.',
  rank INT NOT NULL COMMENT 'Rank of the launch.',
  launch_index BIGINT NOT NULL COMMENT 'Launch, as in kernel_launches.',
  feature STRING NOT NULL COMMENT 'Name of an ncu metric; instructions; or block:NAME, the instructions executed in a basic block.',
  value DOUBLE NOT NULL COMMENT 'Value in unit.',
  unit STRING COMMENT 'Unit without prefix (byte, inst, ns, %); empty where the source gives none.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the files and options these rows come from.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'What nsys does not record of a launch: metrics of ncu, instruction counts, basic-block vectors; one row per launch and feature.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.kind_known' = 'feature_kind IN (''ncu'', ''instructions'', ''vectors'')'
)
