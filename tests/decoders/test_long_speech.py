"""Long speech, 200 and 400 frames without a break, against the official package.

The longest utterances of other tests have some thirty frames. Here EOS can never be drawn: its row
of the head is zero in both packages, far below the best of some 2,000 codes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tolerances import AUDIO_F32, LONG_LOGITS_F32, TIE_F32
from torch import Tensor

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders import sampling
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.native.cpu_library import CpuPool, open_library
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder
from tools.validation import official

SENTENCE = "It is cold today, so we will meet at the hotel and go to the station. "
GREEDY = Sampling.greedy()  # with the checkpoint's repetition penalty, over all these frames
MAX_PARTINGS = 3  # of the thousands of codes of a speech
# (model, text in the prompt) -> frames of the official run.
RUNS = {
    ("tiny-random", True): 400,
    ("tiny-random", False): 200,
    ("tiny-random-1.7b", True): 200,
    ("tiny-random-1.7b", False): 400,
}
DECODERS = {
    "plain": PlainDecoder,
    "cpu": CpuDecoder,
    "graph": GraphDecoder,
    "emulation": KernelDecoder,
}


@dataclass(frozen=True)
class LongRun:
    """An official speech, and the checkpoint whose head cannot end it."""

    loaded: Checkpoint
    official: official.OfficialRun

    @property
    def codes(self) -> Tensor:
        return torch.from_numpy(self.official.codes)

    @property
    def logits(self) -> tuple[Tensor, Tensor]:
        """Return [num_frames, vocab_size] and [num_frames, num_code_groups - 1, codebook_size]."""
        frames, groups = self.codes.shape
        talker = torch.stack(self.official.talker_logits)[:frames]
        predictor = torch.stack(self.official.predictor_logits)[: frames * (groups - 1)]
        return talker, predictor.unflatten(0, (frames, groups - 1))


@pytest.fixture(scope="module")
def long_run(official_model, load_checkpoint):
    """long_run(model, is_full) returns a run, which is made once for all decoders."""
    made: dict[tuple[str, bool], LongRun] = {}

    def run(name: str, is_full: bool) -> LongRun:
        if (name, is_full) not in made:
            loaded, model = load_checkpoint(name), official_model(name)
            eos = loaded.config.talker.codec_eos_id
            head = loaded.talker["codec_head.weight"].clone()
            head[eos] = 0
            text = (SENTENCE * 8).strip()
            theirs = model.model.talker.codec_head.weight
            saved = theirs[eos].clone()
            with torch.no_grad():
                theirs[eos] = 0
                try:
                    found = official.generate(
                        model,
                        GREEDY,
                        RUNS[name, is_full],
                        input_ids=model._tokenize_texts([model._build_assistant_text(text)]),
                        languages=["english"],
                        speakers=[next(iter(loaded.config.talker.speakers))],
                        non_streaming_mode=is_full,
                    )
                finally:
                    theirs[eos] = saved
            talker = loaded.talker | {"codec_head.weight": head}
            made[name, is_full] = LongRun(replace(loaded, talker=talker), found)
        return made[name, is_full]

    return run


def decoder_of(kind: type, run: LongRun) -> Any:
    """Return a decoder that is ready to draw the first frame of the run."""
    sizes = DecoderSizes(1, 1024, device=torch.device("cpu"), dtype=torch.float32)
    decoder = kind(run.loaded, sizes)
    pad = decoder.embeddings.text(torch.tensor([run.loaded.config.tts_pad_id]))[0]
    prefill = Prefill(run.official.prefill, run.official.trailing_text, pad)
    decoder.prefill(0, prefill, GREEDY, seed=0, part=0)
    return decoder


def partings(drawn: Tensor, run: LongRun) -> list[tuple[int, int]]:
    """Return (frame, codebook) of the codes that differ from the official ones.

    The official logits of each such code and of the official one must lie within `TIE_F32`.

    Args:
        drawn: [num_frames, num_code_groups], each drawn after the official codes before it.
    """
    found = []
    talker, predictor = run.logits
    config = run.loaded.config.talker
    for frame, group in (drawn != run.codes[: len(drawn)]).nonzero().tolist():
        theirs, ours = run.codes[frame, group], drawn[frame, group]
        logits = predictor[frame, group - 1] if group else talker[frame].clone()
        if group == 0:
            logits[config.suppressed_from :] = -torch.inf
            seen = torch.zeros(len(logits), dtype=torch.bool)
            seen[run.codes[:frame, 0].long()] = True
            logits = sampling.penalized(logits, seen, GREEDY.talker.repetition_penalty)
        assert logits.argmax() == theirs, "the official code is not the best of its logits"
        assert logits[theirs] - logits[ours] <= TIE_F32, (frame, group)
        found.append((frame, group))
    return found


# The emulation takes one run of 400 frames for each model, up to frame 200.
COMPARED = [
    pytest.param(kind, *run, marks=[pytest.mark.slow] * (kind == "plain" and "1.7b" in run[0]))
    for kind in DECODERS
    for run, num_frames in RUNS.items()
    if kind != "emulation" or num_frames == 400
]


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "name", "is_full"), COMPARED)
def test_long_speech_is_the_official_packages(long_run, kind, name, is_full):
    run = long_run(name, is_full)
    count = RUNS[name, is_full] if kind != "emulation" else 200
    assert len(run.codes) == RUNS[name, is_full]
    rows = run.official.prefill if is_full else run.official.trailing_text
    assert len(rows) >= 300
    codes, taps = run.codes[:count], {}
    led = decoder_of(DECODERS[kind], run).step([0], count, codes[None], taps)
    found = partings(torch.from_numpy(led.codes[0]), run)
    assert len(found) <= MAX_PARTINGS
    for ours, theirs in zip((taps["talker"], taps["predictor"]), run.logits, strict=True):
        assert (ours[0] - theirs[:count]).abs().max() <= LONG_LOGITS_F32
    if kind == "plain":  # also without forced codes, up to the first difference
        same = found[0][0] if found else count
        free = decoder_of(DECODERS[kind], run).step([0], count)
        assert np.array_equal(free.codes[0, :same], codes[:same]) and not free.ended[0]


@pytest.fixture(scope="module")
def official_samples(official_model, long_run) -> Tensor:
    """The official decoder's samples of 400 frames at once; its wrapper cuts them after 300."""
    decoder = official_model("tiny-random").model.speech_tokenizer.model.decoder
    with torch.inference_mode():
        return decoder(long_run("tiny-random", True).codes.long().T[None]).flatten()


