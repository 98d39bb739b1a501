"""The vocoder in native code: csrc/cpu, in the threads of the CPU decoder.

Read `vocoder`; `library` mirrors the C interface.
"""
