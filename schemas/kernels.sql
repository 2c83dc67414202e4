-- Dictionary of kernels, shared by runs: rows are only ever inserted.
CREATE TABLE IF NOT EXISTS {table} (
  kernel_id BIGINT NOT NULL COMMENT 'xxhash64 of kernel_name.',
  kernel_name STRING NOT NULL COMMENT 'Full demangled name; for a launch of a whole CUDA graph, the name of its pseudo-kernel.',
  short_name STRING NOT NULL COMMENT 'Name without template arguments, parameters and namespaces, for display only.',
  category STRING NOT NULL COMMENT 'gemm, attention, elementwise, reduction, communication, ... by the rules in conf/kernel_categories.toml; cuda_graph for the pseudo-kernel of a whole graph.',
  is_communication BOOLEAN NOT NULL COMMENT 'True for kernels of a communication library, whose time is mostly waiting.'
)
USING DELTA
COMMENT 'Distinct kernels by full demangled name.'
TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')
