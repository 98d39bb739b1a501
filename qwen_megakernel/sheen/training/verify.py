"""`sheen verify`: checks each stage by itself, on the files that will be used."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.sheen import model_folder
from qwen_megakernel.sheen.codec import SnacCodec
from qwen_megakernel.sheen.codes import CODES_PER_FRAME, deinterleave
from qwen_megakernel.sheen.tokens import AUDIO_END, AudioTokens, find_audio_tokens, text_ids
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.job import Job, load_parts
from qwen_megakernel.sheen.training.sequences import IGNORED, TokenSequence, collate
from qwen_megakernel.sheen.training.trainer import Trainer
from qwen_megakernel.training import checks, preparing
from qwen_megakernel.training.checks import Check
from qwen_megakernel.training.trainer import NO_WATCH, TrainOptions, Watch

IPA = "həˈloʊ wɝld, ðɪs ɪz ə tɛst!"

# Limit for float32 sums of some thousand products, in windows of different lengths.
CHUNK_TOLERANCE = 1e-4
# Relative limit in float32. Masked positions add exact zeros, so only the order of sums differs.
PACKING_TOLERANCE = 1e-6


def check_dataset(path: Path, codebook_size: int, max_length: int) -> Iterator[Check]:
    """Check a dataset: every line, ids, origin of phonemes, lengths, and whether codes vary."""
    parse = partial(dataset.parse, codebook_size=codebook_size)
    found, check = checks.check_each("lines", preparing.lines(path, dataset.PREPARE), parse)
    yield check
    samples = list(found.values())
    if not samples:
        return
    ids = [sample.id for sample in samples]
    yield checks.check_different("ids", ids, ids)
    voices = sorted({sample.espeak or "given phonemes" for sample in samples})
    yield Check("phonemes", len(voices) == 1, ", ".join(voices))
    layers = deinterleave(np.concatenate([sample.frames for sample in samples]))
    yield checks.check_codes(layers, codebook_size)
    # Numbers of tokens, with one for the text, which has one at least.
    sizes = [len(sample.frames) * CODES_PER_FRAME + 3 for sample in samples]
    yield checks.check_lengths(sizes, max_length, "tokens")


def check_tokenizer(folder: Path) -> Iterator[Check]:
    """Check the tokenizer of a trained voice: audio tokens, saving and loading, plain text."""
    try:
        tokenizer = model_folder.load_tokenizer(folder, local_files_only=True)
        tokens = model_folder.audio_tokens(folder, tokenizer)
    except QwenTTSError as error:
        yield Check("audio tokens", False, str(error).replace("\n", " "))
        return
    yield Check("audio tokens", True, f"{tokens.num_tokens}, from id {tokens.first_id} on")
    others = len(tokenizer) - tokens.num_tokens
    above = tokens.first_id >= others
    yield Check("no overlap", above, f"{others} tokens of text lie below")
    frames = np.arange(3 * CODES_PER_FRAME).reshape(3, CODES_PER_FRAME) * 191 % tokens.codebook_size
    ids = tokens.ids_of(frames)
    spelled = tokenizer.convert_ids_to_tokens(ids)
    read = tokenizer("".join(spelled), add_special_tokens=False)["input_ids"]
    same = read == ids and np.array_equal(tokens.frames_of(ids), frames)
    yield Check("codes to tokens and back", same, " ".join(spelled[:CODES_PER_FRAME]))
    with tempfile.TemporaryDirectory() as copy:
        tokenizer.save_pretrained(copy)
        loaded = model_folder.load_tokenizer(copy)
        kept = find_audio_tokens(loaded, tokens.codebook_size) == tokens
    yield Check("saved and loaded", kept, "the same ids")
    text = tokenizer.decode(text_ids(tokenizer, IPA))
    yield Check("phonemes", text == IPA, f"{IPA!r} read back as {text!r}")
    literal = max(text_ids(tokenizer, f"say {AUDIO_END}"), default=0) < tokens.first_id
    yield Check("marks typed in a text", literal, "are text" if literal else "act as marks")
    try:
        model = model_folder.load_language_model(folder, local_files_only=True)
        model_folder.check_rows(folder, model, tokens)
        rows = model.get_input_embeddings().num_embeddings
        yield Check("embeddings", True, f"{rows} rows for {len(tokenizer)} tokens")
    except QwenTTSError as error:
        yield Check("embeddings", False, error.what)


def check_snac(folder: Path, *, seconds: float = 2.0) -> Iterator[Check]:
    """Check a SNAC: its codes, and that decoding twice or in pieces gives the same samples."""
    try:
        codec = SnacCodec(folder)
    except QwenTTSError as error:
        yield Check("files", False, str(error).replace("\n", " "))
        return
    yield Check("files", True, f"{codec.sample_rate} Hz, {codec.samples_per_frame} samples a frame")
    rate = codec.sample_rate
    time = np.arange(round(seconds * rate)) / rate
    glide = 0.3 * np.sin(2 * np.pi * (150 + 100 * time) * time)
    frames = codec.encode(glide.astype(np.float32), rate)
    wanted = -(-len(time) // codec.samples_per_frame)
    lengths = [len(layer) for layer in deinterleave(frames)]
    yield Check("frames", len(frames) == wanted, f"{lengths} codes for {seconds:g} s")
    used = frames.max() < codec.codebook_size and frames.min() >= 0
    yield Check("codes", bool(used), f"{frames.min()} .. {frames.max()}")
    sound = codec.decode(frames)
    rms = float(np.sqrt(np.mean(np.square(sound, dtype=np.float64))))
    yield Check("sound", bool(np.isfinite(sound).all()) and rms > 1e-4, f"rms {rms:.3g}")
    twice = np.array_equal(sound, codec.decode(frames))
    yield Check("deterministic", twice, "the same codes give the same samples")
    pieces = _in_chunks(codec, frames, sizes=(1, 2, 4, 8, 10))
    largest = float(np.abs(pieces - sound).max())
    detail = f"differ by {largest:.1e}, with a lookahead of {codec.lookahead} frames"
    yield Check("chunks and the whole", largest < CHUNK_TOLERANCE, detail)


def check_training(job: Job, options: TrainOptions, watch: Watch = NO_WATCH) -> Iterator[Check]:
    """Check a training on two samples: labels, packing, a falling loss, and resuming.

    It does not write to `job.output`.
    """
    try:
        parts = load_parts(job, options.seed)
    except QwenTTSError as error:
        yield Check("files", False, str(error).replace("\n", " "))
        return
    pair = sorted(parts.sequences, key=len)[:2]
    pad = parts.tokenizer.pad_token_id
    yield _check_labels(pair, pad, parts.tokens)
    exact = Trainer(parts.model, pair, pad, replace(options, precision="fp32"))
    yield _check_packing(exact, pair, pad)
    num_steps = options.max_steps or options.epochs
    trainer = Trainer(parts.model, pair, pad, replace(options, epochs=num_steps))
    yield from checks.check_steps(trainer, watch)


def _check_labels(pair: list[TokenSequence], pad: int, tokens: AudioTokens) -> Check:
    batch = collate([pair], pad)
    labelled = batch.labels[batch.labels != IGNORED].tolist()
    wanted = [token for sequence in pair for token in sequence.ids[sequence.num_text :]]
    ends = labelled.count(tokens.end_id) == labelled.count(tokens.start_id) == len(pair)
    detail = f"{len(labelled)} of {batch.labels.numel()} tokens; the text has none"
    return Check("labels", labelled == wanted and ends, detail)


def _check_packing(trainer: Trainer, pair: list[TokenSequence], pad: int) -> Check:
    """Check that the loss of a sequence does not change with its neighbour in the row."""
    other = replace(pair[0], ids=pair[0].ids[::-1])
    losses = []
    for neighbour in (pair[0], other):
        batch = collate([[neighbour, pair[-1]]], pad)
        batch.labels[:, : len(neighbour)] = IGNORED
        with torch.no_grad():
            losses.append(float(trainer.loss_sum(batch)))
    same = abs(losses[0] - losses[1]) <= PACKING_TOLERANCE * abs(losses[0])
    detail = f"loss {losses[0]:.4f} beside one sequence, {losses[1]:.4f} beside another"
    return Check("packing", same, detail)


def _in_chunks(codec: SnacCodec, frames: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Decode as a stream does, in chunks of `sizes`; the last size is repeated."""
    state, pieces, first, turn = codec.new_state(), [], 0, 0
    while first < len(frames):
        end = first + sizes[min(turn, len(sizes) - 1)]
        chunk, ahead = frames[first:end], frames[end : end + codec.lookahead]
        pcm = codec.step(torch.from_numpy(chunk)[None], [state], torch.from_numpy(ahead)[None])
        pieces.append(pcm[0].cpu().numpy())
        first, turn = end, turn + 1
    return np.concatenate(pieces)
