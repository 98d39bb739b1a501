"""Draws from fixed logits: which tokens are allowed, which penalised, and when a speech ends."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from qwen_megakernel.errors import TextTooLong, TokenOrderError, UsageError
from qwen_megakernel.records import Prefill, TextIds
from qwen_megakernel.sheen.decoder import NO_IDS, Prompts, SheenDecoder, num_positions
from qwen_megakernel.sheen.tokens import AudioTokens
from qwen_megakernel.speech_options import Sampling, SpeechOptions

TOKENS = AudioTokens(first_id=10, codebook_size=8)
PROMPT = Prefill(torch.tensor([1, 2, TOKENS.start_id]), NO_IDS, NO_IDS)
GREEDY = Sampling.greedy().override(repetition_penalty=1.0)


class FixedModel:
    """A model with the same logits everywhere; it keeps the ids that it read."""

    def __init__(self, **logits: float):
        self.values = torch.zeros(TOKENS.end_id + 1)
        for name, value in logits.items():
            self.values[int(name.removeprefix("t"))] = value
        self.read_ids: dict[int, list[int]] = {}

    def begin(self, slot):
        self.read_ids[slot] = []

    def read(self, slot, ids):
        self.read_ids[slot] += ids
        return torch.zeros(1)

    def logits(self, hidden, first=0, count=None):
        return self.values[first : None if count is None else first + count].clone()


def token(place, code):
    return f"t{TOKENS.first_of_place(place) + code}"


def decoder(model, **options):
    options = {"num_slots": 2, "max_prompt": 8, "max_frames": 20} | options
    return SheenDecoder(model, TOKENS, **options)


def draw(model, count=4, sampling=GREEDY, seed=0, part=0, **options):
    made = decoder(model, **options)
    made.prefill(0, PROMPT, sampling, seed=seed, part=part)
    return made.step([0], count)


ENDLESS = {f"t{TOKENS.end_id}": -1e6}
LIKELY = {token(0, 5): 4.0, token(0, 3): 3.0, token(1, 1): 2.0, token(3, 7): 2.0}


def test_a_frame_is_one_code_of_the_first_layer_two_of_the_second_four_of_the_third():
    model = FixedModel(**LIKELY)
    result = draw(model, 2)
    assert result.codes[0].tolist() == [[5, 1, 1, 7, 7, 7, 7]] * 2
    assert (result.num_frames, result.ended) == ((2,), (False,))
    read = model.read_ids[0]  # without the last token, which the next step reads
    assert read == [*PROMPT.embeds.tolist(), *TOKENS.ids_of(result.codes[0])[:-1]]


def test_first_codes_are_penalised_and_no_others():
    penalised = Sampling.greedy().override(repetition_penalty=2.0)
    codes = draw(FixedModel(**LIKELY), 3, penalised).codes[0]
    assert codes[:, 0].tolist() == [5, 3, 5]  # logits 4, then 3 and 2, then 2 and 1.5
    assert codes[:, 1:].tolist() == [[1, 1, 7, 7, 7, 7]] * 3


@pytest.mark.parametrize("order", ["repair", "refuse"])
def test_the_end_is_offered_behind_the_first_frame(order):
    likely = {token(0, 5): 4.0, token(1, 1): 6.0, token(3, 7): 7.0}

    class InOrder(FixedModel):
        """A model in which only the right tokens are likely, and the end after a frame."""

        def logits(self, hidden, first=0, count=None):
            place = (len(self.read_ids[0]) - len(PROMPT.embeds)) % 7
            values = self.values.clone()
            begin = TOKENS.first_of_place(place)
            values[begin : begin + 8] += 10
            if len(self.read_ids[0]) > len(PROMPT.embeds):
                values[TOKENS.end_id] = 15.0
            return values[first : None if count is None else first + count]

    result = draw(InOrder(**likely), 4, order=order)
    assert (result.num_frames, result.ended) == ((1,), (True,))
    assert result.codes[0, 0].tolist() == [5, 1, 1, 7, 7, 7, 7] and not result.codes[0, 1:].any()


def test_an_end_before_any_frame_is_not_offered():
    result = draw(FixedModel(**LIKELY, **{f"t{TOKENS.end_id}": 99.0}), 2)
    assert (result.num_frames, result.ended) == ((1,), (True,))


def test_the_two_sets_of_knobs_hold_for_their_places():
    model = FixedModel(**LIKELY, **ENDLESS)
    hot_rest = Sampling().override(top_k=1, repetition_penalty=1.0, subtalker_temperature=100.0)
    codes = draw(model, 12, hot_rest, max_frames=12).codes[0]
    assert set(codes[:, 0]) == {5} and all(len(set(column)) > 3 for column in codes[:, 1:].T)
    hot_first = Sampling().override(temperature=100.0, repetition_penalty=1.0, subtalker_top_k=1)
    codes = draw(model, 12, hot_first, max_frames=12).codes[0]
    assert len(set(codes[:, 0])) > 3 and set(codes[:, 1]) == {1} and set(codes[:, 6]) == {7}


def test_draws_are_addressed_by_seed_and_part():
    hot = Sampling().override(temperature=9.0, subtalker_temperature=9.0)

    def codes(seed, part):
        return draw(FixedModel(**ENDLESS), 6, hot, seed, part).codes.tolist()

    assert codes(3, 0) == codes(3, 0)
    assert codes(3, 0) != codes(4, 0) and codes(3, 0) != codes(3, 1)


def test_steps_of_any_length_are_the_same_frames():
    hot = Sampling().override(temperature=9.0, subtalker_temperature=9.0)
    whole = draw(FixedModel(**ENDLESS), 4, hot).codes[0]
    stepped = decoder(FixedModel(**ENDLESS))
    stepped.prefill(1, PROMPT, hot, seed=0, part=0)
    stepped.prefill(0, PROMPT, hot, seed=8, part=0)
    pieces = [stepped.step([0, 1], count).codes[1] for count in (1, 3)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_a_cancel_ends_a_step_and_loses_nothing():
    model = FixedModel(**LIKELY)
    made = decoder(model)
    made.prefill(0, PROMPT, GREEDY, seed=0, part=0)
    made.cancel()
    assert made.step([0], 4).num_frames == (0,)
    read = model.read

    def cancelling(slot, ids):
        if len(model.read_ids[slot]) == len(PROMPT.embeds) + 7:
            made.cancel()  # while the second frame is being drawn
        return read(slot, ids)

    model.read = cancelling
    assert made.step([0], 4).num_frames == (2,)
    assert made.frames_ready(0) == 18 and made.step([0], 4).num_frames == (4,)


def test_a_token_out_of_order_ends_its_stream_and_no_other():
    model = FixedModel(**LIKELY)
    made = decoder(model, order="refuse")

    def right_in_slot_1(hidden, first=0, count=None):
        values = model.values.clone()
        if model.slot == 1:
            place = (len(model.read_ids[1]) - len(PROMPT.embeds)) % 7
            begin = TOKENS.first_of_place(place)
            values[begin : begin + 8] += 10
        return values[first : None if count is None else first + count]

    read = model.read
    model.read = lambda slot, ids: setattr(model, "slot", slot) or read(slot, ids)
    model.logits = right_in_slot_1
    for slot in (0, 1):
        made.prefill(slot, PROMPT, GREEDY, seed=0, part=0)
    result = made.step([0, 1], 2)
    assert list(result.failures) == [0] and result.num_frames == (0, 2)
    assert re.match(r"Frame 1: .* place 2 of a frame", str(result.failures[0]))
    assert made.step([1], 2).num_frames == (2,)
    made.prefill(0, PROMPT, GREEDY, seed=0, part=0)
    with pytest.raises(TokenOrderError, match="place 2 of a frame"):
        made.step([0], 2)


def test_a_prompt_has_all_of_its_text():
    ids = TextIds(NO_IDS, PROMPT.embeds[:-1])
    prompts = Prompts(TOKENS)
    assert torch.equal(prompts.build(ids, SpeechOptions()).embeds, PROMPT.embeds)
    with pytest.raises(AssertionError, match="must be complete"):
        prompts.build(ids, SpeechOptions(), text_open=True)


def test_what_does_not_fit_is_refused():
    made = decoder(FixedModel())
    with pytest.raises(TextTooLong, match="has 9 tokens; this voice was trained with at most 8"):
        made.prefill(0, replace(PROMPT, embeds=torch.arange(9)), GREEDY, seed=0, part=0)
    assert num_positions(8, 20, 148) == 148
    with pytest.raises(UsageError, match=r"needs 148 positions; the model has 147\.\n.*19 or less"):
        num_positions(8, 20, 147)
