"""What a step of a fine-tuning holds and computes, counted on the small random model."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures import module_value
from tolerances import nearly

from benchmarks.measures import train_step
from qwen_megakernel.training.speech_job import Parts, TuneJob
from qwen_megakernel.training.speech_trainer import TuneOptions

parts = module_value(lambda: Parts.load(TuneJob(Path(), Path(), "tiny-random-base", device="cpu")))


@pytest.mark.ci
def test_memory_is_that_of_the_tensors(parts):
    full = TuneOptions(method="full", gradient_accumulation=1, epochs=1, precision="fp32")
    found = train_step.memory_of(train_step.new_trainer(parts, full, num_frames=8))
    tensors = parts.base.talker
    sizes = {name: 4 * tensor.numel() / 1e6 for name, tensor in tensors.items()}
    assert found["weights_mb"] == nearly(sum(sizes.values()))
    learned = sum(sizes.values()) - sizes["model.text_embedding.weight"]
    assert found["gradients_mb"] == nearly(learned)
    assert found["adam_mb"] == nearly(2 * learned)
    longer = train_step.memory_of(train_step.new_trainer(parts, full, num_frames=16))
    saved = replace(full, checkpointing=True)
    less = train_step.memory_of(train_step.new_trainer(parts, saved, num_frames=16))
    grown = longer["activations_mb"] / found["activations_mb"]
    assert 1.2 < grown < 2  # the prompt's rows do not grow
    assert less["activations_mb"] < longer["activations_mb"] / 2


def test_seconds_are_those_of_the_products(parts):
    lora = TuneOptions()
    found = train_step.least_seconds(parts, lora, num_frames=10)
    assert set(found) == set(train_step.GPUS_OF_24_GB)
    full = train_step.least_seconds(parts, replace(lora, method="full", checkpointing=True), 10)
    assert full["L4"] == nearly(2 * found["L4"])  # four passes for two
