"""The native CPU decoder: its codes equal the plain decoder's, with any threads and neighbours."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from native_decoding import MODES, assert_same, begin, stored
from tolerances import LOGITS_F32, LOGITS_INT8_RMS

from qwen_megakernel.decoders.cpu.decoder import check_config
from qwen_megakernel.errors import UnsupportedModel

MAX_NEAR_TIES = 1  # of some hundred codes of a speech
MODELS = ("tiny-random", "tiny-random-base-1.7b", "demo-voice")


# Forms that differ from another one by where they stand are for CI.
FORMS = [
    *(None, "bfloat16", "int8-groups-heads", "int4-int8-heads"),
    *(
        pytest.param(form, marks=pytest.mark.ci)
        for form in (
            "float32",
            "float16",
            "int8",
            "int8-talker",
            "int8-heads",
            "int8-groups",
            "int4",
            "int6",
        )
    ),
]


@pytest.mark.parametrize("weights", FORMS)
@pytest.mark.parametrize("model", MODELS)
def test_codes_are_the_plain_decoders(load_checkpoint, native, plain, prompt, model, weights):
    checkpoint = stored(load_checkpoint(model), weights)
    fast, slow = native(checkpoint), plain(checkpoint)
    for name, sampling in MODES.items():
        for decoder in (fast, slow):
            begin(decoder, prompt(checkpoint), sampling)
        want = slow.step([0], 20, taps=(of_slow := {}))
        if name == "greedy" or not (weights or "").startswith("int"):
            assert_same(fast.step([0], 20), want)
            continue
        # Rounding activations to 16 bits can decide draws that are nearly tied; this happened once.
        # Each code is drawn after the plain decoder's codes, so one difference causes no others.
        count = want.num_frames[0]
        codes = torch.from_numpy(want.codes[:, :count])
        got = fast.step([0], count, codes, taps := {})
        assert (got.codes != want.codes[:, :count]).sum() <= MAX_NEAR_TIES
        for part, logits in of_slow.items():
            assert (taps[part] - logits[:, :count]).square().mean().sqrt() < LOGITS_INT8_RMS


@pytest.mark.parametrize(
    ("weights", "limit"),
    [
        *[(form, None) for form in (None, "bfloat16")],
        *[(form, LOGITS_INT8_RMS) for form in ("int8", "int8-heads", "int8-groups")],
        ("int8-groups-heads", LOGITS_INT8_RMS),
        *[(form, LOGITS_INT8_RMS) for form in ("int4", "int4-int8", "int4-talker-heads", "int6")],
    ],
)
def test_forced_logits_are_those_of_the_plain_decoder(
    load_checkpoint, native, plain, prompt, weights, limit
):
    checkpoint = stored(load_checkpoint("tiny-random-base-1.7b"), weights)
    groups = checkpoint.config.talker.num_code_groups
    forced = torch.randint(0, 64, (1, 5, groups), generator=torch.Generator().manual_seed(1))
    taps = {}
    for make in (native, plain):
        decoder, found = make(checkpoint), {}
        begin(decoder, prompt(checkpoint))
        result = decoder.step([0], 5, forced, found)
        assert result.num_frames == (5,)
        taps[make] = found
    for name, logits in taps[plain].items():
        if limit:
            assert (taps[native][name] - logits).square().mean().sqrt() < limit
        else:
            torch.testing.assert_close(taps[native][name], logits, atol=LOGITS_F32, rtol=0)


@pytest.mark.parametrize("weights", [None, "int8", "int8-groups", "int4", "int6"])
def test_neither_threads_nor_company_change_a_bit(load_checkpoint, native, prompt, weights):
    checkpoint = stored(load_checkpoint("tiny-random"), weights)
    num_slots, found = 7, []
    for num_threads in (1, 2, 3, os.cpu_count() + 2):
        decoder = native(checkpoint, num_slots, num_threads)
        for slot in range(num_slots):
            begin(decoder, prompt(checkpoint, slot), MODES["sampled"], slot, seed=slot)
        taps = {}
        decoder.step(range(num_slots), 2, None, taps)
        decoder.step([1, 4], 3)  # two streams get ahead of the others
        late = decoder.step(range(num_slots), 2)
        found.append((taps["talker"], taps["predictor"], late.codes))
    alone = native(checkpoint, 1, 1)
    for slot in range(num_slots):
        begin(alone, prompt(checkpoint, slot), MODES["sampled"], seed=slot)
        taps = {}
        alone.step([0], 2, None, taps)
        if slot in (1, 4):
            alone.step([0], 3)
        codes = alone.step([0], 2).codes
        for talker, predictor, late in found:
            assert torch.equal(talker[slot], taps["talker"][0])
            assert torch.equal(predictor[slot], taps["predictor"][0])
            np.testing.assert_array_equal(late[slot], codes[0])


@pytest.mark.ci
@pytest.mark.parametrize("weights", [None, "int8-groups", "int4-int8"])
def test_bits_are_the_same_for_any_threads_and_slots(load_checkpoint, native, prompt, weights):
    checkpoint = stored(load_checkpoint("tiny-random"), weights)
    prompts = [prompt(checkpoint, slot, num_positions=5 + 13 * slot) for slot in range(8)]
    expected = None
    for num_threads in range(1, 9):
        decoder = native(checkpoint, 8, num_threads)
        for num_slots in range(8, 0, -1):
            for slot in range(num_slots):
                begin(decoder, prompts[slot], MODES["sampled"], slot, seed=slot)
            taps = {}
            codes = decoder.step(range(num_slots), 2, None, taps).codes
            found = codes, taps["talker"].numpy(), taps["predictor"].numpy()
            expected = expected or found
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs[:num_slots])


def test_two_decoders_at_once_draw_the_codes_of_each_alone(load_checkpoint, native, prompt):
    checkpoint = load_checkpoint("demo-voice")
    decoders = [native(checkpoint), native(checkpoint)]
    prompts = [prompt(checkpoint, seed, num_text=20) for seed in (0, 1)]
    forced = torch.zeros((1, 1, checkpoint.config.talker.num_code_groups), dtype=torch.int32)

    def speak(index) -> list:
        begin(decoders[index], prompts[index], MODES["sampled"], seed=index)
        return [decoders[index].step([0], 1, forced).codes.tobytes() for _ in range(20)]

    alone = [speak(0), speak(1)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            assert list(threads.map(speak, (0, 1))) == alone


def test_an_open_text_goes_on_as_a_whole_one(load_checkpoint, native, prompt):
    checkpoint = load_checkpoint("tiny-random")
    whole, late = (native(checkpoint) for _ in range(2))
    prefill = prompt(checkpoint)
    begin(whole, prefill)
    want = whole.step([0], 5).codes
    begin(late, replace(prefill, trailing_text=prefill.trailing_text[:1]), text_open=True)
    got = [late.step([0], 2).codes]
    assert late.frames_ready(0) == 0
    late.add_text(0, prefill.trailing_text[1:])
    late.close_text(0)
    got.append(late.step([0], 3).codes)
    np.testing.assert_array_equal(np.concatenate(got, axis=1), want)


def test_cancel_at_any_moment_loses_no_frame(load_checkpoint, native, prompt):
    checkpoint = load_checkpoint("demo-voice")
    decoder, want = native(checkpoint), native(checkpoint)
    for each in (decoder, want):
        begin(each, prompt(checkpoint, num_text=60), MODES["sampled"])
    forced = torch.zeros((1, 60, checkpoint.config.talker.num_code_groups), dtype=torch.int32)
    whole = want.step([0], 60, forced).codes[0]
    stop, parts, done = threading.Event(), [], 0

    def cancel_often():
        while not stop.wait(0.001):
            decoder.cancel()

    canceller = threading.Thread(target=cancel_often)
    canceller.start()
    while done < 60:
        result = decoder.step([0], 60 - done, forced[:, done:])
        parts.append(result.codes[0, : result.num_frames[0]])
        done += result.num_frames[0]
    stop.set()
    canceller.join()
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("part", ["talker", "predictor"])
@pytest.mark.parametrize(
    ("width", "runs"), [(24, 0), (40, 0), (272, 0), (16, 0), (256, 1), (32, 1)]
)
def test_head_widths_that_it_cannot_run_are_refused_by_name(load_checkpoint, part, width, runs):
    config = load_checkpoint("tiny-random").config
    one = getattr(config, part)
    config = replace(config, **{part: replace(one, stack=replace(one.stack, head_dim=width))})
    if runs:
        check_config(config)
        return
    with pytest.raises(UnsupportedModel, match=f"{part} head_dim {width}\\.\n.* from 32 to 256"):
        check_config(config)


def test_weights_are_packed_as_they_are_stored(load_checkpoint, native):
    """bf16 takes half the bytes of float32, int8 a quarter plus the scales, int6 and int4 three
    and two quarters of that; blocks pad rows."""
    checkpoint = load_checkpoint("tiny-random")
    made = {form: native(stored(checkpoint, form)) for form in ("float32", "bfloat16", "float16")}
    packed = {form: sum(decoder.packed_sizes.values()) for form, decoder in made.items()}
    assert packed["bfloat16"] == packed["float32"] / 2 and packed["float16"] == packed["float32"]
    for form in ("int8-heads", "int8-groups-heads"):
        sizes = native(stored(checkpoint, form)).packed_sizes.values()
        share = sum(sizes) / packed["float32"]
        assert 0.25 < share < 0.29
    forms = ("int8-groups-heads", "int6-heads", "int4-heads")
    made = {form: native(stored(checkpoint, form)) for form in forms}
    eight, six, four = (sum(decoder.packed_sizes.values()) for decoder in made.values())
    assert four / packed["float32"] < 0.24
    # The bytes of 64 columns of the layers: 64, 48 and 32, and 2, 4 and 4 of scales.
    assert (six - four) / (eight - four) == (52 - 36) / (66 - 36)
