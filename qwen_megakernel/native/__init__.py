"""Native code: compilers are found, sources are compiled once under a lock, libraries are kept.

Read `compiling` first, `Recipe` and `compiled`; what is compiled for a GPU, or for its emulation on
a CPU, is the business of `decoders/kernel`. `cpu_library` has the one library of csrc/cpu, which
decoder and vocoder share: a build for each instruction set, and the pool of threads that works in
it. `cpu_threads` decides how many threads compute, and reads the quota of a container.

Other rooms take `Recipe`, `compiled`, `build_cache`, `source_folder`, `find_cxx`, `find_ninja`,
`load`, of `cpu_library` `CpuPool`, `open_library`, `library_for`, `choose_set` and the checks of a
call, and `cpu_threads`.
"""
