"""The calculated time of a prompt depends on a block's reads, and the pages quote it correctly."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tolerances import nearly

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.decoders.kernel import build
from tools.kernel_study import frame_model, prompt_model

ROOT = Path(__file__).parents[2]
CONFIGS = {name: parse_model_config(model_config(f"random-{name}")) for name in ("0.6b", "1.7b")}


def ms(name: str, positions: int, constants=frame_model.IDEAL, **changes) -> float:
    return prompt_model.prompt_us(CONFIGS[name], positions, constants, **changes) / 1000


@pytest.mark.parametrize("name", CONFIGS)
def test_more_positions_take_longer_and_teams_never_do(name):
    for few, many in ((2, 10), (10, 30), (30, 110), (110, 200)):
        assert ms(name, few) < ms(name, many)
    for positions in prompt_model.POSITIONS:
        times = [ms(name, positions, most_teams=teams) for teams in (8, 4, 2, 1)]
        assert times == sorted(times)
    assert ms(name, 16) == ms(name, 16, most_teams=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_beats_the_memory_or_the_barriers(name):
    stack = CONFIGS[name].talker.stack
    matrices = (stack.q_size + 2 * stack.kv_size + stack.q_size + 3 * stack.intermediate_size) * (
        stack.hidden_size
    )
    floor = 2 * matrices * stack.num_layers / frame_model.BANDWIDTH / 1000
    assert ms(name, 10) > floor
    before = ms(name, 110)
    slower = replace(frame_model.IDEAL, barrier=frame_model.IDEAL.barrier + 1)
    assert ms(name, 110, slower) - before == nearly((5 * stack.num_layers + 1) / 1000)


def test_rows_that_do_not_fit_are_read_for_every_round():
    layer = (18, 1024, 1024, 2048)  # 18 blocks, 8 tiles each
    narrow = prompt_model.product_us(16, *layer)
    wide = prompt_model.product_us(16, layer[0], 2048, *layer[2:])
    rounds = -(-8 // build.ROUND_TILES)
    extra = (rounds - 1) * 16 * 2048 * 4 / prompt_model.L2_BANDWIDTH
    assert narrow - wide == nearly(extra)


def test_the_tool_counts_rows_and_teams_as_the_kernel_does():
    dims = (ROOT / "csrc" / "dims.cuh").read_text()
    rows = int(re.search(r"kMaxRows = (\d+)", dims)[1])
    assert rows == prompt_model.TEAM_ROWS
    most = int(re.search(r"kMaxForwardRows = (\d+)", dims)[1])
    assert most == prompt_model.TEAM_ROWS * prompt_model.MOST_TEAMS


def test_the_pages_say_what_the_tool_calculates(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prompt_model.py"])
    assert prompt_model.main() == 0
    printed = capsys.readouterr().out
    log = (ROOT / "benchmarks" / "LOG.md").read_text()
    for name in CONFIGS:
        for variant, changes in prompt_model.VARIANTS.items():
            for kind, constants in reversed(frame_model.CONSTANTS.items()):
                times = [f"{ms(name, n, constants, **changes):.2f}" for n in prompt_model.POSITIONS]
                row = rf"{name.upper()}, {variant} +{' +'.join(times)}  {kind}\n"
                assert re.search(row, printed)
            if "1024" not in variant:
                assert f"| {name.upper()}, {variant} | {' | '.join(times)} |" in log
    text = " ".join((ROOT / "docs" / "kernel.md").read_text().split())
    small, large = ([f"{ms(name, n):.2f}" for n in (10, 110)] for name in CONFIGS)
    assert f"10 and 110 positions take {small[0]} and {small[1]} ms for 0.6B" in text
    assert f"and {large[0]} and {large[1]} ms for 1.7B" in text
    slow = [f"{ms(name, n, frame_model.REALISTIC):.2f}" for name in CONFIGS for n in (10, 110)]
    assert f"prices {slow[0]} and {slow[1]}, and {slow[2]} and {slow[3]} ms" in text
    assert f"({slow[0]} and {slow[1]} at realistic prices)" in log
