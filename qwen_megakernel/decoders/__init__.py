"""Decoders turn a prompt into codec frames: the talker and the code predictor, on five backends.

Read `frame_decoder` first: it is the base class of all decoders and has every method that a caller
uses. Then read `plain`, the model in plain PyTorch, one stream at a time, and its `layers`: the
tests compare the other decoders with it. `cpu/` is native code for a CPU, `kernel/` the persistent
CUDA kernel or its emulation on a CPU, `graph/` PyTorch operations recorded as CUDA graphs,
`coreml/` two converted models. `backends` chooses between the five. `prompt` builds their input,
`sampling` draws codes, `slots` has sizes and the state of a slot, `weights` and `quantization` are
the tensors of a model, as they are stored or in 8 bits, and `dtypes` has the values of `dtype=`.

Other rooms take `FrameDecoder`, `OneByOneDecoder`, `load_decoder`, `choose_backend`, `Backend`,
`PromptBuilder`, `KernelTextModel`, `dtypes`, `slots` and `sampling`.
"""
