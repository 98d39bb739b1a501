"""The plain decoder against the official package: codes, logits, rounding, addresses of draws."""

import numpy as np
import pytest
import torch
from tolerances import LOGITS_F32, NORM_F32

from qwen_megakernel.decoders.layers import rope_tables, rotary
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling
from tools.validation import official

CPU = torch.device("cpu")
TEXT = "Hello there, how are you today?"
NUM_FRAMES = 14  # longer than the text, so padding begins


def make_decoder(loaded, dtype=torch.float32, num_slots=1):
    return PlainDecoder(loaded, DecoderSizes(num_slots, 256, device=CPU, dtype=dtype))


def prompt_of(model, config, **changes):
    """Return keyword arguments of the official generate() for one utterance."""
    speakers = list(config.talker.speakers) or [None]
    return {
        "input_ids": model._tokenize_texts([model._build_assistant_text(TEXT)]),
        "languages": ["english"],
        "speakers": [speakers[0]],
        "non_streaming_mode": False,
    } | changes


def clone_prompt(config, in_context):
    torch.manual_seed(5)
    codes = torch.randint(0, 2000, (9, config.talker.num_code_groups))
    return {
        "ref_code": [codes if in_context else None],
        "ref_spk_embedding": [torch.randn(config.talker.stack.hidden_size)],
        "x_vector_only_mode": [not in_context],
        "icl_mode": [in_context],
    }


CASES = [
    (name, task, full)
    for name in ("tiny-random", "tiny-random-base", "tiny-random-design")
    for task in ("plain", "auto", "x-vector", "in-context", "instruct")
    for full in (False, True)
    if (task in ("x-vector", "in-context")) <= (name == "tiny-random-base")
    and (task == "instruct") <= (name == "tiny-random-design")
] + [(f"{name}-1.7b", "plain", False) for name in ("tiny-random", "tiny-random-base")]


@pytest.fixture(scope="module")
def runs(official_model, load_checkpoint):
    """Greedy official runs, made once: (name, task, full) -> OfficialRun."""
    made = {}

    def run(name, task, full):
        if (name, task, full) not in made:
            model, config = official_model(name), load_checkpoint(name).config
            changes = {"non_streaming_mode": full}
            if task == "auto":
                changes["languages"] = ["auto"]
            if task in ("x-vector", "in-context"):
                changes["voice_clone_prompt"] = clone_prompt(config, task == "in-context")
                transcript = model._build_ref_text("It is not.")
                changes["ref_ids"] = model._tokenize_texts([transcript])
            if task == "instruct":
                instruct = model._build_instruct_text("Speak slowly.")
                changes["instruct_ids"] = model._tokenize_texts([instruct])
            prompt = prompt_of(model, config, **changes)
            made[name, task, full] = official.generate(
                model, Sampling.greedy(), NUM_FRAMES, **prompt
            )
        return made[name, task, full]

    return run


def start(decoder, run, sampling=None, seed=0, slot=0, part=0):
    dtype = decoder.embeddings.dtype
    (pad,) = decoder.embeddings.text(torch.tensor([decoder.config.tts_pad_id]))
    prefill = Prefill(run.prefill.to(dtype), run.trailing_text.to(dtype), pad)
    decoder.prefill(slot, prefill, sampling or Sampling.greedy(), seed=seed, part=part)


# A default run has each task once, one of them with its text in full, and the sizes of both kinds.
EVERY_RUN = [
    ("tiny-random", "plain", False),
    *(("tiny-random", "auto", full) for full in (False, True)),
    *(("tiny-random-base", task, False) for task in ("x-vector", "in-context")),
    ("tiny-random-design", "instruct", False),
    *((f"{name}-1.7b", "plain", False) for name in ("tiny-random", "tiny-random-base")),
]


