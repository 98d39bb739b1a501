"""Toys of every kind of checkpoint: the official wrapper and `PromptBuilder` on the same weights.

An exception catches the official talker's input where the official code calls the talker.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from tolerances import PROMPT_F32

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.voice import Voice
from tools.validation import official

TEXT, TRANSCRIPT, INSTRUCT = "Hi, you!", "Was it?", "Speak slowly."
FEEDS = {"stepwise": False, "full": True}  # text_feed -> non_streaming_mode

LANGUAGES = ["english", "german", "spanish", "chinese", "japanese"]
LANGUAGES += ["french", "korean", "russian", "italian", "portuguese"]
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
SPEAKERS = ["aiden", "sohee", "ono_anna", "eric", "dylan", "uncle_fu", "ryan", "vivian", "serena"]

HIDDEN_SIZE, NUM_CODE_GROUPS = 16, 3
CODEBOOK_SIZE, PREDICTOR_CODEBOOK_SIZE = 32, 40
STACK = {
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "num_code_groups": NUM_CODE_GROUPS,
}


def config_values(model_type: str, model_size: str = "1b7") -> dict:
    """Return a toy config.json; its ids differ from the releases', so no code can assume them."""
    names = ["pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos"]
    names += LANGUAGES + list(DIALECTS.values()) + SPEAKERS
    ids = {name: CODEBOOK_SIZE + 1 + 3 * i for i, name in enumerate(names)}
    languages = LANGUAGES + list(DIALECTS.values()) * (model_type == "custom_voice")
    speakers = SPEAKERS * (model_type == "custom_voice")
    return {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": model_size,
        "tts_model_type": model_type,
        "im_start_token_id": 265,
        "im_end_token_id": 266,
        "tts_pad_token_id": 267,
        "tts_bos_token_id": 268,
        "tts_eos_token_id": 269,
        "speaker_encoder_config": {
            "enc_dim": HIDDEN_SIZE,
            "sample_rate": 24000,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
        },
        "talker_config": STACK
        | {
            "vocab_size": CODEBOOK_SIZE + 1024,
            "text_vocab_size": 270,
            "text_hidden_size": 24,
            "codec_eos_token_id": ids["eos"],
            **{f"codec_{name}_id": ids[name] for name in names[:7] if name != "eos"},
            "spk_id": {name: ids[name] for name in speakers},
            "spk_is_dialect": {name: DIALECTS.get(name, False) for name in speakers},
            "codec_language_id": {name: ids[name] for name in languages},
            "code_predictor_config": STACK | {"vocab_size": PREDICTOR_CODEBOOK_SIZE},
        },
    }


