"""The decoder as CUDA graphs, for GPUs that cannot run the kernel; on a CPU it runs directly.

Read `decoder` first (steps and recording), then `model` (one frame of every slot), `stack` (the
layers) and `sampling` (the draws on the device).
"""
