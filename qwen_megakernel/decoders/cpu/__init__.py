"""The decoder for a CPU: one native call draws a whole frame, at the speed of memory.

Read `decoder` first; `prefixes` keeps the beginnings of prompts, `library` mirrors the C structs.
The sources are in csrc/cpu; `native.cpu_library` compiles them for this CPU's instruction set.
"""
