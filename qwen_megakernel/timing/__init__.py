"""Finds the times at which the words of a text are heard in its speech.

Read `speech_timer` first (the object that a stream holds), then `words` (the words of the user's
text and their lengths), `sounds` (which turns letters into sounds), `loudness` (which turns samples
into features), `alignment` (which finds the place of each sound in the features) and `subtitles`
(which writes captions to files).

Other rooms use `SpeechTimer`, `TimedWord`, `Segment` and `subtitles`. The Pipecat
service also uses functions of `words` to count and divide texts.
"""
