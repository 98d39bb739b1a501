"""The official package as an oracle, and comparisons of this package's decoders with it.

Read `official` first (loading the package `qwen-tts`), then `cases` (greedy utterances with their
logits) and `compare` (how closely two decoders agree).
"""