@pytest.mark.parametrize(
    ("name", "task", "full"),
    [pytest.param(*case, marks=[] if case in EVERY_RUN else pytest.mark.ci) for case in CASES],
)
def test_greedy_codes_and_logits_equal_the_official_ones(runs, load_checkpoint, name, task, full):
    run = runs(name, task, full)
    decoder = make_decoder(load_checkpoint(name))
    taps = {}
    start(decoder, run)
    result = decoder.step([0], NUM_FRAMES, taps=taps)
    assert result.num_frames[0] == len(run.codes)
    assert np.array_equal(result.codes[0, : len(run.codes)], run.codes)
    assert result.ended[0] == (len(run.codes) < NUM_FRAMES)
    # The official run also keeps the logits of its last draw, which may be EOS.
    ours, theirs = taps["talker"][0], torch.stack(run.talker_logits)
    count = min(result.num_frames[0] + result.ended[0], len(theirs))
    assert count >= len(run.codes)
    assert (ours[:count] - theirs[:count]).abs().max() <= LOGITS_F32
    groups = decoder.config.talker.num_code_groups
    ours = taps["predictor"][0, 0]
    assert (ours - torch.stack(run.predictor_logits[: groups - 1])).abs().max() <= LOGITS_F32


@pytest.mark.ci  # needs the official run of every case
def test_the_cases_end_by_themselves_and_reach_the_limit(runs):
    """The comparison proves nothing if every run stops at once, or if none ends."""
    lengths = [len(runs(*case).codes) for case in CASES]
    assert min(lengths) >= 2
    assert any(length < NUM_FRAMES for length in lengths)
    assert sum(lengths) > 5 * len(CASES)


def test_the_repetition_penalty_is_the_official_one(runs, official_model, load_checkpoint):
    """Below 1 it favours repeats, which random weights do not make; greedy draws are exact."""
    name, sampling = "tiny-random", Sampling.greedy().override(repetition_penalty=0.4)
    model, loaded = official_model(name), load_checkpoint(name)
    prompt = prompt_of(model, loaded.config)
    run = official.generate(model, sampling, NUM_FRAMES, **prompt)
    decoder = make_decoder(loaded)
    start(decoder, run, sampling)
    result = decoder.step([0], NUM_FRAMES)
    assert np.array_equal(result.codes[0, : result.num_frames[0]], run.codes)
    without = runs(name, "plain", False)
    assert len(np.unique(run.codes[:, 0])) < len(np.unique(without.codes[:, 0]))


def test_eos_is_banned_for_two_draws_and_control_ids_are_never_drawn(runs, load_checkpoint):
    loaded = load_checkpoint("tiny-random")
    decoder = make_decoder(loaded)
    talker = loaded.config.talker
    # This head gives EOS the best logit, and every other control id the second best.
    decoder.codec_head = torch.zeros_like(decoder.codec_head)
    hidden_like = torch.ones(talker.stack.hidden_size)
    start(decoder, runs("tiny-random", "plain", False))
    state = decoder._states[0]
    decoder.codec_head[talker.suppressed_from :] = 1.0
    decoder.codec_head[talker.codec_eos_id] = 2.0
    for frame in range(4):
        state.hidden, state.frame = hidden_like, frame
        drawn = decoder._draw_code_0(state)
        assert (drawn == talker.codec_eos_id) == (frame >= 2)
        assert drawn < talker.suppressed_from or drawn == talker.codec_eos_id


def test_forced_codes_are_followed_and_reported_codes_are_the_drawn_ones(runs, load_checkpoint):
    run = runs("tiny-random", "plain", False)
    decoder = make_decoder(load_checkpoint("tiny-random"))
    forced = torch.from_numpy(run.codes.copy())[None]
    forced[0, 3, 5] += 1
    start(decoder, run)
    result = decoder.step([0], len(run.codes), forced=forced)
    assert result.num_frames[0] == len(run.codes)
    assert np.array_equal(result.codes[0, :4, :6], run.codes[:4, :6])
    assert not np.array_equal(result.codes[0], run.codes)


SAMPLED = Sampling().override(temperature=0.9, top_k=50)


def codes_of(decoder, run, steps=(12,), slot=0, **options):
    start(decoder, run, SAMPLED, slot=slot, **options)
    pieces = []
    for count in steps:
        result = decoder.step([slot], count)
        pieces.append(result.codes[0, : result.num_frames[0]])
        if result.ended[0]:
            break
    return np.concatenate(pieces)


def test_draws_depend_on_seed_and_part_alone(runs, load_checkpoint):
    run = runs("tiny-random", "plain", False)
    decoder = make_decoder(load_checkpoint("tiny-random"), num_slots=3)
    once = codes_of(decoder, run, seed=1)
    assert np.array_equal(once, codes_of(decoder, run, steps=(1, 2, 4, 5), seed=1))
    assert np.array_equal(once, codes_of(decoder, run, seed=1, slot=2))
    assert not np.array_equal(once, codes_of(decoder, run, seed=2))
    assert not np.array_equal(once, codes_of(decoder, run, seed=1, part=1))


