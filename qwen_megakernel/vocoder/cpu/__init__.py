"""The vocoder in native code (csrc/cpu); it computes in the threads of the CPU decoder.

Read `vocoder`; `library` mirrors the C structs.
"""
