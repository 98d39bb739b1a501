"""The vocoder as CUDA graphs (graph_vocoder.py) against `Vocoder`.

On a CPU its functions run directly; on a GPU they are recorded as graphs.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from commands import ROOT
from host_watch import NoHostMode
from tolerances import AUDIO_F32, AUDIO_GPU_F32, AUDIO_SAME_CPU_F32
from torch import Tensor
from vocoder_toys import random_codes

from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.random_configs import speech_tokenizer_config
from qwen_megakernel.checkpoint.tensor_shapes import codec_tensors
from qwen_megakernel.errors import UsageError
from qwen_megakernel.vocoder import layers
from qwen_megakernel.vocoder.graph_vocoder import MAX_FRAMES, MAX_STREAMS, GraphVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs an NVIDIA GPU; torch sees none"
    ),
]


@pytest.fixture(scope="module")
def plain(load_checkpoint: Callable[[str], Any]) -> Vocoder:
    loaded = load_checkpoint("tiny-random")
    return Vocoder(loaded.codec_config, loaded.codec_decoder)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def graphs(request: pytest.FixtureRequest, load_checkpoint: Callable[[str], Any]) -> GraphVocoder:
    loaded = load_checkpoint("tiny-random")
    return GraphVocoder(loaded.codec_config, loaded.codec_decoder, request.param)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    tolerance = AUDIO_GPU_F32 if ours.is_cuda else AUDIO_SAME_CPU_F32
    # Samples are at most 1; the values of a state are larger, and so are their roundings.
    scale = theirs.abs().max().clamp(min=1)
    assert (ours.cpu() - theirs).abs().max() <= tolerance * scale


@pytest.mark.parametrize("num_streams", [1, 2, 3, 5])
def test_any_chunks_give_the_vocoders_samples_and_states(graphs, plain, num_streams):
    codes, draw = random_codes(plain, num_streams, 30), random.Random(num_streams)
    ours, theirs = ([v.new_state() for _ in codes] for v in (graphs, plain))
    storage = [state.data_ptr() for state in ours]
    start = 0
    while start < 30:
        chunk = codes[:, start : start + draw.randint(1, MAX_FRAMES)]
        assert_same(graphs.step(chunk, ours), plain.step(chunk, theirs))
        start += chunk.shape[1]
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine[None], other[None])
    assert [state.data_ptr() for state in ours] == storage


def test_a_stream_alone_gives_the_vocoders_bits(graphs, plain):
    if graphs.device.type == "cuda":
        pytest.skip("a CPU's bits")
    codes = random_codes(plain, 1, 24)
    ours, theirs = graphs.new_state(), plain.new_state()
    for chunk in codes.split((1, 2, 4, 8, 9), dim=1):
        assert torch.equal(graphs.step(chunk, [ours]), plain.step(chunk, [theirs]))
    assert torch.equal(ours, theirs)


def test_streams_at_different_positions_share_a_graph(graphs, plain):
    codes = random_codes(plain, 3, 20)
    ours, theirs = ([v.new_state() for _ in codes] for v in (graphs, plain))
    for row, position in enumerate((0, 4, 11)):
        for vocoder, states in ((graphs, ours), (plain, theirs)):
            for frame in range(position):
                vocoder.step(codes[row : row + 1, frame : frame + 1], [states[row]])
    chunk = codes[:, :4]
    assert_same(graphs.step(chunk, ours), plain.step(chunk, theirs))


@pytest.mark.parametrize(
    ("num_streams", "num_frames"), [(1, MAX_FRAMES + 1), (MAX_STREAMS + 2, 1), (1, 40)]
)
def test_more_than_a_graph_holds_takes_turns(graphs, plain, num_streams, num_frames):
    codes = random_codes(plain, num_streams, num_frames)
    ours, theirs = ([v.new_state() for _ in codes] for v in (graphs, plain))
    parts = [plain.step(part, theirs) for part in codes.split(MAX_FRAMES, dim=1)]
    assert_same(graphs.step(codes, ours), torch.cat(parts, dim=1))


def test_samples_outlive_the_next_chunk(graphs):
    codes, state = random_codes(graphs, 1, 4), graphs.new_state()
    first = graphs.step(codes[:, :2], [state])
    kept = first.clone()
    graphs.step(codes[:, 2:], [state])
    assert torch.equal(first, kept)


def test_a_warmed_state_goes_on(graphs, plain):
    codes = random_codes(plain, 1, 30)
    ours, theirs = graphs.new_state(), plain.new_state()
    for vocoder, state in ((graphs, ours), (plain, theirs)):
        vocoder.warm(codes[0, :24], state)
    assert_same(graphs.step(codes[:, 24:], [ours]), plain.step(codes[:, 24:], [theirs]))


def test_bad_codes_are_refused_before_any_work(graphs):
    codes, state = random_codes(graphs, 1, 4), graphs.new_state()
    codes[0, 2, 1] = -1
    with pytest.raises(UsageError, match="Code -1 is outside"):
        graphs.step(codes, [state])
    assert not state.any()


def test_recording_covers_every_chunk_of_the_slots_there_are(graphs, monkeypatch):
    keys = []
    monkeypatch.setattr(graphs._graphs, "run", lambda key, work: keys.append(key))
    graphs.record(3, 10)
    assert sorted(keys) == [(rows, frames) for rows in (1, 2, 4) for frames in range(1, 11)]
    keys.clear()
    for streams in (1, 2, 3):
        for frames in range(1, 11):
            codes = random_codes(graphs, streams, frames)
            graphs.step(codes, [graphs.new_state() for _ in codes])
    assert set(keys) == {(rows, frames) for rows in (1, 2, 4) for frames in range(1, 11)}


@pytest.mark.parametrize(("num_streams", "num_frames"), [(1, 1), (2, 3), (4, 12)])
def test_a_chunk_never_waits_for_the_device(load_checkpoint, num_streams, num_frames):
    loaded = load_checkpoint("tiny-random")
    hollow = GraphVocoder(loaded.codec_config, loaded.codec_decoder, "meta")
    with NoHostMode("meta") as mode, torch.inference_mode():
        hollow.run_chunk(num_streams, num_frames)
    assert sum(mode.counts.values()) > 100


def test_the_operations_of_a_chunk_do_not_grow_with_streams_and_frames(load_checkpoint):
    loaded = load_checkpoint("tiny-random")
    hollow = GraphVocoder(loaded.codec_config, loaded.codec_decoder, "meta")
    counts = set()
    for key in ((1, 1), (1, 8), (16, 8)):
        with NoHostMode("meta") as mode, torch.inference_mode():
            hollow.run_chunk(*key)
        counts.add(sum(mode.counts.values()))
    assert len(counts) == 1


@pytest.mark.parametrize("num_streams", [1, 3])
def test_all_taps_of_a_depthwise_convolution_are_the_taps_one_by_one(num_streams):
    generator = torch.Generator().manual_seed(2)
    x, taps = (
        torch.randn(n, *rest, 6, generator=generator) for n, *rest in ((11, num_streams), (7,))
    )
    bias = torch.randn(6, generator=generator)
    ours = layers.sum_channels_at_once(x, taps, bias)
    theirs = layers._sum_channels(x, taps, bias)
    assert ours.shape == theirs.shape == (5, num_streams, 6)
    assert (ours - theirs).abs().max() < AUDIO_F32


@pytest.mark.parametrize(("num_taps", "dilation"), [(3, 1), (7, 1), (7, 3), (7, 9)])
@pytest.mark.parametrize("num_streams", [1, 3])
def test_all_taps_at_once_are_the_taps_one_by_one(num_taps, dilation, num_streams):
    generator = torch.Generator().manual_seed(1)
    num_steps = 5
    x = torch.randn(num_steps + (num_taps - 1) * dilation, num_streams, 6, generator=generator)
    taps = torch.randn(num_taps, 6, 4, generator=generator)
    bias = torch.randn(4, generator=generator)
    for each in (bias, None):
        ours = layers.sum_taps_at_once(x, taps, each, num_steps, dilation)
        theirs = layers._sum_taps(x, taps, each, num_steps, dilation)
        assert (ours - theirs).abs().max() < AUDIO_F32


def test_a_gpus_operations_give_the_vocoders_samples_and_states(graphs, plain, monkeypatch):
    """The operations for a GPU run on this CPU here."""
    codes = random_codes(plain, 2, 7)
    ours, theirs = ([v.new_state() for _ in codes] for v in (graphs, plain))
    expected = plain.step(codes, theirs)
    taken = []
    monkeypatch.setattr(layers, "is_on_gpu", lambda x: taken.append(x) or True)
    tolerance = AUDIO_F32 if graphs.device.type == "cpu" else AUDIO_GPU_F32
    found = graphs.step(codes, ours)
    assert taken and (found.cpu() - expected).abs().max() <= tolerance
    for own, other in zip(ours, theirs, strict=True):
        scale = other.abs().max().clamp(min=1)
        assert (own.cpu() - other).abs().max() <= tolerance * scale


def test_a_frame_is_as_many_operations_as_the_log_says():
    config = parse_codec_config(speech_tokenizer_config("random-0.6b"))
    tensors = {
        name.removeprefix("decoder."): torch.empty(shape, device="meta")
        for name, shape in codec_tensors(config).items()
        if name.startswith("decoder.")
    }
    hollow = GraphVocoder(config, tensors, "meta")
    with NoHostMode("meta") as mode, torch.inference_mode():
        hollow.run_chunk(1, 1)
    text = (ROOT / "benchmarks" / "LOG.md").read_text()
    assert f"{sum(mode.counts.values())} operations of PyTorch" in text
    assert mode.counts["snake"] == 29
