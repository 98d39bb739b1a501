"""The decoder for a CPU: a whole frame in one native call, at the speed of memory.

The sources are in csrc/cpu; `native.cpu_library` compiles them for the instruction set at hand.
"""
