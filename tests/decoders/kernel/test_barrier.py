"""The grid barrier of csrc/barrier.cuh keeps its promises in any order of blocks."""

import kernel_models as k
import pytest
import torch
from fixtures import module_value
from probes import BarrierProbe, Probes

from qwen_megakernel.decoders.kernel.library import Control

THREADS, ROUNDS = 64, 12
LEFT, ERROR = Control.left.offset // 4, Control.error.offset // 4
TIMEOUT, CANCELLED, O_PROJ, SAMPLE_CODE = 1, 2, 4, 11

probes = module_value(lambda: Probes(k.small_config()))


def run(probes, blocks, control, *, absent=-1, reporting=-1, rounds=ROUNDS, timeout_ns=2_000_000):
    board = torch.full((2 * blocks * THREADS,), -1, dtype=torch.int32)
    errors, synced = torch.zeros(4, dtype=torch.int32), torch.zeros(blocks, dtype=torch.int32)
    addresses = map(probes.address, (control, board, errors, synced))
    params = BarrierProbe(*addresses, rounds, absent, reporting, 0, timeout_ns)
    assert probes.launch("barrier", params, blocks) == 0
    return int(errors[0]), synced.tolist()


def new_control() -> torch.Tensor:
    return torch.zeros(40, dtype=torch.int32)


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setenv("EMULATION_SMS", "16")


@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_everything_before_is_visible_after(probes, monkeypatch, blocks, seed):
    monkeypatch.setenv("EMULATION_SEED", str(seed))
    control = new_control()
    for _ in range(3):
        assert run(probes, blocks, control, timeout_ns=10**10) == (0, [ROUNDS] * blocks)
        assert not control.any()  # ready for the next launch without a memset


@pytest.mark.parametrize("first", [0, 1, 4])
def test_whichever_block_starts_first(probes, monkeypatch, first):
    monkeypatch.setenv("EMULATION_FIRST_BLOCK", str(first))
    assert run(probes, 5, new_control(), timeout_ns=10**10) == (0, [ROUNDS] * 5)


def test_an_expired_wait_names_stage_and_layer(probes):
    control = new_control()
    _, synced = run(probes, 3, control, absent=1, rounds=1)
    assert synced == [0, 0, 0]
    assert int(control[ERROR]) == TIMEOUT << 24 | O_PROJ << 16


@pytest.mark.parametrize("absent", [0, 2])
def test_a_block_that_stays_away_is_a_timeout_for_all(probes, absent):
    control = new_control()
    errors, synced = run(probes, 4, control, absent=absent)
    assert errors == 0
    assert synced == [ROUNDS // 2] * 4
    assert int(control[ERROR]) == TIMEOUT << 24 | O_PROJ << 16 | ROUNDS // 2
    assert run(probes, 4, new_control(), timeout_ns=10**10) == (0, [ROUNDS] * 4)


def test_a_report_stops_every_block_at_its_next_barrier(probes):
    control = new_control()
    errors, synced = run(probes, 4, control, reporting=3, timeout_ns=10**10)
    assert errors == 0
    # A block that still waits in the previous barrier may end there.
    assert set(synced) <= {ROUNDS // 2 - 1, ROUNDS // 2}
    assert int(control[ERROR]) == CANCELLED << 24 | SAMPLE_CODE << 16 | 7
