"""GPUs: finding one, the errors of a missing or refused one, and work recorded as CUDA graphs.

Read `driver` first (devices, and errors with a hint for what is missing), then `cuda_graphs` and
`launch_order`. Other rooms take `find_device`, `no_gpu`, `too_old`, `lost_gpu`, `is_built_for`,
`Graphs`, `download`, `upload`, `uploaded` and `in_order`.
"""
