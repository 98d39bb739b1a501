"""Built-in checkpoints: written once and completely, even by several processes; loaded."""

import errno
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import OutputError
from qwen_megakernel.output_files import writing


def test_a_random_checkpoint_loads_with_a_banner(cache_folder, caplog):
    loading._announce.cache_clear()
    files = loading.resolve("tiny-random")
    assert files.is_synthetic
    assert files.folder.is_relative_to(cache_folder)
    assert "noise, not speech" in files.banner
    assert files.banner in caplog.text
    loaded = loading.load(files)
    assert loaded.talker["model.text_embedding.weight"].dtype == torch.bfloat16
    assert loaded.codec_decoder["pre_conv.conv.weight"].dtype == torch.float32
    assert not any(name.startswith("talker.") for name in loaded.talker)
    assert loaded.max_new_tokens == 8192
    assert loaded.sampling.talker.repetition_penalty == 1.05
    assert loaded.has_codec_encoder


def test_the_demo_voice_loads_as_it_is(caplog):
    loading._announce.cache_clear()
    for _ in range(2):
        files = loading.resolve("demo-voice")
    assert not files.is_synthetic
    assert "not Qwen's" in files.banner
    assert "model Qwen/Qwen3-TTS-12Hz-0.6B-Base" in files.banner and "--" not in files.banner
    assert caplog.text.count(files.banner) == 1  # however many engines a process has
    loaded = loading.load(files)
    assert loaded.config.talker.num_code_groups == 8
    for stack in (loaded.config.talker.stack, loaded.config.predictor.stack):
        assert stack.head_dim % 32 == 0
    assert {tensor.dtype for tensor in loaded.talker.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in loaded.codec_decoder.values()} == {torch.float32}
    assert loaded.sampling.talker.temperature == 0.3
    assert loaded.max_new_tokens == 512
    assert loaded.has_codec_encoder


def test_tensors_equal_the_official_state_dict(load_checkpoint, official_model):
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


def test_a_model_without_speaker_encoder_has_no_tensors_of_one(load_checkpoint):
    assert load_checkpoint("tiny-random").load_prefix("speaker_encoder.") == {}
    with pytest.raises(ValueError, match="prefix"):
        load_checkpoint("tiny-random").load_prefix("talker.")


@pytest.mark.ci  # three processes import torch
def test_two_processes_that_want_the_same_checkpoint_both_get_it(tmp_path):
    code = (
        "from qwen_megakernel.checkpoint.loading import resolve; "
        "print(resolve('tiny-random').folder)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={"QWEN_MEGAKERNEL_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    folders = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(folders) == 1
    assert [path.name for path in tmp_path.iterdir()] == [Path(folders.pop()).name]


def test_a_random_checkpoint_appears_whole(tmp_path, monkeypatch):
    """A reader finds the finished folder, which was renamed, not a copy that is being written."""
    monkeypatch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path))
    write = loading.write_checkpoint
    written = []

    def remember(name: str, draft: Path) -> None:
        write(name, draft)
        written.append(draft.stat().st_ino)

    monkeypatch.setattr(loading, "write_checkpoint", remember)
    assert loading.resolve("tiny-random").folder.stat().st_ino == written[0]


def test_the_later_of_two_writers_drops_its_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path))
    write = loading.write_checkpoint

    def overtaken(name: str, draft: Path) -> None:
        write(name, draft)
        other = tmp_path / f"{name}-v{loading.RECIPE_VERSION}"
        shutil.copytree(draft, other)
        (other / "first").touch()

    monkeypatch.setattr(loading, "write_checkpoint", overtaken)
    folder = loading.resolve("tiny-random").folder
    assert (folder / "first").is_file()
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, is_named):
    def full(name: str, draft: Path) -> None:
        draft.mkdir(parents=True)
        (draft / "config.json").write_text("{}")
        with writing(draft) if is_named else nullcontext():  # as `conversion.convert` does
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "write_checkpoint", full)
    with pytest.raises(OutputError, match=r"to .*/tiny-random-v\d+: No space left on") as caught:
        loading.resolve("tiny-random")
    assert "QWEN_MEGAKERNEL_CACHE" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
