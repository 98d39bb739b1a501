"""The training forward against the plain decoder, and faults of other trainers, each noticed."""

import inspect
import types
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tolerances import LOGITS_F32, LOSS_F32, TEACHER_FORCED, nearly

from qwen_megakernel.decoders import frame_decoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.speech_options import Sampling, SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import speech_model
from qwen_megakernel.voice import Voice

CPU = torch.device("cpu")
NAMES = ("tiny-random-base", "tiny-random-base-1.7b")  # the second has projection, other widths
NUM_FRAMES = 12  # longer than the text, so padding begins


class Case:
    """A recording of random codes, and the plain decoder's logits for it."""

    def __init__(self, loaded, text_feed):
        self.loaded, config = loaded, loaded.config
        generator = torch.Generator().manual_seed(3)
        shape = NUM_FRAMES, config.talker.num_code_groups
        self.codes = torch.randint(0, config.predictor.vocab_size, shape, generator=generator)
        x_vector = torch.randn(config.talker.stack.hidden_size, generator=generator).numpy()
        self.ids = TextTokenizer(loaded.files.folder, config).encode("Hello there, you.")
        voice = Voice("anna", x_vector)
        self.request = SpeechOptions(voice=voice, language="en", text_feed=text_feed)
        sizes = DecoderSizes(1, 256, device=CPU, dtype=torch.float64)
        with patch.object(frame_decoder, "check_dtypes"):  # exact, but for the logits' own dtype
            decoder = PlainDecoder(loaded, sizes)
        prompts = PromptBuilder(config, decoder.embeddings)
        prompt = prompts.build(self.ids, prompts.resolve(self.request))
        decoder.prefill(0, prompt, Sampling(), seed=0, part=0)
        forced, taps = torch.cat([self.codes, self.codes[:1]])[None], {}
        decoder.step([0], NUM_FRAMES + 1, forced, taps)
        self.first, self.others = taps["talker"][0], taps["predictor"][0, :NUM_FRAMES]

    def expected_losses(self):
        """Return the loss of each codebook in NumPy, from the plain decoder's logits."""
        talker = self.loaded.config.talker
        first = self.first.numpy().astype(np.float64)
        ends = first[:, [talker.codec_eos_id]]
        drawable = np.concatenate([first[:, : talker.suppressed_from], ends], axis=1)
        labels = np.append(self.codes[:, 0].numpy(), talker.suppressed_from)  # the end is last
        sums = [_nll(drawable, labels)]
        for group in range(1, talker.num_code_groups):
            logits = self.others[:, group - 1].numpy().astype(np.float64)
            sums.append(_nll(logits, self.codes[:, group].numpy()))
        return np.array(sums)

    def check(self, module, dtype=torch.float64, tolerance=TEACHER_FORCED):
        """Compare logits and losses of a (perhaps faulty) module with the plain decoder's."""
        model = module.SpeechModel(self.loaded, dtype=dtype)
        with torch.no_grad():
            first, others = model(self.ids, self.request, self.codes)
            losses = model.losses(self.ids, self.request, self.codes)
        assert torch.allclose(first.float(), self.first, atol=tolerance, rtol=0)
        assert torch.allclose(others.float(), self.others, atol=tolerance, rtol=0)
        assert losses.numpy() == pytest.approx(self.expected_losses(), rel=LOSS_F32)


def _nll(logits, labels):
    logits = logits - logits.max(axis=1, keepdims=True)
    normal = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -normal[np.arange(len(labels)), labels].sum()


@pytest.fixture(scope="module")
def cases(load_checkpoint):
    return {
        (name, feed): Case(load_checkpoint(name), feed)
        for name in NAMES
        for feed in ("stepwise", "full")
    }


@pytest.mark.parametrize("feed", ["stepwise", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_losses_are_those_of_the_plain_decoder(cases, name, feed):
    cases[name, feed].check(speech_model)
    cases[name, feed].check(speech_model, torch.float32, LOGITS_F32)


# Faults of the official script (finetuning/sft_12hz.py) and their like: (ours, theirs).
FAULTS = {
    "code 0's labels are shifted twice": (
        "labels = F.pad(codes[:, 0], (0, 1)",
        "labels = F.pad(codes[1:, 0], (0, 2)",
    ),
    "the hidden state has seen the frame": (
        "self._residual_logits(hidden[: len(codes)], codes)",
        "self._residual_logits(hidden[1:], codes)",
    ),
    "the predictor's labels are shifted": (
        "F.cross_entropy(logits, codes[:, group]",
        "F.cross_entropy(logits, codes[:, min(group + 1, 15)]",
    ),
    "the predictor's heads are shifted": (
        "enumerate(predictor.lm_head, start=1)",
        "enumerate(predictor.lm_head, start=0)",
    ),
    "the text projection is missing": ("return fc2(F.silu(fc1(rows)))", "return rows"),
    "the predictor's projection is missing": ("if self._config.has_projection:\n", "if False:\n"),
    "the end code is not learned": ("value=talker.codec_eos_id", "value=0"),
    "the text ends without padding": ("prompt.pad_embed.expand", "(0 * prompt.pad_embed).expand"),
    "only code 0 is fed back": (
        "return torch.stack(self._rows(codes), dim=1).sum(1)",
        "return self._rows(codes)[0]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(cases, fault):
    source = inspect.getsource(speech_model)
    ours, theirs = FAULTS[fault]
    assert source.count(ours) == 1
    faulty = types.ModuleType(speech_model.__name__)
    exec(compile(source.replace(ours, theirs), "faulty", "exec"), vars(faulty))
    with pytest.raises((AssertionError, RuntimeError)):  # or the widths do not fit
        cases["tiny-random-base-1.7b", "stepwise"].check(faulty)


def test_the_loss_weighs_code_0_against_the_mean_of_the_others():
    sums = torch.tensor([12.0, 10.0, 30.0], dtype=torch.float64)
    assert float(speech_model.loss_of(sums, 10, 2)) == nearly(1 + 0.3 * 2)


def test_every_tensor_learns_but_the_text_embedding(load_checkpoint, cases):
    model = speech_model.SpeechModel(load_checkpoint(NAMES[1]))
    case = cases[NAMES[1], "full"]
    losses = model.losses(case.ids, case.request, case.codes)
    speech_model.loss_of(losses, NUM_FRAMES, 1).backward()
    still = {name for name, each in model.named_parameters() if each.grad is None}
    assert still == {"model.text_embedding.weight"}
    assert set(dict(model.named_parameters())) == set(load_checkpoint(NAMES[1]).talker)
