"""Prompts: token ids and a voice become the talker's input embeddings, in every layout of rows.

A row is a text-side vector plus a codec-side vector. T(x) is the projected text embedding of a
token, C(x) the talker's codec embedding, E(frame) the sum of a frame's code embeddings.

    instruct              T(instruct)                                   if there is one
    role                  T(role)                                       3 rows
    language "auto"       T(tts_pad) + C(nothink, think_bos, think_eos)
    another language      T(tts_pad) + C(think, think_bos, language, think_eos)
    speaker               T(tts_pad) + C(speaker) or + x-vector         if there is one
    start of text         T(tts_bos) + C(codec_pad)

    then, text stepwise   T(body[0]) + C(codec_bos); body[1:] and tts_eos trail, one per frame
    text in full          T(body, tts_eos) + C(codec_pad), then T(tts_pad) + C(codec_bos)
    in context, stepwise  T(reference, body, tts_eos) + (C(codec_bos), E(reference frames)), cut or
                          padded to the frames; the rest of the text trails
    in context, full      T(reference, body, tts_eos) + C(codec_pad), then
                          T(tts_pad) + (C(codec_bos), E(reference frames))

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, Qwen3TTSForConditionalGeneration.generate and
generate_icl_prompt (qwen-tts 0.1.1).
"""

from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.errors import (
    EmptyText,
    ModelFilesError,
    RecordingError,
    TaskError,
    VoiceMismatch,
)
from qwen_megakernel.gpu.cuda_graphs import uploaded
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import Prefill, TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.languages import AUTO, resolve_language, supported_languages
from qwen_megakernel.voice import Voice, unknown_voice

logger = get_logger(__name__)

# Far above the numbers of any recording's x-vector, and far below those that overflow in a product.
# A stream whose logits are not finite would end in its middle, with an error of the server.
MAX_X_VECTOR = 1e4

# If a speaker has a dialect, it replaces these languages.
_YIELDS_TO_DIALECT = (AUTO, "chinese")


class Embeddings(Protocol):
    """The embeddings of a decoder, or of a model in training; in its dtype, on its device."""

    def text(self, ids: Tensor) -> Tensor:
        """Return T: [n] int64 -> [n, hidden_size]."""

    def codec(self, ids: Tensor) -> Tensor:
        """Return C: [n] int64 -> [n, hidden_size]."""

    def frames(self, codes: Tensor) -> Tensor:
        """Return E: [n, num_code_groups] int64 -> [n, hidden_size]."""


