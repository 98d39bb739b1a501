"""Native code: this room finds compilers, compiles sources once under a lock, and keeps libraries.

Read `compiling` first, `Recipe` and `compiled`; `decoders/kernel` has the recipes for a GPU and for
its emulation on a CPU. `cpu_library` has the one library of csrc/cpu, which decoder and vocoder
share: a build for each instruction set, and the pool of threads that works in it. `cpu_threads`
chooses the number of threads, and reads the quota of a container. `structs` helps to mirror structs
of C headers.

Other rooms take `Recipe`, `compiled`, `build_cache`, `source_folder`, `find_cxx`, `find_ninja`,
`load`, `cpu_threads`, `structs`, and from `cpu_library` `CpuPool`, `open_library`, `library_for`,
`choose_set` and the checks of a call.
"""
