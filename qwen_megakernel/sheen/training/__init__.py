"""Makes a voice of the second family: a dataset from recordings, and a voice from the dataset.

Read `job` first (`sheen train`), then `prepare` (recordings to codes), `dataset` (the file between
the two), `sequences` (what the model reads), `trainer` (the loop) and `verify` (checks of each
step). `cli` takes their functions.
"""
