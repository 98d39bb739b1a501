"""The measurements that the registry of `benchmarks/measure.py` lists.

A measurement's decorator lists its options; the function reports figures and returns the exit code.
Modules are imported only as `benchmarks.measures...`: `pipecat` would hide the library's name.
"""
