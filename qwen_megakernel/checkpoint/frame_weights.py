"""Counts, from a model's config, the weights that decoding one codec frame reads."""

from dataclasses import dataclass

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig


@dataclass(frozen=True, slots=True)
class FrameWeights:
    """Numbers of weights that one frame reads, by part: the talker's once, and the predictor's once
    for each code but the first (its first two positions share a pass)."""

    talker: int  # layers
    codec_head: int
    projection: int  # for the hidden state; the projected embeddings are tables
    predictor: int
    lm_heads: int

    @property
    def total(self) -> int:
        """Number of weights of all parts."""
        return self.num_bytes(1, 1)

    def num_bytes(self, width: int, predictor_width: int) -> int:
        """Return the bytes of all parts; `width` is the size of a weight of the talker."""
        predictor = self.projection + self.predictor + self.lm_heads
        return width * (self.talker + self.codec_head) + predictor_width * predictor


def layer_weights(stack: StackConfig) -> int:
    """Return the number of weights of all layers of a stack."""
    per_column = 2 * (stack.q_size + stack.kv_size) + 3 * stack.intermediate_size
    return stack.num_layers * stack.hidden_size * per_column


def frame_weights(config: ModelConfig) -> FrameWeights:
    """Count the weights that one frame of any number of streams reads."""
    talker, predictor = config.talker, config.predictor
    passes = talker.num_code_groups - 1
    width = predictor.stack.hidden_size
    return FrameWeights(
        talker=layer_weights(talker.stack),
        codec_head=talker.vocab_size * talker.stack.hidden_size,
        projection=talker.stack.hidden_size * width if config.has_projection else 0,
        predictor=passes * layer_weights(predictor.stack),
        lm_heads=passes * predictor.vocab_size * width,
    )
