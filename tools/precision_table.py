#!/usr/bin/env python3
"""Measure the errors of half precision and int8 by part of the decoder; write docs/precision.md.

Every variant decodes the same codes (teacher forcing), so that a different code does not count
again in later frames. Each is compared with the plain decoder in float32 on the same bf16 weights.
Two processes run side by side, with PyTorch's best instruction set and with its plainest; the page
has the digits on which they agree. This takes minutes.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import torch
from torch import Tensor

from benchmarks import common, page_parts, precision_page
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

RESULT = page_parts.RESULTS / "precision.json"
PAGE = "docs/precision.md"
CPU = torch.device("cpu")
HALF, FULL = torch.bfloat16, torch.float32

# The set that PyTorch finds, and none of the CPU's vector instructions.
INSTRUCTION_SETS = ({}, {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"})

NUM_PROMPTS, NUM_POSITIONS, NUM_FRAMES = 3, 24, 16
# Depth, heads of 128 and code groups of the 0.6B model; its width is cut to a quarter.
WIDTH, MLP_WIDTH, NUM_HEADS, NUM_KV_HEADS = 256, 768, 4, 2
BRANCH_GAIN, LOGIT_STD, EMBEDDING_STD = 0.5, 3.0, 0.3  # as in the built-in random checkpoints


def narrow_config() -> ModelConfig:
    """Return the 0.6B model at full depth and a quarter of its width."""
    config = parse_model_config(model_config("random-0.6b"))
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": MLP_WIDTH,
        "num_heads": NUM_HEADS,
        "num_kv_heads": NUM_KV_HEADS,
    }
    talker = replace(
        config.talker,
        stack=replace(config.talker.stack, **sizes),
        text_vocab_size=8,
        text_hidden_size=8,
    )
    predictor = replace(config.predictor, stack=replace(config.predictor.stack, **sizes))
    return replace(config, talker=talker, predictor=predictor)


def random_checkpoint(config: ModelConfig) -> Any:
    """Return random weights that bf16 holds exactly."""
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, shape in model_tensors(config).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif "embedding" in name:
            values *= EMBEDDING_STD
        elif "head" in name:
            values *= LOGIT_STD / shape[-1] ** 0.5
        elif values.dim() == 2:
            gain = BRANCH_GAIN if "o_proj" in name or "down_proj" in name else 1.0
            values *= gain / shape[-1] ** 0.5
        weights[name.removeprefix(TALKER_PREFIX)] = values.bfloat16()
    return SimpleNamespace(config=config, talker=weights)


def begin(decoder: Any, prompt: int) -> None:
    """Start prompt number `prompt` in a decoder; its pad row stands for the text of every frame."""
    generator = torch.Generator().manual_seed(100 + prompt)
    rows = EMBEDDING_STD * torch.randn(NUM_POSITIONS + 1, WIDTH, generator=generator)
    rows = rows.bfloat16().to(decoder.embeddings.dtype)
    prefill = Prefill(rows[:-1], rows[:0], rows[-1])
    decoder.prefill(0, prefill, Sampling(), seed=prompt, part=0)


def stages(decoder: Any, prompt: int, forced: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Run a teacher-forced utterance. Return every stage, stacked over frames, float32; and the
    codes [NUM_FRAMES, groups] that the default sampling draws on the way.
    """
    seen: dict[str, list[Tensor]] = {}

    def tap(name: str, value: Tensor) -> None:
        part, what, *number = name.split(".")
        label = f"{part} after layer {int(number[0]) + 1}" if number else f"{part} {what}"
        # the last position is that of a frame or of the last code
        seen.setdefault(label, []).append(value[-1].float())

    def tap_hidden(name: str, value: Tensor) -> None:
        """Keep the hidden state; the first frame begins with the prompt's last one."""
        if name == "talker.hidden":
            tap(name, value)

    taps: dict[str, Tensor] = {}
    if isinstance(decoder, PlainDecoder):
        decoder.talker.tap = tap_hidden
    begin(decoder, prompt)
    if isinstance(decoder, PlainDecoder):
        decoder.talker.tap = decoder.predictor.tap = tap
    drawn = torch.from_numpy(decoder.step([0], NUM_FRAMES, forced[None], taps).codes[0])
    if isinstance(decoder, PlainDecoder):
        decoder.talker.tap = decoder.predictor.tap = None
    seen.pop("code_predictor hidden", None)
    stacked = {name: torch.stack(values) for name, values in seen.items()}
    return stacked | {f"{name} logits": logits[0] for name, logits in taps.items()}, drawn


