"""The calculated frame time: it follows the kernel's stages, and the page quotes it as it is."""

from pathlib import Path

import pytest

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from tools.kernel_study import frame_model as tool

ROOT = Path(__file__).parents[2]
NAMES = ("random-0.6b", "random-1.7b")


def frame_ms(name, **changes):
    design = tool.Design(**changes)
    stages = tool.frame(parse_model_config(model_config(name)), design)
    return tool.Block(design, stages).run() / 1000


def test_a_frame_has_as_many_stages_as_the_readme_counts_barriers():
    stages = tool.frame(parse_model_config(model_config("random-0.6b")), tool.Design())
    text = (ROOT / "csrc" / "README.md").read_text()
    assert f"= {len(stages)} barriers" in text
    config = parse_model_config(model_config("random-0.6b"))
    apart = tool.frame(config, tool.Design(attention_everywhere=False))
    assert f"{len(apart)} with two streams and more" in text


@pytest.mark.parametrize("name", NAMES)
def test_nothing_beats_the_memory_and_more_look_ahead_never_costs(name):
    stages = tool.frame(parse_model_config(model_config(name)), tool.Design())
    num_bytes = sum(stage.tiles * stage.tile_bytes for stage in stages) * tool.NUM_SMS
    floor = num_bytes / tool.BANDWIDTH / 1000
    times = [frame_ms(name, forecast=n) for n in range(4)]
    assert times == sorted(times, reverse=True) and times[-1] > floor
    assert times[0] > floor + len(stages) * (tool.BARRIER + tool.ENTER) / 1000 / 2
    assert frame_ms(name, ring_tiles=5) > times[2] > frame_ms(name, fused_draws=True)


@pytest.mark.parametrize("name", NAMES)
def test_int8_halves_the_bytes_of_its_stacks_and_nothing_else(name):
    config = parse_model_config(model_config(name))
    plain = tool.frame(config, tool.Design())
    for weights, int8 in INT8_STACKS.items():
        stages = tool.frame(config, tool.Design(int8=int8))
        changed = [(new, old) for new, old in zip(stages, plain, strict=True) if new != old]
        assert all(2 * new.tile_bytes == old.tile_bytes for new, old in changed)
        assert [stage.tiles for stage in stages] == [stage.tiles for stage in plain]
        num_layers = config.talker.stack.num_layers
        if weights == "int8":
            num_passes = config.talker.num_code_groups - 1
            num_layers += num_passes * config.predictor.stack.num_layers
        assert len(changed) == 4 * num_layers  # a layer's products


def test_the_page_says_what_the_tool_calculates(monkeypatch):
    text = " ".join((ROOT / "docs" / "kernel.md").read_text().split())
    small, large = (f"{frame_ms(name):.2f} ms" for name in NAMES)
    assert f"{small} for 0.6B and {large} for 1.7B" in text
    for weights, words in (("int8-talker", "an int8 talker"), ("int8", "int8 in both")):
        int8 = INT8_STACKS[weights]
        times = [f"{frame_ms(name, int8=int8):.2f}" for name in NAMES]
        assert f"{times[0]} and {times[1]} ms with {words}" in text
    monkeypatch.setattr(tool, "BARRIER", 1.6)
    slow = [f"{frame_ms(name):.2f}" for name in NAMES]
    assert f"with barriers of 1.6 us it is {slow[0]} and {slow[1]} ms" in text
