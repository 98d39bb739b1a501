"""The demonstration voice, fine-tuned to speech that is slower, higher or another speaker's."""

import argparse
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import DEMO_VOICE
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training.speech_trainer import Spoken
from tools.demo_voice import adapt, texts
from tools.demo_voice.evaluate import REFERENCES
from tools.demo_voice.shards import read

RESULT = Path("benchmarks/results/demo_voice_adapted.json")


def test_what_is_learned_is_not_measured():
    learned = adapt.sentences_to_learn(450)
    assert len(learned) == 450
    measured = {texts.normalize(text) for text in texts.written()}
    assert not measured & {texts.normalize(text) for text in learned}


def test_each_figure_that_misses_its_limit_is_named():
    found = json.loads(RESULT.read_text())["voices"]
    # The page says so: the codec's encoder mishears another speaker's words.
    assert [line.split(":")[0] for line in adapt.missed(found)] == ["other"]
    found["other"]["epochs"][-1]["word_errors"] = found["base"]["word_errors"]
    assert adapt.missed(found) == []
    for name, epoch, figure, value in (
        ("slow", 0, "length", 1.19),
        ("slow", 1, "length", 1.31),
        ("high", -1, "hertz", found["high"]["recorded"]["hertz"] * 1.07),
        ("other", -1, "hertz", found["other"]["recorded"]["hertz"] * 0.94),
        ("slow", -1, "word_errors", 1.4 * found["base"]["word_errors"]),
    ):
        planted = json.loads(json.dumps(found))
        planted[name]["epochs"][epoch][figure] = value
        (line,) = adapt.missed(planted)
        assert line.startswith(name)


@pytest.mark.ci
def test_each_epoch_is_a_checkpoint_that_has_learned_more():
    base = loading.load(loading.resolve(DEMO_VOICE))
    tokenizer = TextTokenizer(base.files.folder, base.config)
    spoken = [
        Spoken(tokenizer.encode(each.text), torch.tensor(each.codes).long())
        for each in read(REFERENCES)[:3]
    ]
    options = dataclasses.replace(adapt.OPTIONS, epochs=2, warmup_steps=1)
    first, second = (model.talker for model in adapt.adapted(base, spoken, options))
    changed = {name for name in first if not torch.equal(first[name], base.talker[name])}
    assert changed and all("_proj.weight" in name for name in changed)
    assert all(not torch.equal(first[name], second[name]) for name in changed)
    model = dataclasses.replace(base, talker=second)
    assert len(adapt.say(model, ["Good morning."]).codes[0]) > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_slow_and_high_speech_is_learned_and_does_not_get_faster():
    found = adapt.measure(argparse.Namespace(recordings=450, sentences=60))
    assert {line.split(":")[0] for line in adapt.missed(found)} <= {"other"}
