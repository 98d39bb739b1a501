"""A prompt becomes codec frames: the talker and the code predictor, on four kinds of machinery.

Read `plain` first: it is the model in plain PyTorch, one stream at a time, and the others are held
against it. `graph/` is the same as CUDA graphs, `kernel/` the persistent CUDA kernel or its
emulation on a CPU, `coreml/` two converted models. `prompt` builds what they are given, `sampling`
draws codes, `slots` keeps account of streams, `int8` holds 8-bit weights, and `frame_decoder`
chooses between the four.

Other rooms take `FrameDecoder`, `choose_backend`, `Backend`, `PromptBuilder`, `KernelTextModel`,
and `sampling`.
"""
