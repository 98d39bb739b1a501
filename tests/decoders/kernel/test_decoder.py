"""The errors of `KernelDecoder`, its failures within a launch, and its layers, driven directly."""

import ctypes
import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import kernel_models as k
import numpy as np
import pytest
import torch
from fixtures import module_value
from tolerances import KERNEL_HIDDEN_F32

from qwen_megakernel.decoders.kernel import launcher, loading
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.kernel.library import check_tensor
from qwen_megakernel.decoders.layers import rotary
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.errors import (
    GenerationError,
    KernelTimeout,
    LaunchError,
    NoGPUError,
    TextTooLong,
    UnsupportedModel,
    UsageError,
)
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

GREEDY = Sampling.greedy()

checkpoint = module_value(lambda: k.checkpoint())


@pytest.fixture
def decoder(make_decoder, checkpoint) -> KernelDecoder:
    return make_decoder(KernelDecoder, checkpoint, max_positions=20)


def prompt(decoder: KernelDecoder, n: int, seed: int = 0) -> torch.Tensor:
    width = decoder.config.talker.stack.hidden_size
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def prefill(decoder: KernelDecoder, slot: int, embeds: torch.Tensor) -> None:
    made = Prefill(embeds, embeds[:0], prompt(decoder, 1)[0])
    decoder.prefill(slot, made, GREEDY, seed=0, part=0)


# ---- refused before launch


def test_dimensions_the_kernel_lacks_are_listed(make_decoder):
    config = k.small_config(talker={"head_dim": 40}, predictor={"hidden_size": 72})
    with pytest.raises(UnsupportedModel, match=r"talker head_dim 40 .* predictor hidden_size 72"):
        make_decoder(KernelDecoder, k.random_checkpoint(config))


def test_other_precisions_are_refused(make_decoder, checkpoint):
    with pytest.raises(UsageError, match="float16"):
        make_decoder(KernelDecoder, checkpoint, torch.float16)


def test_a_grid_that_cannot_be_resident_is_refused_and_does_not_hang(
    make_decoder, checkpoint, monkeypatch
):
    monkeypatch.setenv("EMULATION_SMS", "2")
    decoder = make_decoder(KernelDecoder, checkpoint, num_blocks=3)
    with pytest.raises(LaunchError, match=r"grid \(3 blocks\) was refused: another process"):
        k.start(decoder, 0, GREEDY, seed=1)
    # The grid has as many blocks as fit, and the driver refuses it.
    monkeypatch.setattr(decoder.launcher, "num_blocks", 2)
    monkeypatch.setattr(decoder.library._library, "qwen_tts_forward", lambda *_: 720)
    with pytest.raises(LaunchError, match=r"grid \(2 blocks\) was refused: .*\nCUDA error 720"):
        k.start(decoder, 0, GREEDY, seed=1)
    monkeypatch.setenv("EMULATION_SMS", "0")
    with pytest.raises(LaunchError, match=r"grid \(1 block\) was refused"):
        decoder.library.max_blocks()


def test_without_a_gpu_the_kernel_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NoGPUError, match="torch sees none"):
        loading.check_device(torch.device("cuda"))


def test_a_full_kv_cache_is_refused(decoder):
    k.start(decoder, 0, GREEDY, seed=1, positions=18)
    decoder.step([0], 3)  # the first frame needs no position
    with pytest.raises(UsageError, match="position 20; 1 more frames do not fit its 20"):
        decoder.step([0], 1)
    with pytest.raises(UsageError, match=r"prompt of 21 positions does not fit .* 20 positions"):
        prefill(decoder, 1, prompt(decoder, 21))
    with pytest.raises(UsageError, match=r"Positions 18 \.\. 20 do not fit"):
        decoder.forward(1, torch.zeros(3, dtype=torch.int32), first_position=18)


@pytest.mark.parametrize("bad", [-1, 128])
def test_forced_codes_outside_the_vocabulary_are_refused(decoder, bad):
    k.start(decoder, 0, GREEDY, seed=1)
    forced = torch.zeros((1, 1, 4), dtype=torch.int64)
    forced[0, 0, 2] = bad
    with pytest.raises(UsageError, match="outside the vocabularies"):
        decoder.step([0], 1, forced)


def test_a_slot_must_have_a_prompt(decoder):
    for use in (lambda: decoder.step([0], 1), lambda: decoder.add_text(0, prompt(decoder, 1))):
        with pytest.raises(UsageError, match="Slot 0 has no stream; call prefill"):
            use()
    with pytest.raises(UsageError, match="A prompt of 0 positions"):
        prefill(decoder, 0, prompt(decoder, 0))
    with pytest.raises(UsageError, match="Cannot step"):
        decoder.step([0, 0], 1)


