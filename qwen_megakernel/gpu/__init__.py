"""What every user of a GPU needs: which one, what it refuses, and work recorded as CUDA graphs.

Read `driver` first (devices, and errors with a hint for what is missing), then `cuda_graphs`.
Other rooms take `find_device`, `no_gpu`, `too_old`, `lost_gpu`, `is_built_for`, `Graphs`,
`HostCopy` and `upload`.
"""
