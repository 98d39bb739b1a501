"""Derives the missing config.json of a speech tokenizer from the shapes of its tensors.

Some distributions of the codec have only its model.safetensors.
"""

import re
from collections.abc import Mapping
from typing import Any

from qwen_megakernel.checkpoint.random_configs import read_json
from qwen_megakernel.checkpoint.tensor_shapes import NUM_SEMANTIC_QUANTIZERS, Shape

_SEMANTIC, _ACOUSTIC = (
    f"encoder.quantizer.{kind}_residual_vector_quantizer" for kind in ("semantic", "acoustic")
)

# Section -> key -> the tensor and the axis whose length is the key's value.
SIZES = {
    "decoder_config": {
        "codebook_size": ("decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum", 0),
        "codebook_dim": ("decoder.quantizer.rvq_first.output_proj.weight", 0),
        "latent_dim": ("decoder.pre_conv.conv.weight", 0),
        "hidden_size": ("decoder.pre_transformer.norm.weight", 0),
        "intermediate_size": ("decoder.pre_transformer.layers.0.mlp.gate_proj.weight", 0),
        "decoder_dim": ("decoder.decoder.0.conv.weight", 0),
    },
    "encoder_config": {
        "num_filters": ("encoder.encoder.layers.0.conv.weight", 0),
        "hidden_size": ("encoder.downsample.conv.weight", 0),
        "intermediate_size": ("encoder.encoder_transformer.layers.0.mlp.fc1.weight", 0),
        "vector_quantization_hidden_dimension": (f"{_SEMANTIC}.input_proj.weight", 0),
        "codebook_size": (f"{_SEMANTIC}.layers.0.codebook.embed_sum", 0),
        "codebook_dim": (f"{_SEMANTIC}.layers.0.codebook.embed_sum", 1),
    },
}
# Section -> key -> the list of modules whose length, plus a number, is the key's value.
COUNTS = {
    "decoder_config": {
        "num_hidden_layers": ("decoder.pre_transformer.layers", 0),
        "num_quantizers": ("decoder.quantizer.rvq_rest.vq.layers", NUM_SEMANTIC_QUANTIZERS),
    },
    "encoder_config": {
        "num_hidden_layers": ("encoder.encoder_transformer.layers", 0),
        "num_quantizers": (f"{_ACOUSTIC}.layers", NUM_SEMANTIC_QUANTIZERS),
    },
}
# Values that fit tensors of the same shapes but change the sound if they are wrong. Kernel sizes
# and rates of the convolutions are official, too, but the shapes of their tensors depend on them.
_OF_BOTH = (
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("sliding_window", "rope_theta"),
)
UNTOLD = {"decoder_config": (*_OF_BOTH, "rms_norm_eps"), "encoder_config": (*_OF_BOTH, "norm_eps")}


def layout_of(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Return the config.json that tensors of these shapes are likely to have had.

    Values that do not follow from shapes are those of the official codec. So is the size of a
    missing tensor; the check of all tensors against this config then reports it.
    """
    values = read_json("released")["speech_tokenizer"]
    for section, sizes in SIZES.items():
        for key, (name, axis) in sizes.items():
            if name in shapes and len(shapes[name]) > axis:
                values[section][key] = shapes[name][axis]
    for section, counts in COUNTS.items():
        for key, (modules, others) in counts.items():
            index = re.compile(re.escape(modules) + r"\.(\d+)\.")
            indices = {match[1] for name in shapes if (match := index.match(name))}
            if indices:
                values[section][key] = len(indices) + others
    values["encoder_valid_num_quantizers"] = values["decoder_config"]["num_quantizers"]
    return values


def assumptions(values: dict[str, Any]) -> str:
    """Return the values of `layout_of` that no tensor confirms, for a message."""
    untold = [
        f"{section.removesuffix('_config')} {key} {values[section][key]}"
        for section, keys in UNTOLD.items()
        for key in keys
    ]
    return ", ".join((*untold, f"output_sample_rate {values['output_sample_rate']}"))