def test_company_does_not_change_a_bit(runs, load_checkpoint):
    run = runs("tiny-random", "plain", False)
    decoder = make_decoder(load_checkpoint("tiny-random"), num_slots=3)
    alone = [codes_of(decoder, run, seed=seed) for seed in range(3)]
    for slot in range(3):
        start(decoder, run, SAMPLED, seed=slot, slot=slot)
    result = decoder.step([2, 0, 1], 12)
    for row, slot in enumerate((2, 0, 1)):
        assert np.array_equal(result.codes[row, : result.num_frames[row]], alone[slot])


def test_a_used_slot_begins_as_new(runs, load_checkpoint):
    loaded = load_checkpoint("tiny-random")
    run = runs("tiny-random", "plain", False)
    used = make_decoder(loaded)
    codes_of(used, runs("tiny-random", "auto", True), seed=9)
    assert np.array_equal(codes_of(used, run, seed=1), codes_of(make_decoder(loaded), run, seed=1))


@pytest.mark.parametrize("section", [(24, 20, 20), (12, 10, 10), None])
def test_equal_positions_make_mrope_plain_rope(load_checkpoint, section):
    from dataclasses import replace

    config = replace(load_checkpoint("tiny-random").config.talker.stack, mrope_section=section)
    positions = torch.arange(40).expand(3, 40)
    plain = rotary(replace(config, mrope_section=None), positions, torch.float32)
    for ours, expected in zip(rotary(config, positions, torch.float32), plain, strict=True):
        assert torch.equal(ours, expected)


def test_rope_tables_are_one_half_of_rotary_in_a_row(load_checkpoint):
    """Native code and the kernel read them at their address."""
    config = load_checkpoint("tiny-random").config.talker.stack
    tables = rope_tables(config, 700)
    both = rotary(config, torch.arange(700).expand(3, -1), torch.float32)
    for table, halves in zip(tables, both, strict=True):
        assert torch.equal(torch.cat([table, table], -1), halves)
        assert table.is_contiguous()


def test_unequal_positions_turn_as_the_official_rotary(official_model, load_checkpoint):
    from qwen_megakernel.decoders.layers import rotate

    model = official_model("tiny-random").model.talker.model
    config = load_checkpoint("tiny-random").config.talker.stack
    torch.manual_seed(0)
    positions = torch.randint(0, 500, (3, 7))
    q = torch.randn(7, config.num_heads, config.head_dim)
    k = torch.randn(7, config.num_kv_heads, config.head_dim)
    cos, sin = model.rotary_emb(q[None], positions[:, None])
    source = __import__(type(model).__module__, fromlist=["_"])
    heads = (each.transpose(0, 1)[None] for each in (q, k))
    section = list(config.mrope_section)
    turn = source.apply_multimodal_rotary_pos_emb
    expected = turn(*heads, cos, sin, section, mrope_interleaved=True)
    ours = rotary(config, positions, torch.float32)
    for mine, theirs in zip((q, k), expected, strict=True):
        assert (rotate(mine, *ours).transpose(0, 1) - theirs[0]).abs().max() <= NORM_F32


def test_bf16_follows_the_official_rounding(runs, official_model, load_checkpoint):
    """Teacher-forced bf16 logits are as near to the float32 ones as the official bf16 logits."""
    name, case = "tiny-random", ("tiny-random", "plain", False)
    run, loaded = runs(*case), load_checkpoint(name)
    exact = torch.stack(run.talker_logits)[: len(run.codes)]
    model = official.load(loaded.files.folder, torch.bfloat16)
    half = official.generate(model, Sampling.greedy(), 2, **prompt_of(model, loaded.config))
    decoder = make_decoder(loaded, torch.bfloat16)
    taps = {}
    start(decoder, run)
    decoder.step([0], len(run.codes), torch.from_numpy(run.codes)[None], taps)
    ours = taps["talker"][0]
    # The first draw comes from the same prompt in both bf16 runs.
    official_error = (half.talker_logits[0] - exact[0]).abs()
    our_error = (ours[0] - exact[0]).abs()
    assert our_error.square().mean().sqrt() <= 1.25 * official_error.square().mean().sqrt()
    assert (ours - exact).square().mean().sqrt() <= 0.06  # rms; docs/model.md: 0.025 officially
