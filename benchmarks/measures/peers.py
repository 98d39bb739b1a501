"""Compare decoders on one checkpoint: every backend and, where installed, the official package.

Each samples whole frames of one stream, after a prompt of the same length, in one process on one
device. The official package generates through transformers, as its users do; its figure includes
its prompt.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import common
from benchmarks.measures.load import endless
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.decoders.backends import Backend, choose_backend, default_dtype, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import SetupError
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.speech_options import Sampling
from tools.validation import official

PROMPT_POSITIONS = 30
FRAMES_PER_STEP = 4
TEXT = "Hello there, how are you today?"


@common.takes(
    options.add_model_options,
    common.count("--frames", 80, "number of frames that each decoder makes"),
)
def peers(args: argparse.Namespace) -> int:
    """Measure every system that can run here; write the result file after each."""
    loaded = endless(loading.load(loading.resolve(args.model or "random-0.6b")))
    has_gpu = torch.cuda.is_available()
    device = torch.device(args.device or ("cuda" if has_gpu else "cpu"))
    dtype = (
        getattr(torch, args.dtype)
        if args.dtype
        else default_dtype(loaded, Backend("torch", device, ""))
    )
    torch.set_num_threads(args.threads or cpu_threads.available_cores())
    rows: list[dict[str, Any]] = []
    found = common.model_header(loaded.files, device=str(device), dtype=common.name_of(dtype))
    found |= {"settings": {"frames": args.frames, "prompt_positions": PROMPT_POSITIONS}}

    def add(system: str, measure: Callable[[], list[float]]) -> None:
        try:
            row = {"system": system} | common.native_set(system)
            if device.type == "cpu":
                row |= {"threads": torch.get_num_threads()}
            rows.append(row | {"ms_per_frame": common.spread(measure())})
        except SetupError as error:
            rows.append({"system": system, "why_not": error.what})
        measured = [row for row in rows if "ms_per_frame" in row]
        for row in measured:
            best = min(other["ms_per_frame"]["p50"] for other in measured)
            row["times_the_best"] = row["ms_per_frame"]["p50"] / best
        common.write_json(args.json, found | {"rows": rows})

    names = ("kernel", "graph", "torch") if device.type == "cuda" else ("cpu", "graph", "torch")
    for name in names:
        # The CPU's native code computes in one dtype, whatever the weights are stored in.
        its = torch.float32 if name == "cpu" else dtype
        add(
            name,
            lambda name=name, its=its: decoder_ms(
                loaded, choose_backend(name, device), its, args.frames
            ),
        )
    add("qwen-tts", lambda: official_ms(loaded, device, dtype, args.frames))
    for row in rows:
        if "why_not" in row:
            print(f"{row['system']:10} not measured: {row['why_not']}")
        else:
            figures = row["ms_per_frame"]
            print(
                f"{row['system']:10}{figures['p50']:9.2f} ms a frame, {row['times_the_best']:.1f}x"
            )
    return 0


def decoder_ms(loaded: Any, backend: Backend, dtype: torch.dtype, frames: int) -> list[float]:
    """Return the milliseconds per frame of every step but the first two."""
    decoder = make_decoder(
        loaded,
        backend,
        DecoderSizes(
            num_slots=1,
            max_positions=PROMPT_POSITIONS + frames + 64,
            device=backend.device,
            dtype=dtype,
        ),
        num_threads=torch.get_num_threads(),
    )
    prompt = common.random_prompt(decoder, PROMPT_POSITIONS)
    decoder.prefill(0, prompt, Sampling(), seed=1, part=0)
    times = []
    for _ in range(frames // FRAMES_PER_STEP + 2):
        started = time.perf_counter()
        result = decoder.step([0], FRAMES_PER_STEP)
        times.append(1000 * (time.perf_counter() - started) / FRAMES_PER_STEP)
        if result.ended[0]:
            raise SystemExit(
                "The stream ended before the measured frames, so there is nothing to measure."
            )
    return times[2:]


def official_ms(loaded: Any, device: torch.device, dtype: torch.dtype, frames: int) -> list[float]:
    """Return the official package's milliseconds per frame; raises without that package."""
    model = official.load(loaded.files.folder, dtype)
    model.model.to(device)
    head = model.model.talker.codec_head.weight
    head.data[loaded.config.talker.codec_eos_id] = 0  # as in `endless`
    prompt = {
        "input_ids": [
            ids.to(device) for ids in model._tokenize_texts([model._build_assistant_text(TEXT)])
        ],
        "languages": ["auto"],
        "speakers": [next(iter(loaded.config.talker.speakers), None)],
        "non_streaming_mode": False,
    }
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run = official.generate(model, Sampling(), frames, **prompt)
        times.append(1000 * (time.perf_counter() - started) / len(run.codes))
    return times[1:]
