"""This module packs utterances in the official prompt layout into rows of one length.

Source of the layout: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, generate (docs/model.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from tools.demo_voice.recipe import LANGUAGE, SPEAKER
from tools.demo_voice.shards import Utterance
from tools.demo_voice.talker_net import IGNORED

NO_CONTROL = -1  # marks a position without a control id of the codec vocabulary

MAX_MISSES = 25  # a batch is full when so many utterances have fit in no row
SHARE_OF_NEIGHBOURS = 0.3  # share of the spoilt frames that a near frame replaces
REACH_OF_NEIGHBOURS = 3
SHARE_OF_SPOILT_CODES = 0.05  # a near frame differs among the codes after the first
BANK_UTTERANCES = 3000  # utterances whose frames replace spoilt ones


@dataclass(slots=True)
class Rows:
    """Positions of the talker. All are int64 except the mask; a frame has `num_codes` codes."""

    text: np.ndarray  # [..., length] text id
    control: np.ndarray  # [..., length] id of the codec vocabulary, or NO_CONTROL
    codes: np.ndarray  # [..., length, num_codes] the previous frame, where `is_frame`
    is_frame: np.ndarray  # [..., length] bool
    targets: np.ndarray  # [..., length, num_codes] the frame to draw here, where there is one
    labels: np.ndarray  # [..., length] code 0 of that frame, or EOS, or IGNORED

    @classmethod
    def empty(cls, shape: tuple[int, ...], num_codes: int, pad_id: int) -> "Rows":
        """Return positions that hold nothing."""
        return cls(
            text=np.full(shape, pad_id),
            control=np.full(shape, NO_CONTROL),
            codes=np.zeros((*shape, num_codes), np.int64),
            is_frame=np.zeros(shape, bool),
            targets=np.zeros((*shape, num_codes), np.int64),
            labels=np.full(shape, IGNORED),
        )

    def put(self, row: int, start: int, piece: "Rows") -> None:
        """Copy `piece` into this object from `row` and `start` on."""
        end = start + len(piece.text)
        for field in fields(self):
            getattr(self, field.name)[row, start:end] = getattr(piece, field.name)


@dataclass(frozen=True, slots=True)
class Layout:
    """The choices in how a request is laid out."""

    is_full: bool = False  # False: a token of text comes with each frame
    is_auto: bool = True  # True: the prompt names no language
    has_speaker: bool = False  # True: the prompt names the speaker

    def length(self, utterance: Utterance) -> int:
        """Return how many positions `lay_out` will need."""
        # The terms are role, language, start of text, codec_bos.
        head = 3 + (3 if self.is_auto else 4) + self.has_speaker + 2
        return head + len(utterance.codes) + (len(utterance.ids) + 1 if self.is_full else 0)


LONGEST_LAYOUT = Layout(is_full=True, is_auto=False, has_speaker=True)


def lay_out(
    config: ModelConfig, role_ids: Sequence[int], utterance: Utterance, layout: Layout
) -> Rows:
    """Lay out one utterance as the talker sees it.

    Args:
        role_ids: the three text ids in front of every prompt.
    """
    talker = config.talker
    if layout.is_auto:
        language = [talker.codec_nothink_id, talker.codec_think_bos_id]
    else:
        language = [talker.codec_think_id, talker.codec_think_bos_id, talker.languages[LANGUAGE]]
    speaker = [talker.speakers[SPEAKER]] if layout.has_speaker else []
    control = [*language, talker.codec_think_eos_id, *speaker, talker.codec_pad_id]
    length = layout.length(utterance)
    rows = Rows.empty((length,), talker.num_code_groups, config.tts_pad_id)
    rows.text[:3] = role_ids
    start = 3 + len(control)
    rows.control[3:start] = control
    rows.text[start - 1] = config.tts_bos_id
    text = np.append(utterance.ids.astype(np.int64), config.tts_eos_id)
    if layout.is_full:
        rows.text[start : start + len(text)] = text
        rows.control[start : start + len(text)] = talker.codec_pad_id
        start += len(text)
    else:
        rows.text[start : start + len(text)] = text[: length - start]
    rows.control[start] = talker.codec_bos_id
    rows.codes[start + 1 :] = utterance.codes
    rows.is_frame[start + 1 :] = True
    rows.targets[start:-1] = utterance.codes
    rows.labels[start:-1] = utterance.codes[:, 0]
    rows.labels[-1] = talker.codec_eos_id
    return rows


class Packer:
    """An endless source of batches from a pool of utterances, each pass in another order.

    Args:
        config: ids and number of codes.
        role_ids: as in `lay_out`.
        silence: the codes of a silent frame.
        pool: the utterances to draw from.
        num_rows, row_length: shape of a batch; longer utterances are left out.
        num_frames: frames of a batch that the code predictor learns from.
        full_share, auto_share, speaker_share: shares of the utterances that are laid out so.
        spoil: least and greatest share of the frames of an utterance that are spoilt in what the
            talker hears of itself, so that it learns to go on after its own mistakes.
        seed: same seed, same batches.
    """

    def __init__(
        self,
        config: ModelConfig,
        role_ids: Sequence[int],
        silence: np.ndarray,
        pool: Sequence[Utterance],
        *,
        num_rows: int,
        row_length: int,
        num_frames: int,
        full_share: float = 0.5,
        auto_share: float = 0.6,
        speaker_share: float = 0.5,
        spoil: tuple[float, float] = (0.1, 0.5),
        seed: int = 0,
    ):
        self._config, self._role_ids, self._silence = config, role_ids, silence
        self._pool = [u for u in pool if LONGEST_LAYOUT.length(u) <= row_length]
        self._shape, self._num_frames = (num_rows, row_length), num_frames
        self._shares, self._spoil = np.array([full_share, auto_share, speaker_share]), spoil
        self._rng = np.random.default_rng(seed)
        self._order: list[int] = []
        self._left: list[int] = []
        some = self._rng.choice(len(self._pool), min(len(self._pool), BANK_UTTERANCES), False)
        self._bank = np.concatenate([self._pool[i].codes for i in some]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._pool)

    def batch(self) -> tuple[dict[str, Tensor], int]:
        """Return the next batch, on the CPU, and how many utterances are in it."""
        num_rows, length = self._shape
        config = self._config
        rows = Rows.empty(self._shape, config.talker.num_code_groups, config.tts_pad_id)
        owner = np.zeros(self._shape, np.int64)
        used = [0] * num_rows
        too_long: list[int] = []
        count = 0
        while len(too_long) < MAX_MISSES:
            index = self._next()
            utterance = self._pool[index]
            layout = Layout(*(self._rng.random(3) < self._shares).tolist())
            if not layout.is_full:
                utterance = utterance.delayed(self._silence)
            needed = layout.length(utterance)
            row = next((i for i in range(num_rows) if used[i] + needed <= length), None)
            if row is None:
                too_long.append(index)
                continue
            piece = lay_out(config, self._role_ids, utterance, layout)
            piece.codes[piece.is_frame] = self._spoilt(utterance.codes)
            rows.put(row, used[row], piece)
            count += 1
            owner[row, used[row] : used[row] + needed] = count
            used[row] += needed
        self._left = too_long + self._left
        labels = rows.labels.ravel()
        drawn = np.flatnonzero((labels >= 0) & (labels != config.talker.codec_eos_id))
        frames = self._rng.choice(drawn, self._num_frames, len(drawn) < self._num_frames)
        targets = rows.targets.reshape(-1, rows.targets.shape[-1])
        arrays = {
            "text": rows.text,
            "control": rows.control,
            "codes": rows.codes,
            "is_frame": rows.is_frame,
            "labels": rows.labels,
            "owner": owner,
            "frames": frames,
            "frame_codes": targets[frames],
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, count

    def state(self) -> dict[str, Any]:
        """Return all that the next batches depend on, besides the arguments; `restore` takes it."""
        rng = self._rng.bit_generator.state
        return {"rng": rng, "order": list(self._order), "left": list(self._left)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was called."""
        self._rng.bit_generator.state = state["rng"]
        self._order, self._left = list(state["order"]), list(state["left"])

    def _next(self) -> int:
        if self._left:
            return self._left.pop()
        if not self._order:
            self._order = self._rng.permutation(len(self._pool)).tolist()
        return self._order.pop()

    def _spoilt(self, codes: np.ndarray) -> np.ndarray:
        """Return an utterance's frames with some replaced: by others, by near ones, or in part."""
        rng, length = self._rng, len(codes)
        spoilt = codes.astype(np.int64)
        where = np.flatnonzero(rng.random(length) < rng.uniform(*self._spoil))
        is_near = rng.random(len(where)) < SHARE_OF_NEIGHBOURS
        step = rng.integers(-REACH_OF_NEIGHBOURS, REACH_OF_NEIGHBOURS + 1, len(where))
        near = codes[np.clip(where + step, 0, length - 1)]
        strange = self._bank[rng.integers(len(self._bank), size=len(where))]
        spoilt[where] = np.where(is_near[:, None], near, strange)
        is_random = rng.random(spoilt.shape) < SHARE_OF_SPOILT_CODES
        is_random[:, 0] = False
        size = self._config.predictor.vocab_size
        spoilt[is_random] = rng.integers(size, size=int(is_random.sum()))
        return spoilt
