"""Turn frames of features into codes and back: principal components, residual quantisation.

python -m tools.demo_voice.codebooks --texts DATA/train.tsv --output codebooks.safetensors

They hold a frame's envelope; its pitch is one code more (features.py).
"""

import argparse
import os
import random
from dataclasses import dataclass, fields
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from qwen_megakernel.cli import parsing
from tools.demo_voice import features, texts
from tools.demo_voice.flite import Flite
from tools.demo_voice.recipe import CODEBOOK_SIZE, NUM_CODEBOOKS

SHIPPED = Path(__file__).parent / "codebooks.safetensors"  # the shipped voice's codebooks

NUM_COMPONENTS = 96
NUM_BOOKS = NUM_CODEBOOKS - 1  # for the envelope; the last code is the pitch
VOICED_WEIGHT = 1.5  # weight of a voiced value beside a cepstral one, in the distance
BEAM = 3  # candidates that the search keeps from codebook to codebook
NUM_ITERATIONS = 14  # iterations of k-means for each codebook
FRAMES_AT_ONCE = 4096
NUM_SILENT = 500  # silent frames among those to which the codebooks are fitted


@dataclass(frozen=True, slots=True)
class Codebooks:
    """The quantiser.

    Attributes:
        mean: [NUM_FEATURES] float32.
        components: [NUM_FEATURES, num_components] float32, orthonormal.
        books: [num_books, CODEBOOK_SIZE, num_components] float32.
        weights: [NUM_FEATURES] float32: what counts how much in the distance.
    """

    mean: Tensor
    components: Tensor
    books: Tensor
    weights: Tensor

    @classmethod
    def load(cls, path: Path = SHIPPED) -> "Codebooks":
        """Read what `save` wrote."""
        tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
        return cls(**tensors)

    def save(self, path: Path) -> None:
        """Write float16."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        save_file({name: t.half().contiguous() for name, t in tensors.items()}, path)

    @property
    def unit(self) -> float:
        """The median distance of two entries of the first codebook: of two different sounds."""
        return float(torch.pdist(self.books[0]).median())

    @property
    def silence(self) -> np.ndarray:
        """Return [num_books + 1]: the codes of a silent frame, its pitch's included."""
        return np.append(self.encode(features.silence())[0], np.uint8(features.NO_PITCH))

    def encode(self, frames: np.ndarray) -> np.ndarray:
        """[num_frames, NUM_FEATURES] -> [num_frames, num_books] uint8."""
        parts = torch.from_numpy(np.ascontiguousarray(frames, np.float32)).split(FRAMES_AT_ONCE)
        return torch.cat([self._encode(part) for part in parts]).numpy()

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """[num_frames, num_codes] codes -> [num_frames, NUM_FEATURES] float32.

        Of more codes than books, the first are taken.
        """
        latents = torch.from_numpy(self.latents(codes))
        return (latents @ self.components.T / self.weights + self.mean).numpy()

    def latents(self, codes: np.ndarray) -> np.ndarray:
        """[num_frames, num_codes] codes -> [num_frames, num_components] float32."""
        index = torch.from_numpy(codes.astype(np.int64))
        return sum(book[index[:, i]] for i, book in enumerate(self.books)).numpy()

    def project(self, frames: Tensor) -> Tensor:
        """Return what the codes quantise: [n, NUM_FEATURES] -> [n, num_components] float32."""
        return ((frames - self.mean) * self.weights) @ self.components

    def _encode(self, frames: Tensor) -> Tensor:
        """Search with a beam: the best few sums of codes go on from codebook to codebook."""
        rest = self.project(frames)[:, None]  # [n, beam, components]
        codes = torch.zeros(len(frames), 1, 0, dtype=torch.uint8)
        for book in self.books:
            distance = rest.square().sum(-1, keepdim=True) - 2 * rest @ book.T
            distance = (distance + book.square().sum(-1)).flatten(1)
            best = distance.topk(BEAM, largest=False).indices
            parent, code = best // len(book), best % len(book)
            codes = codes.gather(1, parent[..., None].expand(-1, -1, codes.shape[2]))
            codes = torch.cat([codes, code[..., None].to(torch.uint8)], dim=2)
            rest = rest.gather(1, parent[..., None].expand(-1, -1, rest.shape[2])) - book[code]
        return codes[:, 0]


def fit(
    frames: np.ndarray,
    seed: int = 0,
    *,
    num_books: int = NUM_BOOKS,
    num_components: int = NUM_COMPONENTS,
) -> Codebooks:
    """Fit components and codebooks to [num_frames, NUM_FEATURES]; the last frame is silent."""
    weights = _weights()
    data = torch.from_numpy(frames)
    mean = data.mean(0)
    weighted = (data - mean) * weights
    _, vectors = torch.linalg.eigh(weighted.T @ weighted / len(weighted))
    components = vectors.flip(1)[:, :num_components].contiguous()
    rest = weighted @ components
    generator = torch.Generator().manual_seed(seed)
    books = []
    for index in tqdm(range(num_books), desc="codebooks"):
        book = rest[torch.randperm(len(rest), generator=generator)[:CODEBOOK_SIZE]].clone()
        if index == 0:
            book[0] = rest[-1]  # Silence keeps a code of its own.
        for _ in range(NUM_ITERATIONS):
            nearest = _nearest(rest, book)
            counts = torch.bincount(nearest, minlength=CODEBOOK_SIZE)[:, None]
            sums = torch.zeros_like(book).index_add_(0, nearest, rest)
            strays = rest[torch.randint(len(rest), (CODEBOOK_SIZE,), generator=generator)]
            book = torch.where(counts > 0, sums / counts.clamp(min=1), strays)
        rest = rest - book[_nearest(rest, book)]
        books.append(book)
    return Codebooks(mean, components, torch.stack(books), weights)


def _weights() -> Tensor:
    """Return weights under which squared distances are those of log spectra, half of c0's aside."""
    weights = torch.full((features.SUBFRAMES, features.NUM_VALUES), 0.5**0.5)
    weights[:, 0] = 1.0
    weights[:, features.NUM_CEPSTRUM :] = VOICED_WEIGHT
    return weights.flatten()


def _nearest(rows: Tensor, book: Tensor) -> Tensor:
    norms = book.square().sum(1)
    return torch.cat([(norms - 2 * part @ book.T).argmin(1) for part in rows.split(20_000)])


def main(args: argparse.Namespace) -> None:
    """Let flite speak sentences and fit codebooks to their frames."""
    sentences = [text for kind, text in texts.read(args.texts) if kind == texts.TRAINING]
    random.Random(args.seed).shuffle(sentences)
    sentences = sentences[: args.sentences]
    flite = Flite.shared()
    synthesis = features.Synthesis(flite.filters)
    said = ((text, flite(text)) for text in tqdm(sentences, desc="frames"))
    frames = [
        features.frames(features.analyse(found, text, synthesis)).features
        for text, found in said
        if found
    ]
    frames.append(np.repeat(features.silence(), NUM_SILENT, axis=0))
    fit(np.concatenate(frames), args.seed).save(args.output)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--texts", "text file that tools.demo_voice.texts wrote", Path, required=True)
    add("--output", "codebooks file to write", Path, required=True)
    add("--sentences", "number of sentences to fit the codebooks to", int, 1500)
    add("--seed", "seed of all random choices", int, 0)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
