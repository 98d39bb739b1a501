"""`train verify`: checks the data, the loss and the learning of a fine-tuning, each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.errors import DatasetError, QwenTTSError
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.training import checks, own_speech, speech_data
from qwen_megakernel.training.checks import Check
from qwen_megakernel.training.preparing import lines
from qwen_megakernel.training.speech_job import Parts, TuneJob
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import FEEDS, SpeechTrainer, TuneOptions
from qwen_megakernel.training.trainer import NO_WATCH, Watch
from qwen_megakernel.voice import Voice

NUM_FRAMES = 24  # of the model's own speech, 2 s
# Relative limit of a sum of losses in float32, over up to 28 layers that are computed in another
# order. A label or a row in a wrong place changes the sum by a hundredth and more.
LOSS_TOLERANCE = 1e-3
# Two recordings are learned by heart, so the loss falls on and on; not falling is a fault.
MOST_OF_LOSS = 0.9


def verify(job: TuneJob, options: TuneOptions, watch: Watch = NO_WATCH) -> Iterator[Check]:
    """Check a fine-tuning: the file, whether it fits the model, the loss, and the learning.

    It does not write to `job.output`. It takes `max_steps` steps on two recordings, or `epochs`.
    """
    found, check = checks.check_each(
        "lines", lines(job.data, speech_data.PREPARE), speech_data.parse
    )
    yield check
    if not found:
        return
    ids = [each.id for each in found.values()]
    yield checks.check_different("ids", ids, ids)
    yield checks.check_different("recordings", [each.digest for each in found.values()], ids)
    try:
        parts = Parts.load(job)
        yield Check("model", True, f"{job.model}, {parts.fingerprint}")
    except QwenTTSError as error:
        yield Check("model", False, str(error).replace("\n", " "))
        return
    found, check = checks.check_each("shapes", found.items(), parts.fitting)
    yield check
    samples = list(found.values())
    if not samples:
        return
    codes = np.concatenate([each.audio_codes for each in samples])
    yield checks.check_codes(codes.T, parts.base.config.predictor.vocab_size)
    lengths = [len(each.audio_codes) for each in samples]
    yield checks.check_lengths(lengths, options.max_length, "frames")
    pair = [parts.spoken(each) for each in sorted(samples, key=lambda each: each.seconds)[:2]]
    voice = parts.speaker(Voice(job.name, speech_data.mean_x_vector(samples)))
    yield _check_loss(parts, samples[0].text, voice)
    try:
        num_steps = options.max_steps or options.epochs
        chosen = replace(options, epochs=num_steps, max_steps=num_steps)
        trainer = SpeechTrainer(parts.new_model(chosen), pair, [], voice, chosen)
        yield from checks.check_steps(trainer, watch, MOST_OF_LOSS)
    except DatasetError as error:
        yield Check("loss", False, error.what)


def _check_loss(parts: Parts, text: str, voice: str | Voice) -> Check:
    """Check that the loss of the model's own speech is what its probabilities say."""
    ids, wanted, spoken = parts.tokenizer.encode(text), [], []
    for feed in FEEDS:
        request = SpeechOptions(voice=voice, text_feed=feed)
        taps: dict[str, Tensor] = {}
        drawn = own_speech.draw(
            parts.base, ids, request, NUM_FRAMES + 1, parts.device, torch.float32, taps
        )
        frames = torch.from_numpy(drawn.codes[0, : min(drawn.num_frames[0], NUM_FRAMES)]).long()
        spoken.append((request, frames))
        wanted.append(_surprise(parts, taps, frames))
    model = SpeechModel(parts.base, parts.device)
    with torch.no_grad():
        found = [model.losses(ids, request, frames).double().cpu() for request, frames in spoken]
    off = max(float((a / b - 1).abs().max()) for a, b in zip(found, wanted, strict=True))
    means = " and ".join(f"{float(each.sum()):.1f}" for each in wanted)
    detail = f"{means} nats, text {' and '.join(FEEDS)}; the loss of a code differs by {off:.1e}"
    return Check("loss of own speech", off <= LOSS_TOLERANCE, detail)


def _surprise(parts: Parts, taps: dict[str, Tensor], frames: Tensor) -> Tensor:
    """Return minus the logarithm of the probability of frames and end, [num_code_groups] sums, from
    the logits that the frames were drawn from, and those after the last."""
    talker, num_frames = parts.base.config.talker, len(frames)
    first, others = taps["talker"][0].double().cpu(), taps["predictor"][0].double().cpu()
    ends = first[: num_frames + 1, talker.codec_eos_id]
    drawable = torch.cat([first[: num_frames + 1, : talker.suppressed_from], ends[:, None]], dim=1)
    labels = torch.cat([frames[:, 0], torch.tensor([drawable.shape[1] - 1])])
    sums = [-drawable.log_softmax(-1).gather(1, labels[:, None]).sum()]
    logs = others[:num_frames].log_softmax(-1).gather(2, frames[:, 1:, None])
    return torch.cat([torch.stack(sums), -logs.sum((0, 2))])
