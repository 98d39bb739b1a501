"""Finds the files of a model by its name, and reads their checked tensors.

Read `loading` first (`resolve` finds the files, `load` checks them and returns a `Checkpoint`),
then `config` and `codec_config` (records of config.json, and the limits of their values, which
`config_fields` checks), `tensor_shapes` (which tensors there must be), `frame_weights` (how many
weights one frame reads), `safetensors_file` (reading and checking one file), `weight_reader`
(tensors on a device, in one dtype), `hub` (downloads), and `random_configs` with `random_weights`,
which write the built-in random checkpoints.

Other rooms take `loading.resolve`, `load`, `Checkpoint` and `ModelFiles`;
`config.ModelConfig` and `StackConfig`; `codec_config.CodecConfig`; `random_configs.RELEASED`;
`WeightReader`.
"""
