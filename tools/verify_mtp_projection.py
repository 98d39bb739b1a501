"""Check a code predictor's inputs and outputs with numpy and safetensors alone.

python tools/verify_mtp_projection.py FOLDER [--reference FILE | --write-reference FILE]

A checkpoint must have exactly the embeddings of all codes, the heads and, if its two hidden sizes
differ, `small_to_mtp_projection`, with the shapes that follow from config.json. All values must be
finite and of plausible size; no two tensors may be equal, and the projection must have full rank.
None of this detects rows in another order, or another model of the same shapes.

A reference detects both: it holds products of each of these matrices with fixed inputs, made by a
program that reads the weights in another way. It is a safetensors file with `NAME`: [4, rows]
float32 for each matrix `NAME` [rows, cols]; row i of it is matrix @ inputs[i] (+ bias), where
inputs[i, j] = sin((i + 1) * (j + 1)).

The exit code is 0 if all checks pass, else 1.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from qwen_megakernel.cli import parsing

PREDICTOR = "talker.code_predictor."
PROJECTION = f"{PREDICTOR}small_to_mtp_projection."
MATRIX = ".weight"
NUM_INPUTS = 4

# demo-voice and random checkpoints have root mean squares from 0.07 to 0.3, and nothing beyond 3.2.
MIN_RMS, MAX_RMS = 1e-3, 10.0
MAX_ABS = 100.0
# a share of the products' root mean square; a float32 sum of 2048 terms is some 3e-6 off
MAX_ERROR = 1e-4


def expected(talker: dict) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the predictor's inputs and outputs, from `talker_config`."""
    predictor = talker["code_predictor_config"]
    wide, narrow, codes = talker["hidden_size"], predictor["hidden_size"], predictor["vocab_size"]
    # Embeddings have the talker's width, because they are also summed into its next input.
    shapes = {f"talker.model.codec_embedding{MATRIX}": (talker["vocab_size"], wide)}
    for group in range(talker["num_code_groups"] - 1):
        shapes[f"{PREDICTOR}model.codec_embedding.{group}{MATRIX}"] = (codes, wide)
        shapes[f"{PREDICTOR}lm_head.{group}{MATRIX}"] = (codes, narrow)
    if wide != narrow:
        shapes |= {PROJECTION + "weight": (narrow, wide), PROJECTION + "bias": (narrow,)}
    return shapes


def stored(path: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of these tensors in the file."""
    kinds = ("talker.model.codec_embedding.", PROJECTION)
    kinds += tuple(f"{PREDICTOR}{kind}." for kind in ("model.codec_embedding", "lm_head"))
    with safe_open(path, framework="numpy") as file:
        names = [name for name in file.keys() if name.startswith(kinds)]  # noqa: SIM118 - no dict
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def read(path: Path, name: str) -> np.ndarray:
    """Return a tensor as float32. numpy has no bf16: its 16 bits are a float32's upper half."""
    with safe_open(path, framework="numpy") as file:
        if file.get_slice(name).get_dtype() != "BF16":
            return file.get_tensor(name).astype(np.float32)
    with path.open("rb") as raw:
        header_size = int.from_bytes(raw.read(8), "little")
        entry = json.loads(raw.read(header_size))[name]
        begin, end = entry["data_offsets"]
        raw.seek(8 + header_size + begin)
        bits = np.frombuffer(raw.read(end - begin), dtype="<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])


def problems(path: Path, talker: dict) -> list[str]:
    """Return what is wrong with names and shapes or, if nothing is, with each tensor's values."""
    wanted, found = expected(talker), stored(path)
    wrong = [
        f"{name}: {found.get(name, 'missing')}; need {wanted.get(name, 'none')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    if wrong:
        return wrong
    seen: dict[bytes, str] = {}
    for name in wanted:
        values = read(path, name)
        wrong += [f"{name}: {fault}" for fault in faults(name, values)]
        twin = seen.setdefault(values.tobytes(), name)
        if twin != name:
            wrong.append(f"{name}: equals {twin}")
    return wrong


def faults(name: str, values: np.ndarray) -> list[str]:
    """Return what is wrong with the values of one tensor."""
    if not np.isfinite(values).all():
        return ["NaN or infinity"]
    rms, most = rms_of(values), float(np.abs(values).max())
    found = []
    if rms > MAX_RMS or most > MAX_ABS or (rms < MIN_RMS and name.endswith(MATRIX)):
        found.append(
            f"root mean square {rms:.3g}, largest {most:.3g}; need at most {MAX_RMS:g} and "
            f"{MAX_ABS:g}, and of a matrix {MIN_RMS:g} at least"
        )
    if name == PROJECTION + "weight":
        rank = np.linalg.matrix_rank(values.astype(np.float64))
        if rank < min(values.shape):
            found.append(f"rank {rank} of {min(values.shape)}: predictor inputs are lost")
    return found


def rms_of(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def products(path: Path, talker: dict) -> dict[str, np.ndarray]:
    """Return matrix -> its products with the fixed inputs, [NUM_INPUTS, rows] float32."""
    found = {}
    for name, shape in expected(talker).items():
        if name.endswith(MATRIX):
            inputs = np.sin(np.outer(np.arange(1, NUM_INPUTS + 1), np.arange(1, shape[1] + 1)))
            product = inputs @ read(path, name).astype(np.float64).T
            if name == PROJECTION + "weight":
                product += read(path, PROJECTION + "bias")
            found[name] = product.astype(np.float32)
    return found


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[str]:
    """Return where the checkpoint's products differ from those of the reference."""
    wrong = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            wrong.append(f"{name}: only in the {'reference' if name in theirs else 'checkpoint'}")
        elif ours[name].shape != theirs[name].shape:
            wrong.append(f"{name}: the reference has {theirs[name].shape}, not {ours[name].shape}")
        else:
            error = np.abs(ours[name] - theirs[name]).max() / rms_of(ours[name])
            if not error <= MAX_ERROR:  # a NaN fails this too
                wrong.append(
                    f"{name}: products with fixed inputs differ by {error:.2g} of their size"
                )
    return wrong


def main() -> int:
    """Print the verdict, and what it does not cover."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("folder", "checkpoint folder with config.json and model.safetensors", Path)
    add = parsing.adder(parser.add_mutually_exclusive_group())
    add(
        "--reference FILE",
        "file with another program's products, to compare this checkpoint's with",
        Path,
    )
    add(
        "--write-reference FILE",
        "file to write this checkpoint's products to, as a reference for others",
        Path,
    )
    args = parser.parse_args()
    config, path = args.folder / "config.json", args.folder / "model.safetensors"
    for file in (config, path, args.reference):
        if file and not file.is_file():
            parser.error(f"there is no file {file}")
    talker = json.loads(config.read_text(encoding="utf-8"))["talker_config"]
    wrong = problems(path, talker)
    if args.reference and not wrong:
        wrong = differences(products(path, talker), load_file(args.reference))
    if wrong:
        print("\n".join(wrong))
        return 1
    print(f"ok: {len(expected(talker))} tensors, their names, shapes and plausible sizes")
    if args.reference:
        print(f"ok: products with fixed inputs are those of {args.reference}")
    else:
        print("not checked: whether the values are the right ones; --reference FILE checks that")
    if args.write_reference:
        save_file(products(path, talker), args.write_reference)
    return 0


if __name__ == "__main__":
    sys.exit(main())