@pytest.mark.ci
@pytest.mark.parametrize("chunk", [10, 400])
@pytest.mark.parametrize("kind", ["torch", "native"])
def test_the_vocoder_gives_the_official_samples_of_400_frames(
    long_run, official_samples, kind, chunk
):
    run = long_run("tiny-random", True)
    codec = run.loaded.codec_config, run.loaded.codec_decoder
    native = kind == "native"
    vocoder = CpuVocoder(*codec, CpuPool(open_library(), 2)) if native else Vocoder(*codec)
    states = [vocoder.new_state()]
    pcm = torch.cat([vocoder.step(piece[None], states)[0] for piece in run.codes.split(chunk)])
    assert len(pcm) == len(official_samples) == 400 * 1920
    assert (pcm - official_samples).abs().max() <= AUDIO_F32


def test_a_code_that_is_no_near_tie_is_found(load_checkpoint):
    """A made-up run: 3 frames of 16 codes; the second logit is half a limit below the best."""
    loaded = load_checkpoint("tiny-random")
    codes = np.full((3, 16), 7, np.int32)
    talker = [torch.zeros(loaded.config.talker.vocab_size) for _ in range(3)]
    predictor = [torch.zeros(2048) for _ in range(45)]
    for logits in (*talker, *predictor):
        logits[7], logits[9] = 1.0, 1 - TIE_F32 / 2
    talker[1][7] = talker[2][7] = 1.05  # the repetition penalty reduces it to 1
    run = LongRun(
        loaded, official.OfficialRun(codes, torch.empty(0), torch.empty(0), talker, predictor)
    )
    drawn = torch.from_numpy(codes.copy())
    assert partings(drawn, run) == []
    drawn[0, 5] = drawn[2, 0] = 9
    assert partings(drawn, run) == [(0, 5), (2, 0)]
    drawn[1, 3] = 8
    with pytest.raises(AssertionError, match=r"\(1, 3\)"):
        partings(drawn, run)
