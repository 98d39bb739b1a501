"""Changes a model's files, voice files and codes at random, and speaks with what is accepted.

Every change must end in speech or in an error of this package. As a program, with further flags
for the compiler of native code (those of sanitizers):

    python hostile_files.py NUM_CHANGES FOLDER FLAG...
"""

import json
import os
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qwen_megakernel import TTSEngine, Voice
from qwen_megakernel.checkpoint import loading, packed_form
from qwen_megakernel.decoders.cpu import conversion
from qwen_megakernel.engine import codes_file
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.native import cpu_library

MODEL = "tiny-random-base"
CONFIGS = ("config.json", "speech_tokenizer/config.json", "generation_config.json")
WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")
VOICE = "a.voice.safetensors"

NUMBERS = st.sampled_from(
    [
        *(0, 1, -1, 2, 3, 16, 4096, 2**31 - 1, 2**31, 2**32 + 5, 2**62, 2**63, 2**64, 10**30),
        *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
    ]
)
OTHERS = st.sampled_from([None, True, "", "7", [], {}, [[]], [0], [-1, 2], {"a": -1}])


def paths_of(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of each entry of a JSON document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from paths_of(entry, (*path, key))


def near(value: Any) -> st.SearchStrategy:
    """Draw a value of the same type, which is more often accepted."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([value + 1, value - 1, 2 * value, value // 2, value + 8])
    if isinstance(value, float):
        return st.sampled_from([2 * value, value / 2, -value])
    if isinstance(value, list) and value:
        return st.sampled_from([value[:-1], [*value, value[-1]], value[::-1], value[1:]])
    return OTHERS


def change_json(draw: Callable, document: Any) -> Any:
    """Return a copy of a JSON document with up to three changes."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        paths = list(paths_of(document))
        if not paths:
            break
        *parents, key = draw(st.sampled_from(paths))
        holder = document
        for parent in parents:
            holder = holder[parent]
        how = draw(st.sampled_from(["near", "near", "number", "other", "delete"]))
        if how == "delete":
            del holder[key]
        else:
            kinds = {"near": near(holder[key]), "number": NUMBERS, "other": OTHERS}
            holder[key] = deepcopy(draw(kinds[how]))  # the next change may be inside it
    return document


def change_bytes(draw: Callable, data: bytes) -> bytes:
    """Return a copy of a file that is cut, or in which bytes are replaced."""
    place = draw(st.integers(0, min(len(data), 4000)))
    if draw(st.booleans()):
        return data[:place]
    return data[:place] + draw(st.binary(max_size=9)) + data[place + draw(st.integers(0, 9)) :]


def change_safetensors(draw: Callable, data: bytes) -> bytes:
    """Return a copy of a safetensors file with another header, or with other bytes."""
    if draw(st.integers(0, 3)) == 0:
        return change_bytes(draw, data)
    [length] = struct.unpack("<Q", data[:8])
    document = json.loads(data[8 : 8 + length])
    metadata = document.get("__metadata__") or {}
    if packed_form.KEY in metadata and draw(st.booleans()):
        form = change_json(draw, json.loads(metadata[packed_form.KEY]))
        metadata[packed_form.KEY] = json.dumps(form)
    else:
        document = change_json(draw, document)
    header = json.dumps(document).encode()
    claimed = draw(st.sampled_from([len(header)] * 6 + [0, 2**31, 2**63, 2**64 - 1]))
    return struct.pack("<Q", claimed) + header + data[8 + length :]


def change_codes(draw: Callable) -> np.ndarray:
    """Return codes, or an array of any dtype, often of the shape of codes."""
    if draw(st.booleans()):
        return draw(arrays.arrays("i4", (3, 16), elements=st.integers(0, 2047)))
    shape = draw(st.sampled_from([(3, 16)] * 4 + [(0, 16), (3, 15), (3,), (), (1, 3, 16)]))
    dtype = draw(st.sampled_from(["i4", "i8", "u8", "i2", "u1", "f4", "?", "U1"]))
    if dtype.startswith("i"):
        high = draw(st.sampled_from([2047, 2048, np.iinfo(dtype).max]))
        elements = st.integers(draw(st.sampled_from([0, 0, -1])), int(high))
        return draw(arrays.arrays(dtype, shape, elements=elements))
    return draw(arrays.arrays(dtype, shape))


def attack(num_changes: int, folder: Path, weights: str | None = None) -> Counter:
    """Try changes of all kinds of files.

    Args:
        num_changes: number of changes.
        folder: a folder that does not exist yet, for the changed files.
        weights: the form to which the model is converted before; None: it is not converted.
    Returns:
        How often each kind of file was accepted or refused.
    """
    if weights:
        conversion.convert(loading.load(loading.resolve(MODEL)), weights, folder)
    else:
        shutil.copytree(loading.resolve(MODEL).folder, folder)
    original = {name: (folder / name).read_bytes() for name in (*CONFIGS, *WEIGHTS)}
    outcomes: Counter = Counter()
    with TTSEngine.from_pretrained(folder, backend="cpu", warmup=False) as engine:
        width, groups = engine.config.talker.stack.hidden_size, engine.config.talker.num_code_groups
        voice = Voice("a", np.ones(width, np.float32), np.ones((4, groups), np.int32), "Hello.")
        voice.save(folder / VOICE)
        original[VOICE] = (folder / VOICE).read_bytes()

        def try_one(draw: Callable, kind: str) -> None:
            if kind == "codes":
                codes = change_codes(draw)
                engine.decode(codes)
            elif kind == "codes file":
                (folder / "codes.tsv").write_bytes(change_bytes(draw, b"1\t2\t3\n4\t5\t6\n"))
                codes_file.read(folder / "codes.tsv")
            elif kind == VOICE:
                (folder / kind).write_bytes(change_safetensors(draw, original[kind]))
                changed = Voice.load(folder / kind)
                engine.synthesize("Hi.", voice=changed, max_frames=2, seed=1)
            else:
                if kind in WEIGHTS:
                    data = change_safetensors(draw, original[kind])
                elif draw(st.integers(0, 5)) == 0:
                    data = change_bytes(draw, original[kind])
                else:
                    data = json.dumps(change_json(draw, json.loads(original[kind]))).encode()
                # A new file, because the engine has mapped the old one.
                (folder / kind).unlink()
                (folder / kind).write_bytes(data)
                with TTSEngine.from_pretrained(folder, backend="cpu", warmup=False) as changed:
                    changed.synthesize("Hi.", max_frames=3, seed=1)

        if weights:
            kinds = [*CONFIGS[:2], *WEIGHTS, *WEIGHTS]
        else:
            kinds = [*CONFIGS, *CONFIGS[:2], *WEIGHTS, VOICE, VOICE, "codes", "codes file"]

        @settings(
            max_examples=num_changes,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data(), st.sampled_from(kinds))
        def change(data: st.DataObject, kind: str) -> None:
            try:
                try_one(data.draw, kind)
                outcomes[kind, "accepted"] += 1
            except QwenTTSError:
                outcomes[kind, "refused"] += 1
            finally:
                if kind in original and kind != VOICE:
                    (folder / kind).unlink(missing_ok=True)
                    (folder / kind).write_bytes(original[kind])

        change()
    return outcomes


if __name__ == "__main__":
    cpu_library.FLAGS += tuple(sys.argv[3:])
    for (kind, outcome), count in sorted(attack(int(sys.argv[1]), Path(sys.argv[2])).items()):
        print(f"{kind}\t{outcome}\t{count}")
