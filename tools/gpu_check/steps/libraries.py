"""Lists the kernel's libraries that steps need; its steps compile the missing ones.

`carry.py` compiles all of them beforehand, on a machine that need not have a GPU.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import kernel_models
import torch

from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.decoders.kernel.build import Target
from tools.gpu_check.steps.context import TOY, Context
from tools.gpu_check.variants import chosen

TOY_PROJECTED = "tiny-random-1.7b"

Jobs = dict[str, tuple[ModelConfig, Target]]


def model_jobs(context: Any) -> Jobs:
    """Return the libraries that most steps need: every model in every dtype.

    Args:
        context: a `Context`, or another object with its `arch`, `models`, `dtypes` and `toy`.
    """
    configs = {name: _config(name) for name in dict.fromkeys((TOY, *context.models))}
    return _in_every_dtype(context, configs | {"small": kernel_models.small_config()})


def stamp_jobs(context: Any) -> Jobs:
    """Return every model with the stamps that the step `stage_times` reads."""
    target = Target(context.arch, context.dtypes[-1], stage_times=True)
    return {f"{name} with stamps": (_config(name), target) for name in context.models}


def test_jobs(context: Any) -> Jobs:
    """Return the libraries that tests/decoders/kernel needs besides those of `model_jobs`."""
    if context.toy:
        return {}
    configs = {TOY_PROJECTED: _config(TOY_PROJECTED)}
    for name, changes in kernel_models.SHAPES.items():
        configs[name] = kernel_models.small_config(**changes)
    projected = {"projected": configs["projected"]}
    return _in_every_dtype(context, configs) | _with_int8(context, projected)


def variant_jobs(context: Any) -> Jobs:
    """Return every variant of every model, in the dtype with which speed is measured."""
    return {
        f"{name}, {variant}": (
            _config(name),
            Target(context.arch, context.dtypes[-1], defines=tuple(defines.items())),
        )
        for name, (variant, defines) in product(context.models, chosen(context.toy))
    }


def int8_jobs(context: Any) -> Jobs:
    """Return every model with int8 layers."""
    return _with_int8(context, {name: _config(name) for name in context.models})


def _config(name: str) -> ModelConfig:
    return parse_model_config(model_config(name))


def _in_every_dtype(context: Any, configs: dict[str, ModelConfig]) -> Jobs:
    return {
        f"{name} {dtype}": (config, Target(context.arch, dtype))
        for (name, config), dtype in product(configs.items(), context.dtypes)
    }


def _with_int8(context: Any, configs: dict[str, ModelConfig]) -> Jobs:
    return {
        f"{name} {weights} {dtype}": (config, Target(context.arch, dtype, int8=stacks))
        for (name, config), (weights, stacks), dtype in product(
            configs.items(), INT8_STACKS.items(), context.dtypes
        )
    }


# The libraries that each building step compiles.
JOBS = {
    "build": (model_jobs, stamp_jobs),
    "variant_build": (model_jobs, variant_jobs, test_jobs),
    "int8_build": (model_jobs, int8_jobs),
}


def all_jobs(context: Any) -> Jobs:
    """Return the libraries of all steps."""
    jobs: Jobs = {}
    for make in dict.fromkeys(make for makes in JOBS.values() for make in makes):
        jobs |= make(context)
    return jobs


def compile_all(jobs: Jobs, num_threads: int) -> dict[str, dict[str, Any]]:
    """Compile the libraries that the cache lacks, several at a time; return {"seconds", "ptxas"} of
    each."""

    def compile_one(job: tuple[ModelConfig, Target]) -> dict[str, Any]:
        started = time.monotonic()
        library = kernel_build.build(*job)
        log = library.with_name("build.log").read_text()
        ptxas = [line.strip() for line in log.splitlines() if "Used" in line]
        return {"seconds": round(time.monotonic() - started, 1), "ptxas": ptxas}

    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        return dict(zip(jobs, pool.map(compile_one, jobs.values()), strict=True))


def build(context: Context, name: str = "build") -> dict[str, Any]:
    """Compile the libraries that a set of steps needs and the cache lacks."""
    jobs: Jobs = {}
    for make in JOBS[name]:
        jobs |= make(context)
    found = compile_all(jobs, os.cpu_count() or 1)
    return {"torch": torch.__version__, "arch": context.arch, "libraries": found}
