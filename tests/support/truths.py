"""Requests whose codes are committed (`tests/house/truths.json`), for every backend of a CPU.

Equal codes show that a refactoring changed no result; `tests/house/test_truths.py` draws them
again. Samples are float sums and differ between CPUs, so they are compared with those of another
commit for the same requests on the same machine:

    python tests/support/truths.py --base COMMIT    compare codes and samples, bit for bit
    python tests/support/truths.py --write          write truths.json anew
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "house" / "truths.json"

TEXT = "Hello there, how are you today?"
LONG_TEXT = "It is cold today. We will meet you at the hotel, and then we go to the station. " * 8
GREEDY = {"do_sample": False, "subtalker_do_sample": False}
NUM_FRAMES = 10
SHEEN = "sheen"  # an untrained voice of the second family (`write_sheen_voice`)


@dataclass(frozen=True)
class Case:
    """An engine, and the requests that it speaks at the same time."""

    name: str
    model: str
    backend: str
    requests: tuple[dict[str, Any], ...]
    num_slots: int = 1
    engine: dict[str, Any] = field(default_factory=dict)  # further options of the engine
    is_exact: bool = True  # its codes are in the file, because they are the same on every CPU


def _say(text: str | None = TEXT, **options: Any) -> dict[str, Any]:
    return {"text": text, "seed": 1, "max_frames": NUM_FRAMES, "chunk_frames": 4} | options


def voice(name: str) -> Callable[[Any], Any]:
    """Return a cloned voice for an engine: "x-vector" or "in context"."""

    def make(engine: Any) -> Any:
        from qwen_megakernel import Voice

        rng = np.random.default_rng(3)
        talker = engine.config.talker
        in_context = name == "in context"
        return Voice(
            "someone",
            x_vector=rng.standard_normal(talker.stack.hidden_size).astype(np.float32),
            codes=rng.integers(0, 2000, (9, talker.num_code_groups)) if in_context else None,
            transcript="It is not." if in_context else None,
        )

    return make


def cases() -> Iterator[Case]:
    """Return cases of each family, task, feed and backend, with one and with four slots."""
    voices = ("vivian", "eric", "serena", "ryan")
    many = tuple(_say(seed=seed, voice=name) for seed, name in enumerate(voices))
    for backend in ("torch", "graph", "emulation", "cpu"):
        for feed in ("stepwise", "full"):
            request = _say(voice="vivian", language="english", text_feed=feed)
            yield Case(f"{backend}: custom voice, {feed}", "tiny-random", backend, (request,))
        yield Case(f"{backend}: four slots", "tiny-random", backend, many, num_slots=4)
        cloned = _say(voice=voice("in context"), language="german")
        yield Case(f"{backend}: cloned in context", "tiny-random-base", backend, (cloned,))
    open_text = _say(None, text_open=True, voice="ryan")
    for backend in ("torch", "emulation", "cpu"):
        yield Case(f"{backend}: open text", "tiny-random", backend, (open_text,))
        designed = _say(instruct="A calm old man.", language="french")
        yield Case(f"{backend}: voice design", "tiny-random-design-1.7b", backend, (designed,))
        int8 = {"weights": "int8-rows"}
        yield Case(f"{backend}: int8", "tiny-random", backend, (_say(voice="eric"),), engine=int8)
    plain = _say(voice=voice("x-vector"), text_feed="full", **GREEDY)
    yield Case("torch: cloned by x-vector, greedy", "tiny-random-base-1.7b", "torch", (plain,))
    instructed = _say(voice="ryan", instruct="Speak slowly.", top_p=0.8, temperature=1.3)
    yield Case("torch: instructed", "tiny-random-1.7b", "torch", (instructed,))
    parts = _say(LONG_TEXT, voice="ryan", max_frames=200, repetition_penalty=1.3)
    limit = {"max_frames": 40}
    yield Case("torch: a text in parts", "tiny-random", "torch", (parts,), engine=limit)
    spoken = _say("Your table is ready.", max_frames=None)
    yield Case("torch: demo-voice", "demo-voice", "torch", (spoken,))
    bf16 = {"dtype": "bfloat16"}
    for backend in ("torch", "graph", "emulation"):
        request = (_say(voice="vivian"),)
        name = f"{backend}: bfloat16"
        yield Case(name, "tiny-random", backend, request, engine=bf16, is_exact=False)
    for backend in ("torch", "emulation"):
        texts = ("həˈloʊ wɝld", "ɡʊd ˈmɔɹnɪŋ")
        some = tuple({"text": text, "seed": 1, "max_frames": 3} for text in texts)
        phonemes = {"phonemes": True}
        yield Case(f"{backend}: sheen", SHEEN, backend, some, num_slots=2, engine=phonemes)


def speak(case: Case, sheen_folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return codes [num_frames, num_code_groups] and int16 samples of every request."""
    from qwen_megakernel import SheenEngine, TTSEngine

    options = {"dtype": "float32", "num_slots": case.num_slots, "warmup": False} | case.engine
    if case.model == SHEEN:
        engine = SheenEngine.from_pretrained(str(sheen_folder), backend=case.backend, **options)
    else:
        engine = TTSEngine.from_pretrained(case.model, backend=case.backend, **options)
    with engine:
        with _held(engine):
            streams = [_start(engine, request) for request in case.requests]
        made = []
        for stream in streams:
            samples = np.concatenate([chunk.samples for chunk in stream])
            made.append((np.array(stream.codes), samples))
        return made


