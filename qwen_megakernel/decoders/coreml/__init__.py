"""Core ML: a checkpoint as six models for Apple's Neural Engine, and a decoder on two of them.

Read `export` first (which models there are), then `decoder_models` and `speech_decoder` (what is
converted), and `decoder` (the decoder that runs on a Mac).
"""
