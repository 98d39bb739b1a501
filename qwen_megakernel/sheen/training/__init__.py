"""Makes a voice of the second family: a dataset from recordings, and a voice from the dataset.

Read `job` first (`sheen train`), then `prepare` (recordings to codes), `dataset` (the file between
the two), `sequences` (what the model reads), `trainer` (what a step reads, and its loss) and
`verify` (checks of each step). The loop and the files of a job are in the room `training`. `cli`
takes their functions.
"""