def test_more_text_than_a_part_may_have_frames_is_refused(decoder):
    k.start(decoder, 0, GREEDY, seed=1)  # with 3 of the 20 rows
    decoder.add_text(0, prompt(decoder, 17))
    with pytest.raises(TextTooLong, match="has 21 rows; this engine draws at most 20 frames"):
        decoder.add_text(0, prompt(decoder, 1))


def test_check_tensor_names_expected_and_actual():
    good = torch.zeros(4, 8)
    assert check_tensor("x", good, (4, 8), torch.float32) is good
    with pytest.raises(UsageError, match=r"x is \[4, 8\] float32; the kernel needs \[8, 4\]"):
        check_tensor("x", good, (8, 4), torch.float32)
    with pytest.raises(UsageError, match="bfloat16"):
        check_tensor("x", good, (4, 8), torch.bfloat16)
    with pytest.raises(UsageError, match="contiguous"):
        check_tensor("x", good.T, (8, 4), torch.float32)


# ---- failures inside a launch


@pytest.mark.parametrize(("stack", "codebook"), [("talker", 0), ("predictor", 1)])
def test_logits_that_are_not_finite_end_their_own_stream_alone(
    decoder, monkeypatch, uncancelled, stack, codebook
):
    native_stream = decoder._native_stream

    def broken_stream(slot):
        stream = native_stream(slot)
        if slot == 1:  # dividing by this makes every score NaN
            sampling = getattr(stream, stack)
            sampling.do_sample, sampling.temperature = 1, math.nan
        return stream

    for slot in (0, 1, 3):
        k.start(decoder, slot, GREEDY, seed=1)
    decoder.step([0, 1, 3], 1)
    monkeypatch.setattr(decoder, "_native_stream", broken_stream)
    found = decoder.step([0, 1, 3], 3)
    assert found.num_frames == (3, 0, 3) and found.ended == (False,) * 3
    expected = uncancelled[1:4]
    np.testing.assert_array_equal(found.codes, np.stack([expected, 0 * expected, expected]))
    assert found.failures.keys() == {1}
    with pytest.raises(GenerationError, match=f"logits of codebook {codebook} are not finite"):
        raise found.failures[1]
    assert k.is_clean(decoder)
    with pytest.raises(UsageError, match="Slot 1 has no stream"):
        decoder.step([1], 1)


def test_a_barrier_that_expires_names_stage_and_layer(decoder):
    k.start(decoder, 0, GREEDY, seed=1)
    decoder.step([0], 1)
    decoder.launcher.timeout_seconds = 0.001
    k.lose_a_block(decoder)
    with pytest.raises(KernelTimeout, match=r"timed out after 0.001 s in stage input, layer 0"):
        decoder.step([0], 1)
    decoder.launcher.timeout_seconds = launcher.BARRIER_TIMEOUT_SECONDS
    with pytest.raises(UsageError, match="call prefill"):  # the stream was lost
        decoder.step([0], 1)
    k.start(decoder, 0, GREEDY, seed=1)  # a new stream works
    assert decoder.step([0], 2).num_frames == (2,)


def fail_a_prompt(decoder: KernelDecoder, slot: int) -> None:
    decoder.launcher.timeout_seconds = 0.001
    k.lose_a_block(decoder)
    prefill(decoder, slot, prompt(decoder, 3))  # it is only enqueued, so the call returns
    decoder.launcher.timeout_seconds = launcher.BARRIER_TIMEOUT_SECONDS


def test_a_prompt_whose_launch_fails_loses_its_stream_and_no_other(decoder):
    k.start(decoder, 2, GREEDY, seed=1)
    expected = decoder.step([2], 2).codes[0]
    k.start(decoder, 2, GREEDY, seed=1)
    fail_a_prompt(decoder, 1)
    k.start(decoder, 3, GREEDY, seed=1)  # a prompt after the failing one
    found = decoder.step([2, 1, 3], 2)
    assert found.num_frames == (2, 0, 2) and found.ended == (False,) * 3
    np.testing.assert_array_equal(found.codes, np.stack([expected, 0 * expected, expected]))
    assert found.failures.keys() == {1}
    with pytest.raises(KernelTimeout, match="in stage input"):
        raise found.failures[1]
    with pytest.raises(UsageError, match="Slot 1 has no stream"):
        decoder.step([1], 1)
    assert k.is_clean(decoder)


def test_a_failed_prompt_is_an_error_where_no_stream_is_left(decoder):
    fail_a_prompt(decoder, 1)
    with pytest.raises(KernelTimeout, match="in stage input"):
        decoder.step([1], 2)
    k.start(decoder, 1, GREEDY, seed=1)
    assert decoder.step([1], 2).num_frames == (2,)


