"""The command `build`: native code compiled ahead of its first use."""

import argparse
from typing import Any

from qwen_megakernel.choices import DEFAULT_MODEL, WEIGHTS, WEIGHTS_HELP, Int8Format
from qwen_megakernel.cli import options
from qwen_megakernel.errors import UsageError

EMULATION = "emulation"  # as an architecture: the kernel's sources for this CPU
CPU = "cpu"  # as an architecture: the CPU decoder, for each instruction set


def build(args: argparse.Namespace) -> int:
    """Compile the kernel for a model's dimensions, or the CPU decoder; needs no weights, no GPU."""
    from qwen_megakernel.checkpoint import config, hub, loading, random_configs
    from qwen_megakernel.decoders.int8 import check_weights
    from qwen_megakernel.decoders.kernel import build as kernel_build
    from qwen_megakernel.native import cpu_library

    options.tell_compiling(args)
    archs = _archs(args.arch)
    if CPU in archs:
        for name in cpu_library.sets_of_machine():
            print(CPU, name, cpu_library.library_for(name))
        archs = [arch for arch in archs if arch != CPU]
    if not archs:
        return 0
    check_weights(args.weights, "kernel")
    stacks = Int8Format.parse(args.weights).stacks if args.weights else ()
    # Released models have dimensions we know: nothing is downloaded, and nothing written for the
    # random ones.
    name = hub.RELEASED.get(args.model, args.model)
    if name in random_configs.RECIPES:
        model = config.parse_model_config(random_configs.model_config(name))
    else:
        files = loading.resolve(
            name, local_files_only=args.local_files_only, progress=not args.quiet
        )
        path = files.folder / loading.CONFIG
        model = config.parse_model_config(config.read_json(path), str(path))
    for arch in archs:
        dtype = args.dtype or ("bfloat16" if arch else "float32")
        target = kernel_build.Target(arch, dtype, int8=stacks)
        print(arch or EMULATION, args.weights or dtype, kernel_build.build(model, target))
    return 0


def add_command(commands: Any) -> None:
    """Add `build` to the subparsers `commands`."""
    command = commands.add_parser(
        "build", help="compile native code ahead of its first use", description=build.__doc__
    )
    command.add_argument("--model", default=DEFAULT_MODEL, help="hub id, folder or built-in name")
    command.add_argument(
        "--arch",
        metavar="LIST",
        help="what to compile for: sm_90a,sm_120,... (GPUs), cpu (the CPU decoder, for every "
        "instruction set of such machines), emulation (default: this machine's GPU, else cpu)",
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the weights (default: bfloat16 for a GPU, float32 for emulation)",
    )
    command.add_argument("--weights", choices=WEIGHTS, metavar="FORM", help=WEIGHTS_HELP)
    command.add_argument("--local-files-only", action="store_true", help="never use the network")
    options.add_verbosity(command)
    command.set_defaults(run=build)


def _archs(names: str | None) -> list[str | None]:
    """Architectures to build for; None stands for the emulation.

    Raises:
        UsageError: a name that the kernel has no limits for.
    """
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