@contextlib.contextmanager
def _held(engine: Any) -> Iterator[None]:
    """Let all streams that are made in the block begin together, at its end.

    The last bit of samples may depend on the number of streams that the vocoder decodes at once.
    """
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait()

    holder = threading.Thread(target=engine._loop.run, args=(hold,))
    holder.start()
    is_held.wait()
    yield
    go_on.set()
    holder.join()


def _start(engine: Any, request: dict[str, Any]) -> Any:
    request = dict(request)
    if callable(request.get("voice")):
        request["voice"] = request["voice"](engine)
    stream = engine.stream(request.pop("text"), **request)
    if request.get("text_open"):
        for word in TEXT.split(" "):
            stream.feed(word + " ")
        stream.end_text()
    return stream


def write_sheen_voice(folder: Path) -> None:
    """Write a small untrained voice; its weights are drawn, so they are the same on every CPU."""
    import torch
    from sheen_toys import CODEBOOK_SIZE, QWEN2_CONFIG
    from snac import SNAC
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from qwen_megakernel.checkpoint import loading
    from qwen_megakernel.sheen import model_folder
    from qwen_megakernel.sheen.random_models import SNAC_CONFIG
    from qwen_megakernel.sheen.tokens import add_audio_tokens, resize_embeddings

    snac = folder / "snac-source"
    snac.mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(SNAC(**SNAC_CONFIG).state_dict(), snac / "pytorch_model.bin")
        (snac / "config.json").write_text(json.dumps(SNAC_CONFIG))
        tokenizer = AutoTokenizer.from_pretrained(loading.resolve("tiny-random").folder)
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer) + 40, **QWEN2_CONFIG))
        tokens = add_audio_tokens(tokenizer, CODEBOOK_SIZE)
        resize_embeddings(model, tokenizer)
        for weight in model.parameters():  # drawn once more, because resizing solves equations
            if weight.dim() == 2:
                weight.data.normal_(std=0.1)
    model_folder.save(folder, model, tokenizer, tokens, model_folder.SheenConfig(512, None), snac)


def record(folder: Path) -> None:
    """Speak every case, and write codes and samples to folder/NAME.npz."""
    for index, case in enumerate(cases()):
        made = speak(case, folder / SHEEN)
        arrays = {f"codes{row}": codes for row, (codes, _) in enumerate(made)}
        arrays |= {f"samples{row}": samples for row, (_, samples) in enumerate(made)}
        np.savez(folder / f"{index}.npz", **arrays)


def write(path: Path) -> None:
    """Speak every exact case, and write a line of JSON for each stream."""
    with tempfile.TemporaryDirectory() as scratch:
        write_sheen_voice(Path(scratch) / SHEEN)
        found = {
            case.name: [codes.tolist() for codes, _ in speak(case, Path(scratch) / SHEEN)]
            for case in cases()
            if case.is_exact
        }
    lines = []
    for name, streams in found.items():
        rows = ",\n  ".join(json.dumps(codes, separators=(",", ":")) for codes in streams)
        lines.append(f"{json.dumps(name)}: [\n  {rows}\n ]")
    path.write_text("{\n " + ",\n ".join(lines) + "\n}\n")


def compare_with(commit: str) -> int:
    """Speak every case here and in a worktree of `commit`; return how many cases differ."""
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree, here, there = (Path(scratch) / name for name in ("tree", "here", "there"))
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            write_sheen_voice(here / SHEEN)
            there.mkdir()
            (there / SHEEN).symlink_to(here / SHEEN)
            for package, folder in ((ROOT, here), (tree, there)):
                command = [sys.executable, __file__, "--record", str(folder)]
                subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(package)})
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        for index, case in enumerate(cases()):
            ours, theirs = (np.load(folder / f"{index}.npz") for folder in (here, there))
            same = ours.files == theirs.files and all(
                np.array_equal(ours[name], theirs[name]) for name in ours.files
            )
            sizes = [ours[name].shape[0] for name in ours.files]
            print(f"{'same' if same else 'DIFFERENT':10}{case.name}  {sizes}")
            different += not same
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write truths.json anew")
    parser.add_argument("--base", metavar="COMMIT", help="compare with what this commit makes")
    parser.add_argument("--record", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    if args.record:
        record(args.record)
    elif args.write:
        write(FILE)
    else:
        return compare_with(args.base or "HEAD")
    return 0


if __name__ == "__main__":
    sys.exit(main())
