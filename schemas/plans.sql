-- Header of plan: written last, its row marks a plan as complete.
CREATE TABLE IF NOT EXISTS {table} (
  plan_id STRING NOT NULL COMMENT 'Plan.',
  run_id STRING NOT NULL COMMENT 'Run that was profiled and planned for.',
  repeat_run_id STRING COMMENT 'Second profile of the same workload that variances were taken from; null with one profile.',
  method STRING NOT NULL COMMENT 'optimal, stem-root, stem-root-paper or density.',
  guarantee STRING NOT NULL COMMENT 'What epsilon bounds: transfer, total, per-kernel or worst-case.',
  epsilon DOUBLE NOT NULL COMMENT 'Bound on the relative error.',
  confidence DOUBLE NOT NULL COMMENT 'Confidence at which the bound holds.',
  factor_spread DOUBLE NOT NULL COMMENT 'Relative spread of the unknown factor per launch configuration that the plan allows for.',
  launch_noise DOUBLE NOT NULL COMMENT 'Relative launch noise assumed between profile and simulation: the prior of the interval.',
  launch_noise_source STRING NOT NULL COMMENT 'Where launch_noise comes from: option, second profile (spread between both), iterations (spread of one launch over repetitions inside the run) or default.',
  communication STRING NOT NULL COMMENT 'exclude or include: whether communication kernels were planned.',
  strata_by STRING NOT NULL COMMENT 'none, or what parts of kernels have strata of their own: first-launches, phase or rank-group.',
  seed BIGINT NOT NULL COMMENT 'Seed of the draw.',
  planned_relative_error DOUBLE COMMENT 'z sqrt(V) / T on the total; null where a stratum with spread has no sample.',
  sampled_time_ns DOUBLE NOT NULL COMMENT 'Expected profiled time of the sample, ns; for stem-root-paper by its own sizes, which may exceed a stratum.',
  total_time_ns BIGINT NOT NULL COMMENT 'Profiled time T of all planned launches, ns.',
  excluded_time_ns BIGINT NOT NULL COMMENT 'Profiled time of the communication kernels left out, ns.',
  dropped_time_ns BIGINT NOT NULL COMMENT 'Profiled time of strata without a sample, missing from the estimate, ns.',
  speedup DOUBLE COMMENT 'total_time_ns / sampled_time_ns; null where nothing is drawn.',
  lower_bound_ns DOUBLE COMMENT 'Lower bound on the cost of any plan over the allowed strata under the bound on the total, ns (for per-kernel that of every kernel; worst-case asks for more than it bounds); with two profiles, whose plans bound the time of the second, scaled to that of the first. Null for methods without one.',
  optimality_gap DOUBLE COMMENT '1 - lower_bound_ns / sampled_time_ns: share of the cost by which the optimum may be cheaper, the price of the calibration included; null for methods without a lower bound.',
  calibrated_epsilon DOUBLE COMMENT 'Bound the strata were made for, so that simulation covers epsilon; null for methods without calibration.',
  coverage DOUBLE COMMENT 'Share of simulated draws of the planning model within epsilon; the least of all kernels for per-kernel.',
  coverage_draws BIGINT COMMENT 'Draws behind coverage.',
  reason STRING COMMENT 'Why the confidence is not reached in simulation; null where it is, or was not simulated.',
  n_unmatched BIGINT COMMENT 'Planned launches without a partner in the second profile: they stay in the population; null with one profile.',
  n_unmatched_repeat BIGINT COMMENT 'Launches of the planned kernels in the second profile without a partner in the run; null with one profile.',
  n_launches BIGINT NOT NULL COMMENT 'Planned launches of the run.',
  n_kernels BIGINT NOT NULL COMMENT 'Planned kernels.',
  n_samples BIGINT NOT NULL COMMENT 'Launches drawn.',
  n_strata BIGINT NOT NULL COMMENT 'Strata.',
  input_versions STRING NOT NULL COMMENT 'JSON object: table -> Delta version read.',
  config_sha256 STRING NOT NULL COMMENT 'SHA-256 of the resolved configuration.',
  planned_at TIMESTAMP NOT NULL COMMENT 'When this row was written, UTC.',
  fingerprint STRING NOT NULL COMMENT 'SHA-256 of the options and inputs that determine the rows of this plan.',
  fingerprint_inputs STRING NOT NULL COMMENT 'JSON object of what the fingerprint was taken over.'
)
USING DELTA
COMMENT 'Plans; a row here means the strata and the sample of the plan are complete.'
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false',
  'delta.constraints.epsilon_domain' = 'epsilon > 0 AND epsilon < 1',
  'delta.constraints.confidence_domain' = 'confidence > 0 AND confidence < 1'
)
