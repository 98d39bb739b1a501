"""The official package as an oracle, and comparisons of our decoders with it.

Read `official` first (loading the package `qwen-tts`), then `cases` (greedy utterances with their
logits) and `compare` (what two decoders agree in, and how closely).
"""
