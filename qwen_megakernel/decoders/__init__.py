"""A prompt becomes codec frames: the talker and the code predictor, on four kinds of machinery.

Read `frame_decoder` first: the base class of all decoders, with what a caller sees of them. Then
`plain`, the model in plain PyTorch, one stream at a time, which the others are held against.
`graph/` is the same as CUDA graphs, `kernel/` the persistent CUDA kernel or its emulation on a CPU,
`coreml/` two converted models; the first two share `buffered`. `backends` chooses between the four.
`prompt` builds what they are given, `sampling` draws codes, `slots` has sizes and accounts, `int8`
holds 8-bit weights.

Other rooms take `FrameDecoder`, `load_decoder`, `choose_backend`, `Backend`, `PromptBuilder`,
`KernelTextModel`, and `sampling`.
"""