class PromptBuilder:
    """Builds prompts for one checkpoint, of the embeddings of the decoder that will read them.

    Rows that no request changes are computed once.

    Raises:
        ModelFilesError: `config` gives a speaker a dialect that it has no id for.
    """

    def __init__(self, config: ModelConfig, embeddings: Embeddings):
        self._config, self._embeddings = config, embeddings
        talker = config.talker
        self.languages = supported_languages(talker.languages)
        self._speaker_names = {name.lower(): name for name in talker.speakers}
        unknown = set(talker.dialects.values()) - talker.languages.keys()
        if unknown:
            raise ModelFilesError(
                f"config.json: spk_is_dialect names {', '.join(sorted(unknown))}, "
                "which codec_language_id does not have."
            )
        self._tts_pad, self._tts_bos, self._tts_eos = embeddings.text(
            torch.tensor([config.tts_pad_id, config.tts_bos_id, config.tts_eos_id])
        )
        codec_ids = [
            *(talker.codec_pad_id, talker.codec_bos_id),
            *(talker.codec_think_id, talker.codec_nothink_id),
            *(talker.codec_think_bos_id, talker.codec_think_eos_id),
            *(*talker.languages.values(), *talker.speakers.values()),
        ]
        rows = embeddings.codec(torch.tensor(codec_ids))
        self._codec_rows = dict(zip(codec_ids, rows, strict=True))
        self._role_rows: dict[tuple[int, ...], Tensor] = {}  # one entry per tokenizer
        self._warned: set[str] = set()

    def resolve(self, request: SpeechOptions) -> SpeechOptions:
        """Return a request as this checkpoint speaks it, before any work.

        Its voice is None, a speaker's name as the checkpoint has it, or a cloned voice. It has no
        instruct that the model ignores, and its text feed is "stepwise" or "full".

        Raises:
            UnknownVoice, UnknownLanguage: the checkpoint has no such speaker or language.
            TaskError: the kind of voice, or `instruct`, does not fit the model.
            VoiceMismatch: the voice was made for a model of another width.
            RecordingError: the voice's codes or x-vector do not fit this model.
        """
        voice = self._resolve_voice(request.voice)
        self._language_id(request.language, voice)
        feed = request.text_feed
        if feed == "auto":
            feed = "stepwise" if self._config.model_type == "base" else "full"
        instruct = request.instruct if self._takes_instruct(request.instruct) else None
        return replace(request, voice=voice, instruct=instruct, text_feed=feed)

    def build(self, ids: TextIds, request: SpeechOptions, *, text_open: bool = False) -> Prefill:
        """Build the talker's input embeddings for one part of an utterance.

        Args:
            ids: from `TextTokenizer.encode`, with the request's instruct and, for frames in
                context, their words; an open text needs at least its first token.
            request: from `resolve`, but for the language, which may be the part's own; its text is
                not read again.
            text_open: more text will come, and `trailing_text` ends without the end marker: append
                `text_rows` of the later text, then `end_rows`. The text is fed stepwise, so
                `text_feed` is not "full", and there are no frames in context.
        Returns:
            `embeds` [num_positions, hidden_size]; `trailing_text` [num_trailing, hidden_size], of
            which the decoder adds one row to each frame, then `pad_embed` [hidden_size]. If the
            official code has a single pad as trailing text, ours is empty, which has the same sum.
        Raises:
            EmptyText: `ids.body` is empty.
            UnknownLanguage: the checkpoint has no such language.
        """
        if not len(ids.body):
            raise EmptyText("The text has no token to begin with.")
        voice, is_stepwise = request.voice, request.text_feed == "stepwise"
        if voice is None and self._config.model_type == "base":  # here, for a text can name voices
            self._warn_once(
                "The request names no voice: without a reference, a Base model speaks in a random "
                "voice."
            )
        frames = ids.frames
        if frames is None and isinstance(voice, Voice):
            frames = voice.codes
        assert not text_open or (is_stepwise and frames is None), "this text must be complete"
        head = self._head(ids, request)
        words, codec = ids.body, self._codec(self._config.talker.codec_bos_id)
        if frames is not None:
            assert ids.reference is not None, "frames in context need the ids of their words"
            words = torch.cat([ids.reference, words])
            rows = self._embeddings.frames(torch.tensor(frames, dtype=torch.int64))
            codec = torch.cat([codec, rows])
        text = self._embeddings.text(words)
        if not text_open:
            text = torch.cat([text, self.end_rows()])
        body, trailing = self._body(text, codec, is_stepwise)
        return Prefill(torch.cat([head, body]), trailing, self._tts_pad)

    def text_rows(self, ids: Tensor) -> Tensor:
        """Return trailing rows for text that arrives late: [n] int64 -> [n, hidden_size]."""
        return self._embeddings.text(ids)

    def end_rows(self) -> Tensor:
        """Return the trailing row that ends an open text: [1, hidden_size]."""
        return self._tts_eos[None]

    # ---- rows ------------------------------------------------------------------------------------

    def _head(self, ids: TextIds, request: SpeechOptions) -> Tensor:
        """Return every row before the text: instruct, role, language, speaker, start of text."""
        talker, voice = self._config.talker, request.voice
        language_id = self._language_id(request.language, voice)
        tags = [talker.codec_nothink_id, talker.codec_think_bos_id]
        if language_id is not None:
            tags = [talker.codec_think_id, talker.codec_think_bos_id, language_id]
        codec = [self._codec(*tags, talker.codec_think_eos_id)]
        if isinstance(voice, str):
            codec.append(self._codec(talker.speakers[voice]))
        elif voice is not None:
            x_vector = torch.tensor(voice.x_vector)
            codec.append(uploaded(x_vector, self._tts_pad.device, self._tts_pad.dtype)[None])
        rows = [self._role(ids.role), self._tts_pad + torch.cat(codec)]
        rows.append(self._tts_bos + self._codec(talker.codec_pad_id))
        if request.instruct is not None and ids.instruct is not None:
            rows.insert(0, self._embeddings.text(ids.instruct))
        return torch.cat(rows)

    def _body(self, text: Tensor, codec: Tensor, is_stepwise: bool) -> tuple[Tensor, Tensor]:
        """Return the rows of text and codec, [n, hidden_size], and the text that trails.

        Stepwise, each codec row has a text row beside it; in full, all text comes first.
        """
        if not is_stepwise:
            text_rows = text + self._codec(self._config.talker.codec_pad_id)
            return torch.cat([text_rows, self._tts_pad + codec]), text[:0]
        beside, trailing = text[: len(codec)], text[len(codec) :]
        if num_pads := len(codec) - len(beside):
            beside = torch.cat([beside, self._tts_pad.expand(num_pads, -1)])
        return beside + codec, trailing

    def _codec(self, *ids: int) -> Tensor:
        return torch.stack([self._codec_rows[id_] for id_ in ids])

    def _role(self, role: Tensor) -> Tensor:
        key = tuple(role.tolist())
        if key not in self._role_rows:
            self._role_rows[key] = self._embeddings.text(role)
        return self._role_rows[key]

    # ---- what a request means --------------------------------------------------------------------

    def _language_id(self, language: str | None, voice: str | Voice | None) -> int | None:
        """Return the id of a language, or of the dialect of a speaker; None: the model decides."""
        talker = self._config.talker
        language = resolve_language(language, talker.languages)
        if isinstance(voice, str) and language in _YIELDS_TO_DIALECT:
            language = talker.dialects.get(voice, language)
        return None if language == AUTO else talker.languages[language]

    def _takes_instruct(self, instruct: str | None) -> bool:
        if instruct is None or not instruct.strip():
            return False
        if self._config.model_type == "base":
            raise TaskError(
                "A Base model takes no instructions.",
                "It was not trained with one; its way of speaking follows the reference voice.",
                "Leave the instructions out, or load a CustomVoice or VoiceDesign model.",
            )
        if self._config.drops_instruct:
            self._warn_once(
                "The instruct is ignored: 0.6B CustomVoice models and the demonstration voice do "
                "not follow one."
            )
            return False
        return True

    def _resolve_voice(self, voice: str | Voice | None) -> str | Voice | None:
        """Return a speaker's name as the checkpoint has it, or a cloned voice."""
        if voice is None:
            return None
        if isinstance(voice, Voice) and (voice.x_vector is not None or voice.in_context):
            if self._config.model_type != "base":
                raise TaskError(
                    f"Voice {voice.name!r} was made from a recording, and this model "
                    f"({self._config.model_type}) cannot clone: the two cannot go together.",
                    "It has its own voices; only a Base model speaks with a recording's voice.",
                    "Name one of its speakers, or load for example Qwen/Qwen3-TTS-12Hz-0.6B-Base.",
                )
            self._check_clone(voice)
            return voice
        name = voice.name if isinstance(voice, Voice) else voice
        if name.lower() in self._speaker_names:
            return self._speaker_names[name.lower()]
        raise unknown_voice(name, self._config.model_type, sorted(self._config.talker.speakers))

    def _check_clone(self, voice: Voice) -> None:
        hidden_size = self._config.talker.stack.hidden_size
        if voice.x_vector is None:
            raise RecordingError(
                f"Voice {voice.name!r} has codes but no x-vector.",
                "The prompt needs the x-vector as its speaker row, even with a transcript.",
            )
        if len(voice.x_vector) != hidden_size:
            raise VoiceMismatch(
                f"Voice {voice.name!r} is {len(voice.x_vector)}-dim; the loaded model "
                f"({self._config.model_size}) is {hidden_size}-dim.",
                hint="Re-create it: qwen-megakernel voices create RECORDING -o FILE --model ...",
            )
        if not np.isfinite(voice.x_vector).all():
            raise RecordingError(f"Voice {voice.name!r}: its x-vector holds NaN or infinity.")
        largest = voice.x_vector[np.abs(voice.x_vector).argmax()]
        if abs(largest) > MAX_X_VECTOR:
            raise RecordingError(
                f"Voice {voice.name!r}: its x-vector holds the number {largest:g}; numbers of an "
                f"x-vector are at most {MAX_X_VECTOR:g}."
            )
        if voice.codes is not None:
            self._check_codes(voice.name, np.asarray(voice.codes))

    def _check_codes(self, name: str, codes: np.ndarray) -> None:
        num_groups = self._config.talker.num_code_groups
        if not np.issubdtype(codes.dtype, np.integer):
            raise RecordingError(f"Voice {name!r}: codes are {codes.dtype}; they must be integers.")
        if codes.shape[1] != num_groups:
            raise RecordingError(
                f"Voice {name!r}: codes have {codes.shape[1]} groups; this model has {num_groups}."
            )
        limits = np.full(num_groups, self._config.predictor.vocab_size)
        limits[0] = self._config.talker.suppressed_from
        outside = (codes < 0) | (codes >= limits)
        if outside.any():
            frame, group = np.argwhere(outside)[0]
            raise RecordingError(
                f"Voice {name!r}: code {codes[frame, group]} in frame {frame}, group {group}; "
                f"this codec has 0 .. {limits[group] - 1}."
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)
