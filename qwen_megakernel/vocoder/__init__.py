"""Codec frames become PCM, incrementally: chunks together equal the whole, however they are cut.

Read `vocoder` first (`Vocoder` and its `VocoderState`), then `layers` and `transformer` (the
streaming forms of its parts), `snake` (the activation, one GPU kernel), `graph_vocoder` (the same
as CUDA graphs) and `cpu` (the same in native code).

Other rooms take `Vocoder`, `VocoderState`, `GraphVocoder` and `CpuVocoder`. `decoders/coreml` and
`cloning/codec_encoder` also take layers.
"""
