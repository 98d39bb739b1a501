"""Core ML: a checkpoint as six models for Apple's Neural Engine, and a decoder that uses two.

Read `export` first (the list of models), then `decoder_models` and `speech_decoder` (the modules
that are converted), and `decoder` (the decoder that runs on a Mac).
"""
