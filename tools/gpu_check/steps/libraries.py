"""Steps for what a fresh machine lacks: the kernel's libraries and the random checkpoints."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import kernel_models
import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.decoders.kernel.build import Target
from tools.gpu_check.steps.context import TOY, Context

TOY_PROJECTED = "tiny-random-1.7b"

Jobs = dict[str, tuple[ModelConfig, Target]]


def build(context: Context) -> dict[str, Any]:
    """Compile every library the later steps need and write the random checkpoints."""
    names = (TOY,) if context.toy else (TOY, TOY_PROJECTED, *context.models)
    configs = {name: parse_model_config(model_config(name)) for name in names}
    shapes = {"small": {}} if context.toy else kernel_models.SHAPES
    for name, changes in shapes.items():
        configs[name] = kernel_models.small_config(**changes)
    jobs = {
        f"{name} {dtype}": (configs[name], Target(context.arch, dtype))
        for name, dtype in product(configs, context.dtypes)
    }
    for (weights, stacks), dtype in product(INT8_STACKS.items(), context.dtypes):
        if not context.toy:  # what tests/decoders/kernel takes with int8 layers
            target = Target(context.arch, dtype, int8=stacks)
            jobs[f"projected {weights} {dtype}"] = configs["projected"], target
    return _build(context, names, jobs)


def engine_build(context: Context) -> dict[str, Any]:
    """Compile what `endurance` and `listeners` need and write the checkpoints, where missing."""
    target = Target(context.arch, context.dtypes[-1])
    jobs = {name: (parse_model_config(model_config(name)), target) for name in context.models}
    jobs["small"] = kernel_models.small_config(), Target(context.arch, "float32")
    return _build(context, context.models, jobs)


def int8_build(context: Context) -> dict[str, Any]:
    """Compile what the steps with int8 layers need and write the checkpoints."""
    jobs = {
        f"{name} {weights} {dtype}": (
            parse_model_config(model_config(name)),
            Target(context.arch, dtype, int8=INT8_STACKS.get(weights, ())),
        )
        for name, weights, dtype in product(context.models, ("bf16", *INT8_STACKS), context.dtypes)
    }
    return _build(context, context.models, jobs)


def _build(context: Context, names: Sequence[str], jobs: Jobs) -> dict[str, Any]:
    """Write the checkpoints `names`, compile `jobs`, all at once."""

    def compile_one(job: tuple[ModelConfig, Target]) -> dict[str, Any]:
        started = time.monotonic()
        library = kernel_build.build(*job)
        log = library.with_name("build.log").read_text()
        ptxas = [line.strip() for line in log.splitlines() if "Used" in line]
        return {"seconds": round(time.monotonic() - started, 1), "ptxas": ptxas}

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        written = [pool.submit(loading.resolve, name) for name in names]
        compiled = dict(zip(jobs, pool.map(compile_one, jobs.values()), strict=True))
        for each in written:
            each.result()
    return {"torch": torch.__version__, "arch": context.arch, "libraries": compiled}
