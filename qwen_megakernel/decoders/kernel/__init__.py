"""The decoder on the persistent CUDA kernel of csrc/, or on its emulation on a CPU.

Read `decoder` first, then `launcher` (one launch), `buffers` (the memory that the kernel reads and
writes), `library` (the C interface), `packing` (the kernel's layout of weights), `build` (the
compiler options of each model and GPU) and `loading` (which devices run it). `text_model` runs a
text model's layers on the same kernel.
"""
