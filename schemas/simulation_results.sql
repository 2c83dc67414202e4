CREATE TABLE IF NOT EXISTS {table} (
  results_id STRING NOT NULL COMMENT 'Results: one simulation of one sample.',
  plan_id STRING NOT NULL COMMENT 'Plan whose sample was simulated.',
  rank INT NOT NULL COMMENT 'Rank of the launch.',
  launch_index BIGINT NOT NULL COMMENT 'Launch, as in sample_manifest.',
  value DOUBLE COMMENT 'Simulated time of the launch in unit; null where status is not ok.',
  unit STRING COMMENT 'cycles or ns.',
  simulator STRING NOT NULL COMMENT 'csv or profile.',
  status STRING NOT NULL COMMENT 'ok, missing (drawn, without a result) or rejected (a result that cannot be used).',
  reason STRING COMMENT 'Why the value is missing or was rejected.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine these results.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Simulated or replayed times of drawn launches, one row per drawn launch.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.status_known' = 'status IN (''ok'', ''missing'', ''rejected'')',
  'delta.constraints.value_with_ok' = '(status = ''ok'') = (value IS NOT NULL)',
  'delta.constraints.value_positive' = 'value IS NULL OR value > 0'
)