def make_variants(config: ModelConfig) -> dict[str, Any]:
    """Return a decoder for each of `VARIANTS`, on the same weights; the first is float32."""
    checkpoint = random_checkpoint(config)
    int8 = {
        weights: SimpleNamespace(
            config=config, talker=quantization.quantize(checkpoint.talker, weights)
        )
        for weights in precision_page.FORMS
    }
    full, half = (DecoderSizes(1, 128, CPU, dtype) for dtype in (FULL, HALF))
    return {
        "fp32": PlainDecoder(checkpoint, full),
        "bf16": PlainDecoder(checkpoint, half),
        "mixed": PlainDecoder(checkpoint, replace(half, predictor_dtype=FULL)),
        **{weights: PlainDecoder(quantized, full) for weights, quantized in int8.items()},
        "int8-rows, bf16": PlainDecoder(int8["int8-rows"], half),
        "cpu fp32": CpuDecoder(checkpoint, full),
        "cpu int8-groups": CpuDecoder(int8["int8-groups"], full),
        "cpu int8-groups-heads": CpuDecoder(int8["int8-groups-heads"], full),
        "cpu int6": CpuDecoder(int8["int6"], full),
        "cpu int4-heads": CpuDecoder(int8["int4-heads"], full),
        "kernel fp32": KernelDecoder(checkpoint, full),
        "kernel bf16": KernelDecoder(checkpoint, half),
        "kernel int8-talker-rows": KernelDecoder(int8["int8-talker-rows"], half),
        "kernel int8-rows": KernelDecoder(int8["int8-rows"], half),
    }


def compare(decoders: dict[str, Any]) -> dict[str, Any]:
    """Decode with every variant and compare with the first."""
    measure = next(iter(decoders.values()))
    exact: dict[int, tuple[Tensor, dict[str, Tensor], Tensor]] = {}
    for prompt in range(NUM_PROMPTS):
        begin(measure, prompt)
        codes = torch.from_numpy(measure.step([0], NUM_FRAMES).codes[0])
        exact[prompt] = (codes, *stages(measure, prompt, codes))
    found = {}
    for name, decoder in decoders.items():
        errors: dict[str, list[float]] = {}
        best = {"talker logits": [], "predictor logits": []}
        kept = []
        for prompt, (codes, expected, expected_codes) in exact.items():
            actual, drawn = stages(decoder, prompt, codes)
            for stage, value in actual.items():
                target = expected[stage].view(value.shape)
                rms = ((value - target).square().mean() / target.square().mean()).sqrt()
                errors.setdefault(stage, []).append(rms.item())
                if stage in best:
                    best[stage].append((value.argmax(-1) == target.argmax(-1)).flatten())
            kept.append((drawn == expected_codes).flatten())
        found[name] = {
            "relative_rms_error": {s: sum(e) / len(e) for s, e in errors.items()},
            "best_code_agrees": {s: torch.cat(v).float().mean().item() for s, v in best.items()},
            "drawn_code_agrees": torch.cat(kept).float().mean().item(),
        }
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    return found


def one_run() -> dict[str, Any]:
    """Return the figures with the instruction set that PyTorch uses in this process."""
    return {
        "torch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "variants": compare(make_variants(narrow_config())),
    }


def all_runs() -> list[dict[str, Any]]:
    """Return `one_run` of a process for each of `INSTRUCTION_SETS`, run side by side.

    Raises:
        subprocess.CalledProcessError: one of them failed.
    """

    def run(environment: dict[str, str]) -> dict[str, Any]:
        command = [sys.executable, __file__, "--one"]
        done = subprocess.run(
            command, env=os.environ | environment, stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(run, INSTRUCTION_SETS))


def main() -> int:
    """Measure, and write the result file and the page."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--one",
        "measure with this process's instruction set only, and print the figures as JSON",
        bool,
    )
    if parser.parse_args().one:
        print(json.dumps(one_run()))
        return 0
    common.observe()
    config = narrow_config()
    found = common.header() | {
        "model": {
            "weights": "random, exactly representable in bf16",
            "layers": [config.talker.stack.num_layers, config.predictor.stack.num_layers],
            "hidden_size": WIDTH,
            "intermediate_size": MLP_WIDTH,
            "heads": [NUM_HEADS, NUM_KV_HEADS, config.talker.stack.head_dim],
            "code_groups": config.talker.num_code_groups,
        },
        "frames": NUM_PROMPTS * NUM_FRAMES,
        "runs": all_runs(),
    }
    common.write_json(str(RESULT), found)
    page_parts.write(PAGE, precision_page.precision())
    return 0


if __name__ == "__main__":
    sys.exit(main())
