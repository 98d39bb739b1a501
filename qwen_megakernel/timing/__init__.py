"""Says when each word of a text is heard in its speech.

Read `speech_timer` first (what a stream holds), then `words` (the words that the user wrote, and
how long they are), `sounds` (letters become sounds), `loudness` (samples become what the alignment
sees), `alignment` (which sound is where in the samples) and `subtitles` (files of captions).

Other rooms take `SpeechTimer`, `SpokenPart`, `TimedWord`, `Segment`, `subtitles`, and of `words`
what the Pipecat service counts and cuts texts with.
"""
