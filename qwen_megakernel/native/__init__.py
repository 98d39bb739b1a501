"""Native code in general: compilers are found, sources compiled once under a lock, libraries kept.

Read `compiling` first. What is compiled, and with which options, is the business of the rooms that
use it: `decoders/kernel` compiles csrc/ for a GPU or for its emulation.

Other rooms take `compiling.cached_library`, `build_cache`, `find_ninja` and `find_tool`.
"""
