"""The vocoder turns codec frames into PCM, chunk by chunk; the chunks together equal the whole.

Read `vocoder` first (`Vocoder` and the states of its streams), then `layers` and `transformer` (the
streaming forms of its parts), `snake` (the activation, one GPU kernel), `graph_vocoder` (the
vocoder as CUDA graphs) and `cpu` (the vocoder in native code).

Other rooms take `Vocoder`, `GraphVocoder` and `CpuVocoder`. `decoders/coreml` and
`cloning/codec_encoder` also take layers.
"""
