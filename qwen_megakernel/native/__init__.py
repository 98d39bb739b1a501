"""Native code: compilers are found, sources are compiled once under a lock, libraries are kept.

Read `compiling`, `Recipe` and `compiled` first. What is compiled, and with which options, is the
business of the room that uses it: `decoders/kernel` compiles csrc/ for a GPU, or for its emulation
on a CPU.

Other rooms take `Recipe`, `compiled`, `build_cache`, `source_folder`, `find_cxx`, `find_ninja` and
`load`.
"""
