"""Check `small_to_mtp_projection` of a checkpoint with numpy and safetensors alone.

python tools/verify_mtp_projection.py FOLDER

A 1.7B checkpoint must have the projection, with the shapes its config asks for, finite and of full
rank; a 0.6B one must not have it, because its two hidden sizes are equal. Exit code 0: as it should
be; 1: not.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

NAME = "talker.code_predictor.small_to_mtp_projection."


def read(path: Path, name: str) -> np.ndarray | None:
    """A tensor as float32, or None. numpy has no bf16: those 16 bits are a float32's upper half."""
    with safe_open(path, framework="numpy") as file:
        if name not in file.keys():  # noqa: SIM118 - safe_open is no dict
            return None
        if file.get_slice(name).get_dtype() != "BF16":
            return file.get_tensor(name).astype(np.float32)
    with path.open("rb") as raw:
        header_size = int.from_bytes(raw.read(8), "little")
        entry = json.loads(raw.read(header_size))[name]
        begin, end = entry["data_offsets"]
        raw.seek(8 + header_size + begin)
        bits = np.frombuffer(raw.read(end - begin), dtype="<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])


def problems(folder: Path) -> list[str]:
    """What is wrong with the projection of the checkpoint in `folder`."""
    talker = json.loads((folder / "config.json").read_text())["talker_config"]
    wide, narrow = talker["hidden_size"], talker["code_predictor_config"]["hidden_size"]
    path = folder / "model.safetensors"
    weight, bias = read(path, NAME + "weight"), read(path, NAME + "bias")
    if wide == narrow:
        return ["a projection exists, but the hidden sizes are equal"] if weight is not None else []
    if weight is None or bias is None:
        return [f"no projection, but the talker is {wide} wide and the code predictor {narrow}"]
    if weight.shape != (narrow, wide) or bias.shape != (narrow,):
        return [f"shapes {weight.shape} and {bias.shape}; need {(narrow, wide)} and {(narrow,)}"]
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return ["NaN or infinity in the projection"]
    rows = min(narrow, wide)
    rank = np.linalg.matrix_rank(weight.astype(np.float64))
    return [] if rank == rows else [f"rank {rank} of {rows}: predictor inputs are lost"]


def main() -> int:
    """Print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    found = problems(parser.parse_args().folder)
    print("\n".join(found) if found else "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
