"""Sequences, labels and packing, compared with transformers' own loss."""

import pytest
import torch
from fixtures import module_value
from hypothesis import given, settings
from hypothesis import strategies as st
from sheen_toys import CODEBOOK_SIZE as SIZE
from tolerances import LOSS_SUM_F32

from qwen_megakernel.sheen import model_folder, tokens
from qwen_megakernel.sheen.training import sequences
from qwen_megakernel.sheen.training.sequences import IGNORED, collate, encode, pack
from qwen_megakernel.sheen.training.trainer import Trainer
from qwen_megakernel.training.trainer import TrainOptions

tokenizer = module_value(lambda base_folder: model_folder.load_tokenizer(base_folder))
audio = module_value(lambda tokenizer: tokens.add_audio_tokens(tokenizer, SIZE))


encoded = module_value(
    lambda samples, tokenizer, audio: [encode(sample, tokenizer, audio) for sample in samples]
)


@pytest.fixture(scope="module")
def trainer(trained, encoded):
    """A trainer whose model depends on all earlier tokens."""
    model = model_folder.load_language_model(trained)
    return Trainer(model, encoded, 0, TrainOptions(precision="fp32"))


def test_a_sequence_is_text_then_marked_audio(samples, encoded, tokenizer, audio):
    ids, sample = encoded[0].ids, samples[0]
    assert tokenizer.decode(ids[: encoded[0].num_text]) == sample.text
    assert ids[encoded[0].num_text] == audio.start_id and ids[-1] == audio.end_id
    assert audio.frames_of(ids[encoded[0].num_text + 1 : -1]).tolist() == sample.frames.tolist()


def test_labels_are_what_follows_and_text_takes_no_loss(encoded):
    batch = collate([encoded], pad_id=0)
    begin = 0
    for sequence in encoded:
        labels = batch.labels[0, begin : begin + len(sequence)].tolist()
        for at in range(len(sequence)):
            is_audio = at + 1 >= sequence.num_text and at + 1 < len(sequence)
            assert labels[at] == (sequence.ids[at + 1] if is_audio else IGNORED)
        assert batch.position_ids[0, begin : begin + len(sequence)].tolist() == list(
            range(len(sequence))
        )
        begin += len(sequence)
    assert begin == batch.labels.shape[1]


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.integers(0, 5))
def test_packing_keeps_every_sequence_once_and_the_limit(lengths, seed):
    rows = pack(lengths, 64, seed)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= 64 for row in rows)
    # First fit leaves at most one row half empty.
    assert sum(sum(lengths[index] for index in row) <= 32 for row in rows) <= 1
    assert pack(lengths, 64, seed) == rows


def test_packed_sequences_do_not_see_each_other(trainer, encoded):
    """The packed loss is the sum of the losses that transformers computes without a mask."""
    with torch.no_grad():
        apart = 0.0
        for sequence in encoded:
            labels = torch.tensor(sequence.ids)
            labels[: sequence.num_text] = IGNORED
            loss = trainer.model(torch.tensor([sequence.ids]), labels=labels[None]).loss
            apart += float(loss) * int((labels != IGNORED).sum())
        packed = float(trainer.loss_sum(collate([encoded], 0)))
        padded = float(trainer.loss_sum(collate([[encoded[0]], encoded], 5)))
        first = float(trainer.loss_sum(collate([encoded[:1]], 0)))
    assert packed == pytest.approx(apart, abs=LOSS_SUM_F32)
    assert padded == pytest.approx(apart + first, abs=LOSS_SUM_F32)


def test_a_mask_that_leaks_would_be_seen(trainer, encoded):
    batch = collate([encoded], 0)
    length = batch.input_ids.shape[1]
    leaking = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    wrong = sequences.Batch(batch.input_ids, batch.labels, batch.position_ids, leaking)
    with torch.no_grad():
        assert abs(float(trainer.loss_sum(batch)) - float(trainer.loss_sum(wrong))) > 1
