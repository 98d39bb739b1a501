"""The graph decoder (decoders/graph) against the plain one, and as an oracle of the kernel.

On a CPU its functions run directly; on a GPU (marker `gpu`) they are recorded as graphs.
"""

from pathlib import Path
from types import SimpleNamespace

import kernel_models as k
import numpy as np
import pytest
import torch
from fixtures import module_value
from host_watch import NoHostMode
from spies import results_of, watch
from tiny_speech import tiny_engine
from tolerances import KERNEL_LOGITS_F32

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.decoders.graph import model
from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import GenerationError, TextTooLong, UsageError
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

GREEDY, SAMPLED = Sampling.greedy(), Sampling()
LOVES_REPEATS = Sampling.greedy().override(repetition_penalty=0.4)


@pytest.fixture(scope="module")
def pair(make_decoder):
    """pair(checkpoint, **options) returns the graph decoder and the plain one, on equal weights."""
    return lambda checkpoint, **options: [
        make_decoder(kind, checkpoint, **options) for kind in (GraphDecoder, PlainDecoder)
    ]


def begin(decoders, slots, samplings, seed=5):
    for index, (slot, sampling) in enumerate(zip(slots, samplings, strict=True)):
        for decoder in decoders:
            k.start(decoder, slot, sampling, seed=seed + index, positions=7 + 5 * index)


@pytest.mark.parametrize("shape", k.SHAPES)
@pytest.mark.parametrize("eos_gain", [1.0, 2.5])
def test_codes_equal_the_plain_decoders_however_each_slot_draws(pair, shape, eos_gain):
    decoders = pair(k.checkpoint(shape, eos_gain=eos_gain), num_slots=6)
    slots = [4, 0, 2, 5]
    begin(decoders, slots, [GREEDY, SAMPLED, k.NARROW, LOVES_REPEATS])
    result = k.step_alike(*decoders, slots, 13)
    assert len(np.unique(result.codes)) > 20
    if eos_gain > 1 and shape != "projected":
        assert any(result.ended) and len(set(result.num_frames)) > 2


@pytest.mark.parametrize("name", ["tiny-random", "tiny-random-base-1.7b"])
def test_codes_equal_the_plain_decoders_on_a_checkpoint(pair, load_checkpoint, name):
    decoders = pair(load_checkpoint(name))
    begin(decoders, [1, 3], [SAMPLED, GREEDY])
    k.step_alike(*decoders, [1, 3], 6)


@pytest.mark.parametrize("shape", ["small", pytest.param("projected", marks=pytest.mark.ci)])
def test_codes_equal_the_kernels(make_decoder, shape):
    """The two decoders share no code between the embedding and the codes."""
    checkpoint = k.checkpoint(shape)
    decoders = [make_decoder(kind, checkpoint) for kind in (GraphDecoder, KernelDecoder)]
    begin(decoders, [0, 2, 3], [SAMPLED, k.NARROW, GREEDY])
    k.step_alike(*decoders, [0, 2, 3], 6)


