"""What `benchmarks/measure.py` measures; its registry names the functions.

`NAME(args)` measures, reports and returns the exit code; `NAME_options(parser)` adds its options.
Modules are imported as `benchmarks.measures...` only: `pipecat` would hide the library's name.
"""
