"""Resolving a name to files and loading them: what is accepted, what is refused and how."""

import torch

from qwen_megakernel import checkpoint


def test_a_built_in_checkpoint_loads_with_a_banner(cache_folder, caplog) -> None:
    files = checkpoint.resolve("tiny-random")
    assert files.is_synthetic
    assert files.folder.is_relative_to(cache_folder)
    assert "noise, not speech" in files.banner
    assert files.banner in caplog.text
    loaded = checkpoint.load(files)
    assert loaded.talker["model.text_embedding.weight"].dtype == torch.bfloat16
    assert loaded.codec_decoder["pre_conv.conv.weight"].dtype == torch.float32
    assert not any(name.startswith("talker.") for name in loaded.talker)
    assert loaded.max_new_tokens == 8192
    assert loaded.sampling.repetition_penalty == 1.05
    assert loaded.has_codec_encoder


def test_tensors_equal_the_official_state_dict(load_checkpoint, official_model) -> None:
    model = official_model("tiny-random-base").model
    loaded = load_checkpoint("tiny-random-base")
    official_tensors = model.state_dict()
    ours = {f"talker.{name}": tensor for name, tensor in loaded.talker.items()}
    speaker = loaded.load_prefix("speaker_encoder.")
    assert len(speaker) == 76
    ours |= {f"speaker_encoder.{name}": tensor for name, tensor in speaker.items()}
    assert ours.keys() == official_tensors.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.float(), official_tensors[name]), name
    codec = model.speech_tokenizer.model.state_dict()
    ours = {f"decoder.{name}": tensor for name, tensor in loaded.codec_decoder.items()}
    ours |= {f"encoder.{name}": t for name, t in loaded.load_prefix("encoder.").items()}
    assert ours.keys() == codec.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, codec[name]), name