def test_a_failed_prompt_is_not_the_fault_of_the_slots_next_stream(decoder, uncancelled):
    fail_a_prompt(decoder, 1)
    k.start(decoder, 1, GREEDY, seed=1)
    np.testing.assert_array_equal(decoder.step([1], 4).codes[0], uncancelled)
    assert k.is_clean(decoder)
    fail_a_prompt(decoder, 1)
    k.start(decoder, 0, GREEDY, seed=1)
    decoder.step([0], 1)  # this step finds the failure
    k.start(decoder, 1, GREEDY, seed=1)
    np.testing.assert_array_equal(decoder.step([1], 4).codes[0], uncancelled)


def test_what_is_not_finite_is_an_error_and_does_not_outlive_its_stream(decoder):
    prefill(decoder, 1, prompt(decoder, 3) * torch.nan)
    with pytest.raises(GenerationError, match=r"logits of codebook 0 are not finite"):
        decoder.step([1], 2)
    k.start(decoder, 1, GREEDY, seed=1)
    assert decoder.step([1], 2).num_frames == (2,)
    prefill(decoder, 1, prompt(decoder, 3) * torch.nan)
    with pytest.raises(GenerationError, match="not finite"):
        decoder.step([1], 2)
    k.start(decoder, 0, GREEDY, seed=1)
    fail_a_prompt(decoder, 1)  # its frames come from the slot's old state
    assert decoder.step([0, 1], 3).num_frames == (3, 0)


def test_prompts_may_be_more_than_there_are_control_blocks(decoder):
    fail_a_prompt(decoder, 2)
    for _ in range(3):
        for slot in (0, 1, 3):
            k.start(decoder, slot, GREEDY, seed=1)
    found = decoder.step([0, 1, 2, 3], 2)
    assert found.num_frames == (2, 2, 0, 2) and found.failures.keys() == {2}
    assert k.is_clean(decoder)


def test_a_step_that_is_never_waited_for_leaves_room_for_others(decoder, uncancelled):
    for _ in range(2 * len(decoder._buffers.controls)):
        k.start(decoder, 0, GREEDY, seed=1)
        decoder.launch([0], 1)
    k.start(decoder, 0, GREEDY, seed=1)
    np.testing.assert_array_equal(decoder.step([0], 4).codes[0], uncancelled)


# ---- cancelling


@pytest.fixture(scope="module")
def uncancelled(make_decoder, checkpoint) -> np.ndarray:
    """The codes [4, num_code_groups] of the stream that `k.start(.., GREEDY, seed=1)` begins."""
    decoder = make_decoder(KernelDecoder, checkpoint, max_positions=20)
    k.start(decoder, 0, GREEDY, seed=1)
    return decoder.step([0], 4).codes[0]


def assert_goes_on(decoder, first, expected):
    """Assert that after the `first` of the expected codes the rest come as if nothing happened."""
    (count,) = first.num_frames
    assert first.ended == (False,)
    np.testing.assert_array_equal(first.codes[0, :count], expected[:count])
    assert not first.codes[0, count:].any()
    if count < len(expected):
        rest = decoder.step([0], len(expected) - count)
        np.testing.assert_array_equal(rest.codes[0], expected[count:])
        assert rest.num_frames == (len(expected) - count,)


def test_cancel_at_any_moment_loses_no_frame(decoder, uncancelled):
    inject = decoder.library._library.emulation_inject
    address = ctypes.c_void_p(decoder._buffers.cancel.data_ptr())
    counts = set()
    for moment in range(1, 2000, 150):  # at which a waiting block sees the cancel
        k.start(decoder, 0, GREEDY, seed=1)
        inject(ctypes.c_ulonglong(moment), address, ctypes.c_uint(1))
        first = decoder.step([0], 4)
        counts.add(first.num_frames[0])
        assert k.is_clean(decoder)
        assert_goes_on(decoder, first, uncancelled)
    assert len(counts) > 2  # some cancels came at once, some too late


@pytest.mark.parametrize("kind", [KernelDecoder, PlainDecoder])
def test_cancel_between_steps_empties_the_next_one(make_decoder, checkpoint, kind, uncancelled):
    decoder = make_decoder(kind, checkpoint)
    k.start(decoder, 0, GREEDY, seed=1)
    decoder.cancel()
    first = decoder.step([0], 4)
    assert first.num_frames == (0,)
    assert_goes_on(decoder, first, uncancelled)


