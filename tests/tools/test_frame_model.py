"""The calculated frame time follows the kernel's stages, and the pages quote it correctly."""

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tolerances import NO_MEMORY_MS, nearly

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from tools.kernel_study import frame_model as tool

ROOT = Path(__file__).parents[2]
NAMES = ("random-0.6b", "random-1.7b")


def frame_ms(name, constants=tool.IDEAL, **changes):
    config = parse_model_config(model_config(name))
    return tool.frame_ms(config, tool.Design(**changes), constants)


def test_a_frame_has_as_many_stages_as_the_readme_counts_barriers():
    stages = tool.frame(parse_model_config(model_config("random-0.6b")), tool.Design())
    text = (ROOT / "csrc" / "README.md").read_text()
    assert f"= {len(stages)} barriers" in text
    config = parse_model_config(model_config("random-0.6b"))
    apart = tool.frame(config, tool.Design(attention_everywhere=False))
    assert f"or more streams it has {len(apart)} barriers" in text


def test_row_tiles_are_multiplied_two_at_a_time_and_an_odd_last_one_alone():
    """The kernel takes a column's row tiles in steps of two (csrc/matvec.cuh, `add_column`)."""
    shapes = {"qkv": (4096, 1024), "o": (1024, 2048), "gate_up": (6144, 1024), "head": (3072, 1024)}
    found = {name: tool.tiles_of(*shape) for name, shape in shapes.items()}
    assert found == {"qkv": (4, 4), "o": (2, 0), "gate_up": (6, 6), "head": (3, 2)}
    instructions = [tool.IDEAL.tile(tool.Stage(0.0, 3, n)) * tool.IDEAL_ISSUE / 4 for n in (0, 2)]
    assert instructions == nearly([42, (2 * 35 + 42) / 3])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_beats_the_memory_and_more_look_ahead_never_costs(name):
    stages = tool.frame(parse_model_config(model_config(name)), tool.Design())
    num_bytes = sum(stage.tiles * stage.tile_bytes for stage in stages) * tool.NUM_SMS
    floor = num_bytes / tool.BANDWIDTH / 1000
    times = [frame_ms(name, forecast=n) for n in range(4)]
    assert times == sorted(times, reverse=True) and times[-1] > floor
    assert times[0] > floor + len(stages) * (tool.IDEAL.barrier + tool.IDEAL.enter) / 1000 / 2
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
        assert len(changed) == 4 * num_layers  # products of a layer


@pytest.mark.parametrize("name", NAMES)
def test_every_realistic_price_is_higher_and_together_they_cost_more_than_alone(name):
    ideal, together = (frame_ms(name, each) for each in tool.CONSTANTS.values())
    alone = []
    for field in fields(tool.Constants):
        price = {field.name: getattr(tool.REALISTIC, field.name)}
        alone.append(frame_ms(name, replace(tool.IDEAL, **price)) - ideal)
    assert min(alone) > 0 and together - ideal > max(alone)
    assert together - ideal <= sum(alone) * 1.25  # two prices affect int8 tiles and draws


def test_measured_constants_are_taken_by_name(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["frame_model.py", "--set", "barrier=2.2,l2_latency=0.45"])
    assert tool.main() == 0
    printed = capsys.readouterr().out
    (line,) = re.findall(r"^the kernel +(.*)", printed, re.M)
    columns = line.split()
    measured = replace(tool.REALISTIC, barrier=2.2)
    assert columns == [
        f"{frame_ms(name, constants):.2f}"
        for constants in (tool.IDEAL, tool.REALISTIC, measured)
        for name in NAMES
    ]
    for wrong in ("bandwidth", "barrier=fast", "bandwidth=3"):
        monkeypatch.setattr("sys.argv", ["frame_model.py", "--set", wrong])
        with pytest.raises(SystemExit):
            tool.main()
    assert "known constants: barrier, l2_latency" in capsys.readouterr().err


def test_the_page_says_which_model_waits_for_memory(monkeypatch):
    page = " ".join((ROOT / "docs" / "kernel.md").read_text().split())
    as_it_is = [[frame_ms(name, each) for each in tool.CONSTANTS.values()] for name in NAMES]
    monkeypatch.setattr(tool, "BANDWIDTH", tool.BANDWIDTH * 1e6)
    infinite = [[frame_ms(name, each) for each in tool.CONSTANTS.values()] for name in NAMES]
    small, large = np.subtract(as_it_is, infinite)
    assert (small < NO_MEMORY_MS).all() and "A frame of 0.6B never waits for memory" in page
    assert "1.7B would be {:.2f} or {:.2f} ms shorter".format(*large) in page


def test_the_pages_say_what_the_tool_calculates():
    page = " ".join((ROOT / "docs" / "kernel.md").read_text().split())
    log = (ROOT / "benchmarks" / "LOG.md").read_text()
    small, large = (f"{frame_ms(name):.2f} ms" for name in NAMES)
    assert f"{small} for 0.6B and {large} for 1.7B" in page
    real = [f"{frame_ms(name, tool.REALISTIC):.2f}" for name in NAMES]
    assert f"which are the prediction, {real[0]} and {real[1]} ms" in page
    assert f"the model says {real[0]} at realistic prices, {small.removesuffix(' ms')} at" in log
    assert f"{real[1]} and {large.removesuffix(' ms')}. 2.02 must be met" in log
    times = {}
    for kind, constants in tool.CONSTANTS.items():
        for weights, int8 in INT8_STACKS.items():
            times[kind, weights] = [f"{frame_ms(n, constants, int8=int8):.2f}" for n in NAMES]
    for weights, words in (("int8-talker", "an int8 talker"), ("int8", "int8 in both")):
        first, second = times["ideal", weights]
        assert f"{first} and {second} ms with {words}" in page
    talker, both = times["realistic", "int8-talker"], times["realistic", "int8"]
    assert f"prices {talker[0]} and {talker[1]}, and {both[0]} and {both[1]} ms" in page
    assert f"{talker[0]} and {both[0]} ms; {talker[1]} and {both[1]}. Ideal: " in log
    apart = [
        [f"{frame_ms(name, each, attention_everywhere=False):.2f}" for name in NAMES]
        for each in (tool.REALISTIC, tool.IDEAL)
    ]
    assert "{} ms (0.6B) and {} (1.7B); ideal {} and {} |".format(*apart[0], *apart[1]) in log
    for name, size in zip(NAMES, ("0.6B", "1.7B"), strict=True):
        rings = [f"{frame_ms(name, tool.REALISTIC, ring_tiles=n):.2f}" for n in (3, 4, 6)]
        words = f"{rings[0]}, {rings[1]} and {rings[2]}{' ms' if size == '0.6B' else ''} ({size})"
        assert words in log
