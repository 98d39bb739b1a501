"""From a text to its first sound, stage by stage and as a whole, and the first request of all.

Stages are measured on the engine's own parts, each waited for by itself; `first_chunk` is what a
caller of the engine sees. Rows named `request 1 cold` and `request 10` tell what warm-up is worth.
The result file is written after each row.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

import torch

from benchmarks import common
from benchmarks.load_test import workload
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.records import Prefill, Sampling, SpeechRequest

PROMPT_POSITIONS = (10, 30, 110, 200)
TEXT = workload.PROMPTS[0]


def timed(tts: TTSEngine, work: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of `work` on the engine's thread, the device's part included."""

    def once() -> float:
        started = time.perf_counter()
        work()
        if tts.device.type == "cuda":
            torch.cuda.synchronize(tts.device)
        return 1000 * (time.perf_counter() - started)

    return [tts._loop.run(once) for _ in range(repeats + 2)][2:]


def stages(tts: TTSEngine, repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Milliseconds of one stage after the other, `repeats` times each."""
    parts = tts._loop.stages
    request = SpeechRequest(TEXT, voice=tts.default_voice)
    ids = tts._tokenizer.encode(TEXT)
    yield "tokenise", timed(tts, lambda: tts._tokenizer.encode(TEXT), repeats)
    yield "prompt", timed(tts, lambda: parts.prompts.build(ids, request), repeats)
    width = tts.config.talker.stack.hidden_size
    rows = 0.3 * torch.randn(max(PROMPT_POSITIONS) + 1, width)
    rows = rows.to(parts.decoder.embeddings.device, parts.decoder.embeddings.dtype)

    def prefill(count: int) -> None:
        prompt = Prefill(rows[:count], rows[:0], rows[-1])
        parts.decoder.prefill(0, prompt, Sampling(), seed=1, part=0)

    for count in PROMPT_POSITIONS:
        yield f"prefill {count}", timed(tts, lambda count=count: prefill(count), repeats)
    drawn: list[float] = []

    def first_frame() -> None:
        prefill(PROMPT_POSITIONS[1])
        if tts.device.type == "cuda":
            torch.cuda.synchronize(tts.device)
        started = time.perf_counter()
        parts.decoder.step([0], 1)
        drawn.append(1000 * (time.perf_counter() - started))

    timed(tts, first_frame, repeats)
    yield "first frame", drawn[2:]
    codes = torch.zeros(1, 10, tts.config.talker.num_code_groups, dtype=torch.int32)
    for frames in (1, 2, 4, 10):
        state = parts.vocoder.new_state()
        chunk = codes[:, :frames]

        def decode(chunk: torch.Tensor = chunk, state: Any = state) -> None:
            parts.vocoder.step(chunk, [state]).cpu()

        yield f"vocoder {frames}", timed(tts, decode, repeats)


def first_chunks(tts: TTSEngine, repeats: int) -> list[float]:
    """Milliseconds from the call to the first chunk, one request after another.

    Each is read to its end: one that is only closed leaves a step, and perhaps a chunk, in the way
    of the next.
    """
    found = []
    for index in range(repeats):
        stream = tts.stream(TEXT, voice=tts.default_voice, seed=index, max_frames=8)
        times = [chunk.t_ms for chunk in stream]
        found.append(times[0])
    return found


def main(args: argparse.Namespace) -> int:
    """Measure and report."""
    loaded = loading.load(loading.resolve(args.model or "random-0.6b"))
    settings = {"backend": args.backend, "device": args.device, "dtype": args.dtype}
    with TTSEngine(loaded, weights=args.weights, warmup=False, **settings) as cold:
        cold_ms = first_chunks(cold, 1)
    with TTSEngine(loaded, weights=args.weights, **settings) as tts:
        rows: list[dict[str, Any]] = []
        result = common.engine_header(tts) | {
            "settings": {"runs": args.runs, "text": TEXT},
            "rows": rows,
        }

        def add(stage: str, values: list[float]) -> None:
            ms = common.spread(values)
            rows.append({"stage": stage, "ms": ms})
            common.write_json(args.json, result)
            print(f"{stage:20}{ms['p50']:10.3f} ms p50{ms['p95']:10.3f} p95", flush=True)

        requests = first_chunks(tts, max(10, args.runs))
        add("request 1 cold", cold_ms)
        add("request 1", requests[:1])
        add("request 10", requests[9:10])
        add("first_chunk", requests[10:] or requests[1:])
        for stage, values in stages(tts, args.runs):
            add(stage, values)
    return 0


if __name__ == "__main__":
    parser = common.model_parser(__doc__)
    parser.add_argument("--runs", type=options.at_least(1), default=20)
    sys.exit(options.run(main, parser.parse_args()))
