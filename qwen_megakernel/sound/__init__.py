"""Processing of a stream's samples after the codec: silence, speed, volume, sample rate.

Read `chain` first (the steps and their order), then `chunks` (which applies a chain to the engine's
chunks), `silence` (silence at the beginning and the end), `stretch` (speed), `gain` (volume, and a
limiter) and `resampling` (sample rate). `loudness` changes complete speeches.

Other rooms take `new_chunks` and `HeardChunks` of `chunks`, and both functions of `loudness`. A
speech whose request changes nothing has no chain: its samples are the codec's.
"""
