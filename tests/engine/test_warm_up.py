"""The warm-up runs everything that ordinary requests run, before the first of them."""

from collections import defaultdict

import pytest
from spies import watch

from qwen_megakernel import TTSEngine
from qwen_megakernel.decoders import sampling
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.speech_options import Sampling
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder
from qwen_megakernel.vocoder.vocoder import MAX_TAIL_FRAMES_PER_PASS, Vocoder


@pytest.fixture
def frames_by_sampling(monkeypatch) -> dict[Sampling, int]:
    """The number of frames that decoders have drawn, by sampling."""
    frames: dict[Sampling, int] = defaultdict(int)
    launch = FrameDecoder.launch

    def counting_launch(self, slots, num_frames):
        result = launch(self, slots, num_frames)()
        frames[self._state(slots[0]).sampling] += result.num_frames[0]
        return lambda: result

    monkeypatch.setattr(FrameDecoder, "launch", counting_launch)
    return frames


@pytest.mark.parametrize("backend", ["torch", "cpu", "emulation"])
def test_a_decoder_has_drawn_greedily_and_at_random(frames_by_sampling, backend):
    """The first frame, which comes from the prompt, and a later one."""
    with TTSEngine.from_pretrained("tiny-random-base", backend=backend) as engine:
        warmed = dict(frames_by_sampling)
        own = engine._defaults.sampling
    assert own.talker.do_sample and own.predictor.do_sample
    greedy = own.override(do_sample=False, subtalker_do_sample=False)
    assert set(warmed) == {own, greedy} and min(warmed.values()) >= 2


def test_every_codebook_has_been_drawn_greedily_and_at_random(monkeypatch):
    draws = set()

    def note(logits, how, *, codebook, **address):
        draws.add((how.do_sample, codebook))

    watch(monkeypatch, sampling, "draw", note)
    with TTSEngine.from_pretrained("demo-voice", backend="torch") as engine:
        groups = engine.config.talker.num_code_groups
    assert draws == {(at_random, group) for at_random in (True, False) for group in range(groups)}


@pytest.mark.parametrize("model", ["tiny-random", "demo-voice"])
@pytest.mark.parametrize(
    ("backend", "vocoder", "sizes"),
    [
        ("torch", Vocoder, [1, 1, 1, 2, 4, 8, 10]),
        ("cpu", CpuVocoder, [2, MAX_TAIL_FRAMES_PER_PASS]),  # longer chunks are passes of this size
    ],
)
def test_native_code_runs_once_and_pytorch_per_size(monkeypatch, model, backend, vocoder, sizes):
    """Two frames greedily, the others at random."""
    chunks, draws = [], []

    def note_draws(engine, text, **options):
        draws.append((options["do_sample"], options["subtalker_do_sample"]))

    watch(monkeypatch, vocoder, "step", lambda _, codes, states: chunks.append(codes.shape[1]))
    watch(monkeypatch, TTSEngine, "synthesize", note_draws)
    TTSEngine.from_pretrained(model, backend=backend).close()
    assert (chunks, draws) == (sizes, [(False, False), (True, True)])
