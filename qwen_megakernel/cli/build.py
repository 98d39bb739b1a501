"""The command `build`: compiles native code ahead of its first use."""

import argparse
from typing import Any

from qwen_megakernel.choices import DEFAULT_MODEL, WEIGHTS, WEIGHTS_HELP, WeightsForm
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import UsageError

# Values of --arch that name no GPU.
EMULATION = "emulation"  # the kernel's sources for this CPU
CPU = "cpu"  # the CPU decoder, for each instruction set


def build(args: argparse.Namespace) -> int:
    """Compile the kernel for a model's dimensions, or the CPU decoder, without weights or a GPU."""
    from qwen_megakernel.checkpoint import config, config_fields, hub, loading, random_configs
    from qwen_megakernel.decoders.kernel import build as kernel_build
    from qwen_megakernel.decoders.quantization import check_weights
    from qwen_megakernel.native import cpu_library

    options.log_progress(args, "native.compiling")
    archs = _archs(args.arch)
    if CPU in archs:
        for name in cpu_library.sets_of_machine():
            print(CPU, name, cpu_library.library_for(name))
        archs = [arch for arch in archs if arch != CPU]
    if not archs:
        return 0
    check_weights(args.weights, "kernel")
    stacks = tuple(WeightsForm.parse(args.weights).bits) if args.weights else ()
    # The dimensions of released models are known without a download.
    name = hub.RELEASED.get(args.model, args.model)
    if name in random_configs.RECIPES:
        model = config.parse_model_config(random_configs.model_config(name))
    else:
        path = options.model_files(args, name).folder / loading.CONFIG
        model = config.parse_model_config(config_fields.read_json(path), str(path))
    for arch in archs:
        dtype = args.dtype or ("bfloat16" if arch else "float32")
        target = kernel_build.Target(arch, dtype, int8=stacks)
        print(arch or EMULATION, args.weights or dtype, kernel_build.build(model, target))
    return 0


def add_commands(commands: Any) -> None:
    command = parsing.new_command(
        commands, "build", build, "compile native code ahead of its first use"
    )
    add = parsing.adder(command)
    add(
        "--model", "hub id, folder or built-in name of the model to compile for", str, DEFAULT_MODEL
    )
    add(
        "--arch LIST",
        "targets: sm_90a,sm_120,... (GPUs), cpu (the CPU decoder, for every instruction set of "
        "this architecture), emulation (the kernel on this CPU) (default: this GPU, else cpu)",
    )
    add(
        "--dtype",
        "number format of the weights (default: bfloat16 for a GPU, float32 for emulation)",
        ("float32", "bfloat16"),
    )
    add("--weights FORM", WEIGHTS_HELP, WEIGHTS)
    add(*options.LOCAL_FILES)


def _archs(names: str | None) -> list[str | None]:
    """Return the architectures to build for; None stands for the emulation."""
    import torch

    from qwen_megakernel.decoders.kernel import build as kernel_build

    if names is None:
        if not torch.cuda.is_available():
            return [CPU]
        capability = torch.cuda.get_device_capability()
        return [kernel_build.arch_of(capability, torch.cuda.get_device_name())]
    archs = names.split(",")
    for name in archs:
        if name not in (EMULATION, CPU) and not kernel_build.is_known_arch(name):
            raise UsageError(
                f"--arch has {name!r}; known: {', '.join(kernel_build.ARCHITECTURES)}, "
                f"{CPU}, {EMULATION}."
            )
    return [None if name == EMULATION else name for name in archs]