def logits_of(decoder, slot, neighbours=(), num_frames=5):
    for index, each in enumerate((slot, *neighbours)):
        k.start(decoder, each, SAMPLED, seed=3 + 10 * index, positions=5 + 60 * index)
    taps = {}
    result = decoder.step([slot, *neighbours], num_frames, taps=taps)
    return torch.from_numpy(result.codes[0]), taps["talker"][0], taps["predictor"][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbours_and_the_slot_do_not_change_a_bit(make_decoder, dtype):
    decoder = make_decoder(GraphDecoder, k.checkpoint("projected"), dtype, max_positions=600)
    alone = logits_of(decoder, 1)
    # The second neighbour's context is longer than the one that attention reads for the others.
    for slot, neighbours in ((3, ()), (1, (0,)), (2, (1, 3, 0))):
        for ours, expected in zip(logits_of(decoder, slot, neighbours), alone, strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("num_positions", [15, 16, 17, 250, 300])
def test_padded_prompts_and_longer_contexts_change_nothing(pair, num_positions):
    decoders = pair(k.checkpoint(), max_positions=512)
    for decoder in decoders:
        k.start(decoder, 0, GREEDY, seed=9, positions=400)  # its keys and values must not be read
        k.start(decoder, 0, GREEDY, seed=1, positions=num_positions)
    k.step_alike(*decoders, [0], 9)


def test_streams_may_pause_join_and_be_cut_anywhere(pair):
    decoders = pair(k.checkpoint())
    begin(decoders, [0, 3], [SAMPLED, k.NARROW])
    k.step_alike(*decoders, [0, 3], 3)
    begin(decoders, [1], [SAMPLED], seed=8)
    k.step_alike(*decoders, [1, 3], 2)
    k.step_alike(*decoders, [0], 5)
    k.step_alike(*decoders, [1, 0, 3], 7)


def test_logits_agree_under_teacher_forcing(pair):
    decoders = pair(k.checkpoint("wide", eos_gain=9.0))
    forced = torch.randint(0, 128, (1, 6, 4), generator=torch.Generator().manual_seed(9))
    begin(decoders, [2], [GREEDY])
    taps = {}, {}
    ours = decoders[0].step([2], 6, forced, taps[0])
    theirs = decoders[1].step([2], 6, forced, taps[1])
    assert ours.num_frames == theirs.num_frames == (6,) and not any(ours.ended)
    np.testing.assert_array_equal(ours.codes, theirs.codes)
    assert taps[1]["talker"].shape[:2] == (1, 6) and taps[1]["predictor"].shape[:3] == (1, 6, 3)
    for name, expected in taps[1].items():
        assert (taps[0][name] - expected).abs().max() < KERNEL_LOGITS_F32


@pytest.mark.parametrize("kind", [GraphDecoder, KernelDecoder, PlainDecoder])
def test_logits_of_frames_that_are_not_drawn_have_a_place_too(make_decoder, kind):
    decoder = make_decoder(kind, k.checkpoint(eos_gain=9.0))
    begin([decoder], [1], [GREEDY])
    decoder.cancel()
    taps = {}
    assert decoder.step([1], 2, taps=taps).num_frames == (0,)
    ends = decoder.step([1], 30, taps=taps)  # the same mapping takes this step's logits
    assert ends.ended == (True,) and ends.num_frames[0] < 29
    assert taps["talker"].shape == (1, 30, 1152) and taps["predictor"].shape == (1, 30, 3, 128)
    assert taps["talker"][0, : ends.num_frames[0]].isfinite().all()


def test_logits_that_are_no_numbers_end_their_stream_and_nothing_else(make_decoder):
    decoder = make_decoder(GraphDecoder, k.checkpoint())
    begin([decoder], [0, 1, 2], [SAMPLED] * 3)
    expected = decoder.step([0, 2], 6).codes
    begin([decoder], [0, 1, 2], [SAMPLED] * 3)
    decoder.model.hidden[1] = torch.nan
    result = decoder.step([0, 1], 6)  # two launches
    assert list(result.failures) == [1] and result.num_frames == (6, 0)
    assert "codebook 0 are not finite" in str(result.failures[1]) and not result.codes[1].any()
    np.testing.assert_array_equal(result.codes[0], expected[0])
    with pytest.raises(UsageError, match="no stream"):
        decoder.step([1], 1)
    np.testing.assert_array_equal(decoder.step([2], 6).codes[0], expected[1])
    k.start(decoder, 1, SAMPLED, seed=7, positions=17)
    np.testing.assert_array_equal(decoder.step([1], 6).codes[0], expected[1])
    begin([decoder], [0, 1], [SAMPLED] * 2)
    decoder.model.hidden[:2] = torch.nan
    with pytest.raises(GenerationError, match="codebook 0 are not finite"):
        decoder.launch([0, 1], 2)()
    with pytest.raises(UsageError, match="no stream"):
        decoder.step([0], 1)


def test_cancel_ends_a_step_between_frames_and_loses_none(make_decoder, monkeypatch):
    decoder = make_decoder(GraphDecoder, k.checkpoint())
    begin([decoder], [0], [SAMPLED])
    expected = decoder.step([0], 7).codes
    begin([decoder], [0], [SAMPLED])
    run, calls = decoder._graphs.run, []

    def cancelling(key, work):
        calls.append(key)
        run(key, work)
        if len(calls) == 2:
            decoder.cancel()

    monkeypatch.setattr(decoder._graphs, "run", cancelling)
    first = decoder.step([0], 7)
    assert first.num_frames == (2,) and not first.ended[0]
    monkeypatch.setattr(decoder._graphs, "run", run)
    decoder.cancel()
    assert decoder.step([0], 5).num_frames == (0,)
    rest = decoder.step([0], 5)
    np.testing.assert_array_equal(np.hstack((first.codes[:, :2], rest.codes)), expected)


def test_what_cannot_work_is_refused_before_any_work(make_decoder):
    decoder = make_decoder(GraphDecoder, k.checkpoint())
    with pytest.raises(UsageError, match="no stream"):
        decoder.step([0], 1)
    for count in (0, 161):
        long = Prefill(torch.zeros(count, 64), torch.zeros(0, 64), torch.zeros(64))
        with pytest.raises(UsageError, match=f"{count} positions"):
            decoder.prefill(0, long, GREEDY, seed=0, part=0)
    begin([decoder], [0], [GREEDY])
    with pytest.raises(UsageError, match="do not fit its 160 positions"):
        decoder.step([0], 155)
    with pytest.raises(TextTooLong, match="at most 160 frames"):
        decoder.add_text(0, torch.zeros(158, 64))
    with pytest.raises(UsageError, match="outside the vocabularies"):
        decoder.step([0], 1, torch.full((1, 1, 4), 128))
    with pytest.raises(UsageError, match="float16"):
        make_decoder(GraphDecoder, k.checkpoint(), torch.float16)


# ---- on a CPU: conditions for recording a graph


def hollow_decoder(config):
    """A decoder whose tensors have no values: code that reads one fails."""
    with torch.device("meta"):
        weights = {
            name.removeprefix(TALKER_PREFIX): torch.empty(shape)
            for name, shape in model_tensors(config).items()
        }
    return GraphDecoder(
        SimpleNamespace(config=config, talker=weights),
        DecoderSizes(3, 160, device=torch.device("meta"), dtype=torch.bfloat16),
    )


hollow = module_value(lambda: hollow_decoder(k.small_config(**k.SHAPES["projected"])))


@pytest.mark.parametrize("key", [(0, False, False), (128, False, True), (160, True, True)])
def test_a_frame_never_waits_for_the_device(hollow, key):
    with NoHostMode("meta") as mode, torch.inference_mode():
        hollow.model.run_frame(*key)
    assert mode.counts["index_copy_"] == 1 and sum(mode.counts.values()) > 200


def test_a_prompt_never_waits_for_the_device(hollow):
    with NoHostMode("meta"), torch.inference_mode():
        hollow.model.run_prompt(32)


def test_attention_is_never_cudnns(hollow, monkeypatch):
    allowed = []

    def note(*_, **__):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())

    watch(monkeypatch, torch.nn.functional, "scaled_dot_product_attention", note)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with torch.inference_mode():
        hollow.model.run_prompt(32)
        hollow.model.run_frame(128, False, False)
    assert len(allowed) > 2 and not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before  # other code may use cuDNN's attention


def test_on_a_cpu_the_choice_of_attention_is_the_hosts(pair, monkeypatch):
    turned = results_of(monkeypatch, model, "sdpa_kernel")
    decoder = pair(k.checkpoint())[0]
    k.start(decoder, 0, GREEDY, seed=1)
    decoder.step([0], 1)
    assert bool(turned) == (decoder.device.type == "cuda")


def test_the_operations_of_a_frame_are_those_the_documentation_tells():
    decoder = hollow_decoder(parse_model_config(model_config("random-0.6b")))
    with NoHostMode("meta") as mode, torch.inference_mode():
        decoder.model.run_frame(128, False, False)
    page = (Path(__file__).parents[3] / "docs" / "kernel.md").read_text(encoding="utf-8")
    assert f"{sum(mode.counts.values()):,} PyTorch operations a frame" in page


@pytest.mark.parametrize("planted", ["item", "mask", "host"])
def test_the_watch_notices_what_a_graph_cannot_hold(hollow, monkeypatch, planted):
    def draw(logits, *_, **__):
        if planted == "item":
            return int(logits.argmax())
        if planted == "mask":
            return logits[logits > 0]
        return torch.zeros(3).to(logits.device)

    monkeypatch.setattr("qwen_megakernel.decoders.graph.sampling.draw", draw)
    with pytest.raises((AssertionError, RuntimeError)), NoHostMode("meta"), torch.inference_mode():
        hollow.model.run_frame(0, False, False)


def test_a_step_waits_once_whatever_its_frames_and_streams(make_decoder, monkeypatch):
    from qwen_megakernel.decoders.graph import decoder as module

    decoder = make_decoder(GraphDecoder, k.checkpoint())
    waits, download = [], module.download

    def logged(values):
        wait = download(values)
        return lambda: waits.append(1) or wait()

    monkeypatch.setattr(module, "download", logged)
    uploads = results_of(monkeypatch, module, "upload")
    replays = results_of(monkeypatch, decoder._graphs, "run")
    begin([decoder], [0, 1, 3], [SAMPLED] * 3)
    assert not waits and len(uploads) == len(replays) == 3  # one for each prompt
    decoder.step([0, 1, 3], 4)
    assert len(waits) == 1 and len(uploads) == 4 and len(replays) == 7


TASKS = {
    "tiny-random": {"voice": "vivian"},
    "tiny-random-1.7b": {"voice": "vivian", "text_feed": "full"},
    "tiny-random-base": {},
    "tiny-random-design-1.7b": {"instruct": "Speak slowly."},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_speaks_as_with_the_plain_decoder(name):
    spoken = []
    for backend in ("graph", "torch"):
        with tiny_engine(name, backend=backend, device="cpu") as tts:
            assert tts.backend == backend
            speech = tts.synthesize("Hello there, you.", seed=3, max_frames=10, **TASKS[name])
            spoken.append(speech.codes)
    assert len(spoken[0]) > 1
    np.testing.assert_array_equal(*spoken)
