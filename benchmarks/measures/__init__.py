"""The measurements of `benchmarks/measure.py`, whose registry names the functions.

A measurement's decorator lists its options; the function reports figures and returns the exit code.
Modules are imported only as `benchmarks.measures...`: `pipecat` would hide the library's name.
"""
