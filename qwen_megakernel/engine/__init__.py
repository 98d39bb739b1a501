"""Speaks many streams on one decoder and one vocoder, of any model family.

Read `speech_engine` first (what the caller holds), then `stream` (a stream as its caller sees it)
and `stream_state` (all that it is), `stages` (what a decoder, prompts and a vocoder must offer),
`step_loop` (the engine's one thread), `slots` (which stream holds which slot), `delivery` (from
frames to chunks) and `runaway_guard`. `conversation` has what a stream continues, and
`drift_guard` compares its parts. `speech` is a whole utterance; `codes_file` reads and
writes codes.

Other rooms take `SpeechEngine`, `SpeechStream`, `Speech`, `Stages` and its two protocols, and
`codes_file`.
"""
