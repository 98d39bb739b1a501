"""Makes the config files of the built-in random checkpoints from assets/random-checkpoints.

The tiny ones keep the properties of a real one that code may get wrong: a head_dim of 128 that is
not hidden / heads, grouped heads, the real codec ids, a vocoder whose attention window ends within
a short utterance. The `random-*` ones have the released shapes, for benchmarks.
"""

import json
from dataclasses import dataclass
from typing import Any

from qwen_megakernel import PACKAGE_FOLDER

FOLDER = PACKAGE_FOLDER / "assets" / "random-checkpoints"
DIALECTS = ("beijing_dialect", "sichuan_dialect")  # only CustomVoice checkpoints have them


@dataclass(frozen=True, slots=True)
class Recipe:
    """A built-in checkpoint: kind, size name and dimensions."""

    model_type: str
    model_size: str
    hidden_size: int

    @property
    def sizes(self) -> dict[str, Any]:
        """All other dimensions: the config.json of a CustomVoice model and that of its codec."""
        return read_json("tiny" if self.hidden_size < 1024 else "released")


RECIPES = {
    "tiny-random": Recipe("custom_voice", "0b6", 128),
    "tiny-random-base": Recipe("base", "0b6", 128),
    "tiny-random-design": Recipe("voice_design", "0b6", 128),
    "tiny-random-1.7b": Recipe("custom_voice", "1b7", 192),
    "tiny-random-base-1.7b": Recipe("base", "1b7", 192),
    "tiny-random-design-1.7b": Recipe("voice_design", "1b7", 192),
    "random-0.6b": Recipe("custom_voice", "0b6", 1024),
    "random-0.6b-base": Recipe("base", "0b6", 1024),
    "random-1.7b": Recipe("custom_voice", "1b7", 2048),
    "random-1.7b-base": Recipe("base", "1b7", 2048),
    "random-1.7b-design": Recipe("voice_design", "1b7", 2048),
}


def read_json(name: str) -> dict[str, Any]:
    """Read the JSON file in `FOLDER` whose name without the extension is `name`."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def model_config(name: str) -> dict[str, Any]:
    """Return the config.json of a built-in checkpoint, with the keys of the released ones."""
    recipe = RECIPES[name]
    config = recipe.sizes["config"]
    talker, hidden_size = config["talker_config"], recipe.hidden_size
    ratio = talker["intermediate_size"] // talker["hidden_size"]
    talker |= {"hidden_size": hidden_size, "intermediate_size": ratio * hidden_size}
    config |= {"tts_model_size": recipe.model_size, "tts_model_type": recipe.model_type}
    config["speaker_encoder_config"]["enc_dim"] = hidden_size
    if recipe.model_type != "base":
        del config["speaker_encoder_config"]
    if recipe.model_type != "custom_voice":
        talker |= {"spk_id": {}, "spk_is_dialect": {}}
        for dialect in DIALECTS:
            del talker["codec_language_id"][dialect]
    return config


def speech_tokenizer_config(name: str) -> dict[str, Any]:
    """Return the speech_tokenizer/config.json of a built-in checkpoint."""
    return RECIPES[name].sizes["speech_tokenizer"]
