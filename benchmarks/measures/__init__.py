"""What `benchmarks/measure.py` measures; its registry names the functions.

A measurement says above it which options it takes; it reports and returns the exit code.
Modules are imported as `benchmarks.measures...` only: `pipecat` would hide the library's name.
"""
