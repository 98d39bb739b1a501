"""Codec frames become PCM, incrementally: chunks together equal the whole, however they are cut.

Read `vocoder` first (`Vocoder` and its `VocoderState`), then `layers` and `transformer` (the
streaming forms of its parts), `snake` (the activation, one GPU kernel) and `graph_vocoder` (the
same as CUDA graphs).

Other rooms take `Vocoder`, `VocoderState` and `GraphVocoder`. `decoders/coreml` and
`cloning/codec_encoder` also take layers.
"""
