"""The decoder on the persistent CUDA kernel of csrc/, or on its emulation on a CPU.

Read `decoder` first, then `launcher` (one launch), `buffers` (what the kernel reads and writes),
`library` (the C interface), `packing` (weights as the kernel wants them) and `build` (the compiler
options of each model and GPU). `text_model` runs a text model's layers on the same kernel.
"""
