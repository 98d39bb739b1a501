"""Makes a `Voice` from a recording: an x-vector, and with a transcript also codec frames.

Read `voice_library` first (`VoiceLibrary` makes voices and finds them by name), then `recordings`
(which audio is accepted, and how it is read), `speaker_encoder` (the x-vector), `codec_encoder`
(the frames) and `mixing` (voices between others).

Other rooms take `VoiceLibrary`, `Recording`, `SILENCE_TAIL_SECONDS`, `recordings` and `mixing`.
"""
