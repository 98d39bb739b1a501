"""Making a voice of the second family: recordings become a dataset, a dataset becomes a voice.

Read `job` first (`sheen train`), then `prepare` (recordings to codes), `dataset` (the file between
the two), `sequences` (what the model reads), `trainer` (the loop) and `verify` (checks of each
step). `cli` takes their functions.
"""
