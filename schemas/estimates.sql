CREATE TABLE IF NOT EXISTS {table} (
  plan_id STRING NOT NULL COMMENT 'Plan.',
  results_id STRING NOT NULL COMMENT 'Results the estimate is made from.',
  level STRING NOT NULL COMMENT 'total, kernel, or phase or rank where the strata of the plan follow phases or groups of ranks.',
  key STRING NOT NULL COMMENT 'total, the kernel_id in decimal, the phase, or the ranks as 0-7.',
  estimate DOUBLE COMMENT 'Estimated time of all launches of the key, in unit; null where it cannot be computed.',
  unit STRING COMMENT 'cycles or ns.',
  standard_error DOUBLE COMMENT 'Standard error of the estimate, in unit.',
  ci_low DOUBLE COMMENT 'Lower end of the confidence interval, in unit.',
  ci_high DOUBLE COMMENT 'Upper end of the confidence interval, in unit.',
  degrees_of_freedom DOUBLE COMMENT 'Degrees of freedom of the t quantile of the interval.',
  prior_share DOUBLE COMMENT 'Share of the variance that rests on the assumed launch noise rather than on the draws.',
  n_samples BIGINT NOT NULL COMMENT 'Drawn launches with a usable result.',
  n_population BIGINT NOT NULL COMMENT 'Launches the estimate speaks for.',
  profile_total_ns BIGINT NOT NULL COMMENT 'Profiled time of the same launches, ns.',
  measured_noise DOUBLE COMMENT 'Relative spread of result / profile over the draws, pooled; null without two draws of a kernel.',
  method STRING NOT NULL COMMENT 'expansion, pps, or both as expansion and pps: designs of the strata; profile for kernels left out of the plan.',
  status STRING NOT NULL COMMENT 'ok, no_variance or incomplete.',
  reason STRING COMMENT 'Why the status is not ok.',
  confidence DOUBLE NOT NULL COMMENT 'Confidence of the interval.',
  estimated_at TIMESTAMP NOT NULL COMMENT 'When this row was written, UTC.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine these estimates.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Estimated time of the whole workload, of each kernel, and of phases or groups of ranks, with confidence intervals.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.status_known' = 'status IN (''ok'', ''no_variance'', ''incomplete'')'
)