def write_tokenizer(folder: Path) -> None:
    """Write byte tokens, the tokens of "assistant", and chat markup."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    merges = []
    for end in range(1, len("assistant")):
        merges.append(f"{'assistant'[:end]} {'assistant'[end]}")
        vocab["assistant"[: end + 1]] = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(merges))
    special = {264: "<|endoftext|>", 265: "<|im_start|>", 266: "<|im_end|>"}
    decoder = {str(i): {"content": token, "special": True} for i, token in special.items()}
    tokenizer_config = {"added_tokens_decoder": decoder, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


class Handover(Exception):
    """An exception that carries the input of the official talker."""


class OfficialEmbeddings:
    """`prompt.Embeddings` on the official modules; counts the requested rows."""

    def __init__(self, talker):
        self.talker = talker
        self.num_rows = {"text": 0, "codec": 0, "frames": 0}

    @torch.no_grad()
    def text(self, ids):
        self.num_rows["text"] += len(ids)
        return self.talker.text_projection(self.talker.get_text_embeddings()(ids))

    @torch.no_grad()
    def codec(self, ids):
        self.num_rows["codec"] += len(ids)
        return self.talker.get_input_embeddings()(ids)

    @torch.no_grad()
    def frames(self, codes):
        self.num_rows["frames"] += len(codes)
        rows = [self.talker.get_input_embeddings()(codes[:, 0])]
        tables = self.talker.code_predictor.get_input_embeddings()
        rows += [table(codes[:, i + 1]) for i, table in enumerate(tables)]
        return torch.stack(rows, 1).sum(1)


class Toy:
    """The official wrapper and `PromptBuilder` on the same random weights."""

    def __init__(self, folder, model_type: str, model_size: str = "1b7"):
        qwen_tts = official.package()
        models = qwen_tts.core.models
        from transformers import Qwen2TokenizerFast

        values = config_values(model_type, model_size)
        torch.manual_seed(0)
        model = models.Qwen3TTSForConditionalGeneration(models.Qwen3TTSConfig(**values)).eval()
        with torch.no_grad():
            for parameter in model.talker.parameters():
                parameter.normal_(std=0.3)
        model.talker.generate = self._hand_over
        processor = models.Qwen3TTSProcessor(Qwen2TokenizerFast.from_pretrained(folder))
        self.official = qwen_tts.Qwen3TTSModel(model, processor, {})
        self.config = parse_model_config(values)
        self.tokenizer = TextTokenizer(folder, self.config)
        self.embeddings = OfficialEmbeddings(model.talker)
        self.builder = PromptBuilder(self.config, self.embeddings)

    def assert_official(self, method: str, *, voice=None, theirs=None, **request):
        """Check that `method` of the wrapper gives the talker the prompt of the same request.

        Args:
            theirs: further arguments of the method.
        """
        official = {"speaker": voice} if isinstance(voice, str) else {}
        official |= theirs or {}
        official |= {key: request[key] for key in ("language", "instruct") if key in request}
        if "text_feed" in request:
            official["non_streaming_mode"] = FEEDS[request["text_feed"]]
        call = getattr(self.official, method)
        assert_same_prompt(self.build(voice=voice, **request), call, text=TEXT, **official)

    @staticmethod
    def _hand_over(**inputs):
        raise Handover(inputs)

    def build(self, text_open: bool = False, **request):
        """Return the prompt of `SpeechOptions(**request)`."""
        request = SpeechOptions(**request)
        voice = request.voice
        transcript = voice.transcript if isinstance(voice, Voice) else None
        ids = self.tokenizer.encode(TEXT, instruct=request.instruct, transcript=transcript)
        return self.builder.build(ids, self.builder.resolve(request), text_open=text_open)


def assert_same_prompt(prefill, call, **kwargs) -> None:
    """Check that `call` of the official code gives the talker the prompt `prefill`."""
    with pytest.raises(Handover) as caught:
        call(**kwargs)
    inputs = caught.value.args[0]  # inputs_embeds, trailing_text_hidden, ...
    close = {"atol": PROMPT_F32, "rtol": 0}
    assert inputs["attention_mask"].all()
    torch.testing.assert_close(prefill.embeds, inputs["inputs_embeds"][0], **close)
    torch.testing.assert_close(prefill.pad_embed, inputs["tts_pad_embed"][0, 0], **close)
    trailing = prefill.trailing_text
    if not len(trailing):  # officially, one pad means that no text is left
        trailing = prefill.pad_embed[None]
    torch.testing.assert_close(trailing, inputs["trailing_text_hidden"][0], **close)


def official_item(voice: Voice) -> Any:
    """Return the official VoiceClonePromptItem of a voice."""
    codes = voice.codes
    return official.package().VoiceClonePromptItem(
        ref_code=None if codes is None else torch.from_numpy(codes),
        ref_spk_embedding=torch.from_numpy(voice.x_vector),
        x_vector_only_mode=codes is None,
        icl_mode=codes is not None,
        ref_text=voice.transcript,
    )


def clone(num_frames: int = 0, **changes) -> Voice:
    """Return a random cloned voice, in context if it has frames."""
    rng = np.random.default_rng(7)
    voice = Voice("mario", rng.standard_normal(HIDDEN_SIZE).astype(np.float32))
    if num_frames:
        codes = rng.integers(0, CODEBOOK_SIZE, (num_frames, NUM_CODE_GROUPS))
        voice = replace(voice, codes=codes, transcript=TRANSCRIPT)
    return replace(voice, **changes)