@pytest.mark.parametrize("kind", [KernelDecoder, PlainDecoder])
def test_cancel_from_another_thread_ends_a_long_step(make_decoder, checkpoint, kind, uncancelled):
    # No end but the cancel. A GPU draws a frame of this model in some tenths of a millisecond.
    frames = 16_000
    decoder = make_decoder(kind, checkpoint, max_positions=frames + 100)
    for slot in (0, 3):
        k.start(decoder, slot, GREEDY, seed=1)
    canceller = threading.Timer(0.1, decoder.cancel)
    canceller.start()
    stopped = decoder.step([3, 0], frames, torch.zeros((2, frames, 4), dtype=torch.int64))
    canceller.join()
    assert max(stopped.num_frames) < frames // 2 and stopped.ended == (False, False)
    k.start(decoder, 0, GREEDY, seed=1)
    np.testing.assert_array_equal(decoder.step([0], 4).codes[0], uncancelled)


# ---- the layers, driven directly


def test_a_token_and_its_prepared_embedding_are_the_same_input(decoder):
    tokens = torch.tensor([5, 70, 9], dtype=torch.int32)
    by_token = decoder.forward(0, tokens, first_position=0)
    embeds = decoder.embeddings.codec(tokens.long())
    sentinel = torch.tensor([-1, 70, -1], dtype=torch.int32)
    mixed = decoder.forward(0, sentinel, embeds, first_position=0)
    assert torch.equal(by_token, mixed)


def test_the_number_of_layers_is_chosen_at_run_time(make_decoder):
    checkpoint = k.random_checkpoint(k.small_config(talker={"num_layers": 3}))
    decoder = make_decoder(KernelDecoder, checkpoint)
    for layers in (1, 2, 3):
        stack = replace(checkpoint.config.talker.stack, num_layers=layers)
        config = replace(checkpoint.config, talker=replace(checkpoint.config.talker, stack=stack))
        cut = SimpleNamespace(config=config, talker=checkpoint.talker)
        shallow = make_decoder(PlainDecoder, cut)
        x = prompt(decoder, 6)
        expected = shallow.talker.forward(x, shallow.talker.new_cache(8), 0)
        ours = k.forward(decoder, x, num_layers=layers)
        assert (ours - expected).abs().max() < KERNEL_HIDDEN_F32


@pytest.mark.parametrize("stack", ["talker", "predictor"])
def test_step_by_step_equals_all_positions_at_once(decoder, stack):
    x = prompt(decoder, 4)
    whole = k.forward(decoder, x, stack=stack)
    rows = [k.forward(decoder, row[None], first=i, stack=stack) for i, row in enumerate(x)]
    # One position of the talker is attended to as in a frame: its sums have another order.
    limit = KERNEL_HIDDEN_F32 if stack == "talker" else 0
    assert (torch.cat(rows) - whole).abs().max() <= limit


def test_three_equal_positions_are_plain_rope_bit_for_bit(decoder, make_decoder, checkpoint):
    x = prompt(decoder, 6)
    positions = torch.arange(6, dtype=torch.int32).expand(3, 6)
    plain_stack = replace(checkpoint.config.talker.stack, mrope_section=None)
    config = replace(checkpoint.config, talker=replace(checkpoint.config.talker, stack=plain_stack))
    plain = make_decoder(KernelDecoder, type(checkpoint)(config=config, talker=checkpoint.talker))
    expected = k.forward(plain, x)
    assert torch.equal(k.forward(decoder, x), expected)
    assert torch.equal(k.forward(decoder, x, rope_positions=positions), expected)


@pytest.mark.parametrize("n", [2, 4])  # up to and above the rows for which every block attends
def test_the_time_position_alone_turns_the_predictor(decoder, n):
    x = prompt(decoder, n)
    own = torch.arange(n, dtype=torch.int32)

    def turned(time):
        positions = torch.stack([time, own.flip(0), torch.zeros_like(own)])
        return k.forward(decoder, x, rope_positions=positions, stack="predictor")

    assert torch.equal(turned(own), k.forward(decoder, x, stack="predictor"))
    assert not torch.equal(turned(2 * own % 4), turned(own))


def test_three_different_positions_turn_their_sections(decoder, make_decoder, checkpoint):
    reference = make_decoder(PlainDecoder, checkpoint)
    x = prompt(decoder, 6)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 9], [7, 3, 3, 3, 1, 0]])
    stack = reference.talker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "qwen_megakernel.decoders.layers.rotary",
            lambda config, _, dtype: rotary(config, positions, dtype),
        )
        expected = stack.forward(x, stack.new_cache(8), 0)
    ours = k.forward(decoder, x, rope_positions=positions.int())
    assert (ours - expected).abs().max() < KERNEL_HIDDEN_F32
    assert (k.forward(decoder, x) - expected).abs().max() > 1000 * KERNEL_HIDDEN_F32
