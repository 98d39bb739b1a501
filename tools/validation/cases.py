"""Utterances for comparing decoders, from the official package, a file or the plain decoder.

A case is a prompt and the greedy codes that were decoded from it, with the logits of the codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.decoders.sampling import MIN_FRAMES, penalized
from qwen_megakernel.errors import OutputError, UsageError
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling, SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from tools.validation import official

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
    """One greedy utterance and the logits of its codes."""

    embeds: Tensor  # [num_positions, hidden_size]
    trailing_text: Tensor  # [num_trailing, hidden_size]
    pad_embed: Tensor  # [hidden_size]
    codes: Tensor  # [num_frames, num_code_groups] int32
    talker_logits: Tensor  # [num_frames, vocab_size]
    predictor_logits: Tensor  # [num_frames, num_code_groups - 1, codebook_size]
    ended: Tensor  # [] bool: EOS followed the last frame; False: decoding was stopped there


def _speaker(loaded: Checkpoint) -> str | None:
    return next(iter(loaded.config.talker.speakers), None)


def official_cases(
    loaded: Checkpoint, num_steps: int, on_frames: Callable[[int], None] = lambda count: None
) -> list[Case]:
    """Decode texts with the official package until there are `num_steps` frames.

    Args:
        on_frames: called with the number of frames that were decoded since its last call.
    Raises:
        MissingPackageError: the official package is not installed.
    """
    model = official.load(loaded.files.folder)
    talker = model.model.talker
    groups = loaded.config.talker.num_code_groups
    pad_id = torch.tensor([loaded.config.tts_pad_id])
    pad = talker.text_projection(talker.get_text_embeddings()(pad_id))[0].detach()
    cases: list[Case] = []
    for text in TEXTS:
        left = num_steps - sum(len(case.codes) for case in cases)
        if left <= 0:
            break
        run = official.generate(
            model,
            Sampling.greedy(),
            left,
            on_frames=on_frames,
            input_ids=model._tokenize_texts([model._build_assistant_text(text)]),
            languages=["auto"],
            speakers=[_speaker(loaded)],
            non_streaming_mode=False,
        )
        frames = len(run.codes)
        predictor = torch.stack(run.predictor_logits)[: frames * (groups - 1)]
        cases.append(
            Case(
                embeds=run.prefill.detach(),
                trailing_text=run.trailing_text.detach(),
                pad_embed=pad,
                codes=torch.from_numpy(run.codes),
                talker_logits=torch.stack(run.talker_logits)[:frames].detach(),
                predictor_logits=predictor.view(frames, groups - 1, -1).detach(),
                ended=torch.tensor(frames < left),
            )
        )
    return cases


def plain_cases(loaded: Checkpoint, decoder: PlainDecoder, num_steps: int) -> list[Case]:
    """Decode texts with the plain decoder until there are `num_steps` frames."""
    prompts = PromptBuilder(loaded.config, decoder.embeddings)
    tokenizer = TextTokenizer(loaded.files.folder, loaded.config)
    cases: list[Case] = []
    for text in TEXTS:
        left = num_steps - sum(len(case.codes) for case in cases)
        if left <= 0:
            break
        request = SpeechOptions(voice=_speaker(loaded), text_feed="stepwise")
        prefill = prompts.build(tokenizer.encode(text), prompts.resolve(request))
        case = Case(
            prefill.embeds, prefill.trailing_text, prefill.pad_embed, *(torch.empty(0),) * 4
        )
        begin(decoder, case)
        result = decoder.step([0], min(left, decoder.max_positions - len(prefill.embeds)))
        case.codes = torch.from_numpy(result.codes[0, : result.num_frames[0]])
        case.ended = torch.tensor(result.ended[0])
        if len(case.codes):
            case.talker_logits, case.predictor_logits = forced_logits(decoder, case)
            cases.append(case)
    return cases


def save_cases(path: Path, cases: list[Case]) -> None:
    """Write cases to a safetensors file.

    Raises:
        OutputError: the file cannot be written.
    """
    tensors = {
        f"{index}.{name}": getattr(case, name).clone().contiguous()
        for index, case in enumerate(cases)
        for name in Case.__slots__
    }
    try:
        save_file(tensors, path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"Cannot write {path}: {error}.") from error


def load_cases(path: Path) -> list[Case]:
    """Read cases.

    Raises:
        UsageError: the file cannot be read, or does not hold cases.
    """
    try:
        tensors = load_file(path)
        count = 1 + max(int(name.split(".")[0]) for name in tensors)
        return [
            Case(**{name: tensors[f"{index}.{name}"] for name in Case.__slots__})
            for index in range(count)
        ]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UsageError(f"{path} holds no recorded cases: {error}.") from error


def begin(
    decoder: FrameDecoder, case: Case, sampling: Sampling | None = None, seed: int = 0
) -> None:
    """Make slot 0 of a decoder ready to draw the first frame of `case`."""
    device, dtype = decoder.embeddings.device, decoder.embeddings.dtype
    inputs = (case.embeds, case.trailing_text, case.pad_embed)
    prefill = Prefill(*(tensor.to(device, dtype) for tensor in inputs))
    decoder.prefill(0, prefill, sampling or Sampling.greedy(), seed=seed, part=0)


def forced_logits(decoder: FrameDecoder, case: Case) -> tuple[Tensor, Tensor]:
    """Return talker [num_frames, vocab_size] and predictor [num_frames, groups - 1, codebook_size]
    logits of a decoder that is forced to the codes of `case`."""
    begin(decoder, case)
    taps: dict[str, Tensor] = {}
    decoder.step([0], len(case.codes), case.codes[None], taps)
    return taps["talker"][0].cpu(), taps["predictor"][0].cpu()


def greedy_scores(config: ModelConfig, case: Case, frame: int, codebook: int) -> Tensor:
    """Return the logits whose best is the case's code of one codebook; those of code 0 are
    penalised and limited as `begin`'s greedy sampling does."""
    if codebook:
        return case.predictor_logits[frame, codebook - 1].float()
    talker, logits = config.talker, case.talker_logits[frame].float()
    seen = torch.zeros(len(logits), dtype=torch.bool)
    seen[case.codes[:frame, 0].long()] = True
    penalty = Sampling.greedy().talker.repetition_penalty
    scores = penalized(logits, seen, penalty)
    suppressed = torch.arange(len(logits)) >= talker.suppressed_from
    suppressed[talker.codec_eos_id] = frame < MIN_FRAMES
    return scores.masked_fill(suppressed, -torch.inf)


def plain_prompts(
    loaded: Checkpoint, decoder: PlainDecoder, count: int
) -> list[tuple[Tensor, Tensor]]:
    """Return embeds and trailing text of the first `count` texts."""
    prompts = PromptBuilder(loaded.config, decoder.embeddings)
    tokenizer = TextTokenizer(loaded.files.folder, loaded.config)
    built = []
    for text in TEXTS[:count]:
        request = SpeechOptions(voice=_speaker(loaded), text_feed="stepwise")
        prefill = prompts.build(tokenizer.encode(text), prompts.resolve(request))
        built.append((prefill.embeds, prefill.trailing_text))
    return built
