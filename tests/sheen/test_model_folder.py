"""The folder of a trained voice: it is replaced whole, and its name may be any text."""

import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from qwen_megakernel.errors import ModelFilesError, OutputError
from qwen_megakernel.sheen import model_folder
from qwen_megakernel.sheen.codec import find_snac
from qwen_megakernel.sheen.model_folder import SNAC_FOLDER, SheenConfig


@pytest.fixture(scope="module")
def other(trained: Path):
    tokenizer = model_folder.load_tokenizer(trained)
    model = model_folder.load_language_model(trained)
    for weight in model.parameters():
        weight.data.add_(1)
    return model, tokenizer, model_folder.audio_tokens(trained, tokenizer)


@pytest.fixture
def save(other, voice_folder: Path, snac_folder: Path):
    """save(): write the other voice into the folder of a trained one."""
    return lambda: model_folder.save(voice_folder, *other, SheenConfig(77, None), snac_folder)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left"), SafetensorError("no space")]
)
def test_a_save_that_is_cut_off_leaves_the_voice_that_was_there(
    save, voice_folder, monkeypatch, error
):
    def fail(*_) -> None:
        raise error

    before = contents(voice_folder)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", fail)  # of the codec, behind model and tokenizer
        with pytest.raises(OutputError if isinstance(error, Exception) else type(error)):
            save()
    assert contents(voice_folder) == before
    save()
    after = contents(voice_folder)
    assert after.keys() == before.keys()
    assert after["model.safetensors"] != before["model.safetensors"]
    assert model_folder.read_config(voice_folder).max_length == 77


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_folder_whose_files_are_replaced_is_no_voice(save, voice_folder, monkeypatch, place):
    class Killed(BaseException):
        pass

    replace, moved = os.replace, []

    def kill(source, target):
        moved.append(target)
        if len(moved) == place:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(Killed):
            save()
    with pytest.raises(ModelFilesError, match=r"has no sheen\.json"):
        model_folder.find(str(voice_folder))
    save()
    assert model_folder.find(str(voice_folder)).folder == voice_folder


@pytest.mark.parametrize("name", ["~no_such_user/voice", "a" * 300, "a\0b"])
def test_a_name_that_can_be_no_folder_is_no_voice_and_no_codec(name):
    assert not model_folder.is_sheen(name)
    with pytest.raises(ModelFilesError, match="No folder"):
        model_folder.find(name)
    with pytest.raises(ModelFilesError, match="There is no folder"):
        find_snac(name)


def test_a_voice_in_the_users_home_is_found(voice_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(voice_folder.parent))
    place = f"~/{voice_folder.name}"
    assert model_folder.is_sheen(place) and model_folder.find(place).folder == voice_folder
    assert find_snac(f"{place}/{SNAC_FOLDER}") == voice_folder / SNAC_FOLDER
