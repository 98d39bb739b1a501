"""Training of both families: what making a voice takes, whichever model speaks with it.

Read `preparing` first (recordings to a file of samples), then `trainer` (the loop, and its exact
resumption) and `job` (the folder that a training writes). `sheen.training` takes all of them.
For Qwen3-TTS, `speech_data` makes the samples, `speech_model` is the model as a module that can be
trained, `speech_trainer` says what a step reads, and `speech_job` writes a voice and merges it.
"""
