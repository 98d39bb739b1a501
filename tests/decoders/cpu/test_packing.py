"""Packing: how much memory it takes beside its result."""

import sys
import weakref
from pathlib import Path

import pytest
import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.decoders.backends import choose_backend, load_decoder
from qwen_megakernel.decoders.cpu.packing import packed_names
from qwen_megakernel.decoders.quantization import QuantizedMatrix, RoundedWeights

MODEL = "tiny-random"


@pytest.mark.parametrize("weights", ["int8", "int8-rows-heads", "int8-talker-groups", "int4-int6"])
def test_only_the_parts_of_one_matrix_are_rounded_at_a_time(load_checkpoint, monkeypatch, weights):
    checkpoint = load_checkpoint(MODEL)
    prefixes = tuple(RoundedWeights.of(checkpoint.talker, weights, in_groups=True).bits)
    most = max(
        sum(checkpoint.talker[part].numel() for part in each.parts if part.startswith(prefixes))
        for each in packed_names(checkpoint.config)
    )
    living, found = [0], []

    def free(num_bytes: int) -> None:
        living[0] -= num_bytes

    def round_and_count(weight: torch.Tensor, **options) -> QuantizedMatrix:
        rounded = original(weight, **options)
        living[0] += weight.numel()
        weakref.finalize(rounded.values, free, weight.numel())
        found.append(living[0])
        return rounded

    original = QuantizedMatrix.of
    monkeypatch.setattr(QuantizedMatrix, "of", round_and_count)
    load_decoder(checkpoint, choose_backend("cpu"), weights=weights)
    assert len(found) > 10 and max(found) == most and living[0] == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("weights", [None, "int8"])
def test_packing_gives_the_pages_of_the_file_back(weights):
    checkpoint = loading.load(loading.resolve(MODEL))
    names = [part for each in packed_names(checkpoint.config) for part in each.parts]
    path = checkpoint.files.folder / loading.WEIGHTS
    total = sum(checkpoint.talker[name].nbytes for name in names)
    before = {name: checkpoint.talker[name].clone() for name in names}
    held = resident_bytes(path)
    assert held > total / 2
    load_decoder(checkpoint, choose_backend("cpu"), weights=weights)
    assert held - resident_bytes(path) > total / 2
    assert all(torch.equal(checkpoint.talker[name], before[name]) for name in names)


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file are in this process's memory."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        words = line.split()
        if "-" in words[0]:
            is_ours = line.endswith(str(path.resolve()))
        elif words[0] == "Rss:" and is_ours:
            total += 1024 * int(words[1])
    return total
