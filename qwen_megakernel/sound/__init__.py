"""What is heard of a speech: its samples, changed between a stream's outbox and its reader.

Read `chain` first (the steps and their order), then `chunks` (how the engine's chunks become those
of a reader), `silence` (the edges), `stretch` (speed), `gain` (volume, and a limiter) and
`resampling` (sample rate). `loudness` is for whole speeches.

Other rooms take `new_chunks` and `HeardChunks` of `chunks`, and both functions of `loudness`. A
speech whose request changes nothing has no chain: its samples are the codec's.
"""
