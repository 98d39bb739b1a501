"""Changes a stream's samples after the codec: silence, speed, volume, sample rate.

Read `chain` first (the steps and their order), then `chunks` (which applies a chain to the engine's
chunks), `silence` (silence at the beginning and the end), `stretch` (speed), `gain` (volume, and a
limiter) and `resampling` (sample rate). `loudness` changes complete speeches. `watermark` marks a
stream as synthetic, and `mark_detector` finds the mark in a recording. `loudspeaker` plays.

Other rooms use `chunks.new_chunks` and `HeardChunks`, both functions of `loudness`, `MarkKey`,
`find_marks` and the functions of `loudspeaker`. A stream whose request changes nothing has no
chain: the caller gets the codec's samples unchanged.
"""
