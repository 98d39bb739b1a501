"""csrc/norm_rope.cuh against the plain decoder's functions."""

import kernel_models as k
import pytest
import torch
from probes import NormRopeProbe, Probes, random, with_poisoned_tail
from tolerances import NORM_F32, ROUNDING_F32

from qwen_megakernel.decoders.layers import rms_norm, rotary, rotate


@pytest.mark.parametrize(
    "head_dim", [32, *(pytest.param(size, marks=pytest.mark.ci) for size in (48, 64))]
)
@pytest.mark.parametrize("positions", [(0, 0, 0), (37, 37, 37), (5, 90, 311)])
def test_head_norm_and_rotation(head_dim, positions):
    config = k.small_config(talker={"head_dim": head_dim})
    stack, num_heads = config.talker.stack, 5
    probes = Probes(config)
    heads, weight = random(num_heads, head_dim, seed=1), random(head_dim, seed=2)
    row, row_weight = random(stack.hidden_size, seed=3), random(stack.hidden_size, seed=4)
    out, normed = torch.full((num_heads, head_dim), torch.nan), torch.full_like(row, torch.nan)
    params = NormRopeProbe(
        stack=probes.stack(),
        out=probes.address(out),
        heads=probes.address(with_poisoned_tail(heads)),
        weight=probes.address(with_poisoned_tail(weight)),
        normed_row=probes.address(normed),
        row=probes.address(with_poisoned_tail(row)),
        row_weight=probes.address(with_poisoned_tail(row_weight)),
        num_heads=num_heads,
        positions=positions,
    )
    assert probes.launch("norm_rope", params) == 0
    cos, sin = rotary(stack, torch.tensor(positions)[:, None], torch.float32)
    expected = rotate(rms_norm(heads, weight, stack.rms_norm_eps)[None], cos, sin)[0]
    torch.testing.assert_close(out, expected, rtol=NORM_F32, atol=ROUNDING_F32)
    torch.testing.assert_close(
        normed, rms_norm(row, row_weight, stack.rms_norm_eps), rtol=NORM_F32, atol=ROUNDING_F32
    )
