"""Validate the decoders: the plain one against the official package, the kernel against the plain.

python validate_kernel.py --model tiny-random --steps 200

Greedy decoding of several texts. Each step is compared twice: teacher-forced with the official
codes (logits), and free-running (codes, and where they first differ). Without the official package
a recording of it serves (--reference FILE, made by --save-reference). Exit code 0: all within
tolerance; 1: something differs; 77: nothing could be compared on this machine.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen_megakernel import checkpoint, options
from qwen_megakernel.errors import MissingPackageError, UsageError
from qwen_megakernel.prompt import PromptBuilder
from qwen_megakernel.reference import ReferenceDecoder
from qwen_megakernel.text import TextTokenizer
from qwen_megakernel.utterance import Sampling, SpeechRequest

NOTHING_TO_COMPARE = 77

# float32 logits of the released depth differ by 7e-6 between correct implementations
# (accumulation order); a wrong formula moves them by 1e-2 and more.
TOLERANCE = 2e-5

TEXTS = (
    "Hello there, how are you today?",
    "Your table for two is ready.",
    "It will be cold and cloudy tomorrow, so take a coat.",
    "One, two, three, four, five.",
    "What would you like to do next?",
    "The train to the city leaves at nine.",
)


@dataclass(slots=True)
class Case:
    """One greedy utterance as the official package decoded it."""

    embeds: Tensor  # [num_positions, hidden_size]
    trailing_text: Tensor  # [num_trailing, hidden_size]
    pad_embed: Tensor  # [hidden_size]
    codes: Tensor  # [num_frames, num_code_groups] int32
    talker_logits: Tensor  # [num_frames, vocab_size]
    predictor_logits: Tensor  # [num_frames, num_code_groups - 1, codebook_size]


@dataclass(slots=True)
class Row:
    """A line of the report."""

    what: str
    steps: int
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def official_cases(loaded: checkpoint.Checkpoint, num_steps: int) -> list[Case]:
    """Decode texts with the official package until there are `num_steps` frames.

    Raises:
        MissingPackageError: it is not installed.
    """
    from qwen_megakernel import official

    model = official.load(loaded.files.folder)
    config = loaded.config
    speaker = next(iter(config.talker.speakers), None)
    groups = config.talker.num_code_groups
    cases: list[Case] = []
    for text in TEXTS:
        left = num_steps - sum(len(case.codes) for case in cases)
        if left <= 0:
            break
        ids = model._tokenize_texts([model._build_assistant_text(text)])
        run = official.generate(
            model,
            Sampling.greedy(),
            left,
            input_ids=ids,
            languages=["auto"],
            speakers=[speaker],
            non_streaming_mode=False,
        )
        embed = model.model.talker.get_text_embeddings()
        pad = model.model.talker.text_projection(embed(torch.tensor([config.tts_pad_id])))[0]
        frames = len(run.codes)
        predictor = torch.stack(run.predictor_logits)[: frames * (groups - 1)]
        cases.append(
            Case(
                run.prefill.detach(),
                run.trailing_text.detach(),
                pad.detach(),
                torch.from_numpy(run.codes),
                torch.stack(run.talker_logits)[:frames],
                predictor.view(frames, groups - 1, -1),
            )
        )
    return cases


def save_cases(path: Path, cases: list[Case]) -> None:
    """Write a recording."""
    save_file(
        {
            f"{index}.{name}": getattr(case, name).contiguous()
            for index, case in enumerate(cases)
            for name in Case.__slots__
        },
        path,
    )


def load_cases(path: Path) -> list[Case]:
    """Read a recording.

    Raises:
        UsageError: the file cannot be read, or is no recording.
    """
    try:
        tensors = load_file(path)
        count = 1 + max(int(name.split(".")[0]) for name in tensors)
        return [
            Case(**{name: tensors[f"{index}.{name}"] for name in Case.__slots__})
            for index in range(count)
        ]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is not a recording of --save-reference: {error}.") from error


def prompt_error(loaded: checkpoint.Checkpoint, cases: list[Case]) -> Row:
    """Our prompts against the official input embeddings."""
    decoder = _reference(loaded)
    prompts = PromptBuilder(loaded.config, decoder.embeddings)
    tokenizer = TextTokenizer(loaded.files.folder, loaded.config)
    speaker = next(iter(loaded.config.talker.speakers), None)
    worst, rows = 0.0, 0
    for text, case in zip(TEXTS, cases, strict=False):
        request = SpeechRequest(text, voice=speaker, text_feed="stepwise")
        prefill = prompts.build(tokenizer.encode(text), request)
        for ours, theirs in (
            (prefill.embeds, case.embeds),
            (prefill.trailing_text, case.trailing_text),
        ):
            same_shape = ours.shape == theirs.shape
            worst = max(worst, (ours - theirs).abs().max().item() if same_shape else np.inf)
            rows += len(theirs)
    return Row("prompt rows", rows, worst, TOLERANCE)


def decoder_errors(decoder: ReferenceDecoder, cases: list[Case], tolerance: float) -> list[Row]:
    """A decoder against recorded cases: logits when forced, codes when free."""
    talker_error = predictor_error = 0.0
    frames = differing = 0
    for case in cases:
        taps: dict[str, list[Tensor]] = {}

        def tap(name: str, value: Tensor, taps: dict[str, list[Tensor]] = taps) -> None:
            taps.setdefault(name.split(".")[0] + "." + name.split(".")[1], []).append(value)

        _begin(decoder, case)
        decoder.tap = tap
        decoder.step([0], len(case.codes), forced=case.codes[None])
        decoder.tap = None
        ours = torch.stack(taps["talker.logits"])
        talker_error = max(talker_error, (ours - case.talker_logits).abs().max().item())
        ours = torch.stack(taps["predictor.logits"]).view(case.predictor_logits.shape)
        predictor_error = max(predictor_error, (ours - case.predictor_logits).abs().max().item())
        _begin(decoder, case)
        free = torch.from_numpy(decoder.step([0], len(case.codes)).codes[0])
        wrong = (free != case.codes).any(dim=1).nonzero()
        frames += len(case.codes)
        if len(wrong):
            differing += len(case.codes) - int(wrong[0])
            print(f"  free-running codes differ from frame {int(wrong[0])} of {len(case.codes)}")
    return [
        Row("talker logits, forced", frames, talker_error, tolerance),
        Row("predictor logits, forced", frames, predictor_error, tolerance),
        Row("frames after divergence, free", frames, differing, 0),
    ]


def _begin(decoder: ReferenceDecoder, case: Case) -> None:
    decoder.begin(0, Sampling.greedy(), 0, 0)
    decoder.prefill(0, case.embeds, case.pad_embed)
    decoder.write_text(0, case.trailing_text)


def _reference(loaded: checkpoint.Checkpoint) -> ReferenceDecoder:
    return ReferenceDecoder(
        loaded,
        num_slots=1,
        max_positions=1024,
        max_text_rows=256,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def main(args: argparse.Namespace) -> int:
    """Compare what can be compared and print the table."""
    loaded = checkpoint.load(checkpoint.resolve(args.model))
    if args.reference:
        cases = load_cases(Path(args.reference))
        source = f"recording {args.reference}"
    else:
        try:
            cases = official_cases(loaded, args.steps)
        except MissingPackageError as error:
            print(error, file=sys.stderr)
            return NOTHING_TO_COMPARE
        source = "official package"
    if args.save_reference:
        save_cases(Path(args.save_reference), cases)
    rows = [] if args.reference else [prompt_error(loaded, cases)]
    rows += decoder_errors(_reference(loaded), cases, args.tolerance)
    print(f"{loaded.files.name}: plain decoder against {source}, float32, greedy")
    print(f"{'':32}{'steps':>8}{'max error':>12}{'tolerance':>12}")
    for row in rows:
        verdict = "ok" if row.passed else "DIFFERS"
        print(f"{row.what:32}{row.steps:8}{row.error:12.2e}{row.tolerance:12.1e}  {verdict}")
    return 0 if all(row.passed for row in rows) else 1


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-random", help="hub id, folder or built-in name")
    parser.add_argument("--steps", type=int, default=200, help="frames to compare in all")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="for logits")
    parser.add_argument("--reference", metavar="FILE", help="a recording of the official package")
    parser.add_argument("--save-reference", metavar="FILE", help="keep this run as a recording")
    parser.add_argument("--quiet", action="store_true", help="errors only")
    parser.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(options.run(main, args))
