"""`train verify`: every check passes on sound data and fails on a planted fault."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from commands import checked
from tiny_training import BASE

from qwen_megakernel.cli import main
from qwen_megakernel.training import speech_checks
from qwen_megakernel.training.speech_trainer import TuneOptions

QUICK = TuneOptions(
    method="full", max_steps=4, learning_rate=3e-3, warmup_steps=0, precision="fp32", rank=4
)
DATA_CHECKS = ["lines", "ids", "recordings", "model", "shapes", "codes", "lengths"]
CHECKS = [*DATA_CHECKS, "loss of own speech", "loss", "resume"]


def outcome(job, options=QUICK, last="resume"):
    """The names of the checks that passed, and those that failed with their details."""
    passed, failed = [], {}
    for check in speech_checks.verify(job, options):
        if check.passed:
            passed.append(check.name)
        else:
            failed[check.name] = check.detail
        if check.name == last:
            break
    return passed, failed


def test_all_pass_on_what_is_sound(capsys, job):
    pytest.importorskip("peft")
    words = ["train", "verify", job.data, "--model", BASE, "--device", "cpu", "--steps", "6"]
    assert checked(capsys, *words, "--precision", "fp32") == (0, CHECKS, [])
    assert not job.output.exists()
    words[words.index(BASE)] = "tiny-random"
    assert checked(capsys, *words) == (1, DATA_CHECKS[:3], ["model"])


def planted(job, change):
    rows = [json.loads(line) for line in job.data.read_text("utf-8").splitlines()]
    copies = copy.deepcopy(rows)
    rows += [{**row, "id": f"{row['id']}b", "digest": f"{row['digest']}b"} for row in copies]
    change(rows)
    job.data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return job


@pytest.mark.parametrize(
    ("change", "name", "detail"),
    [
        (lambda rows: rows[1].update(text=" "), "lines", "line 2: it is damaged: text is empty"),
        (lambda rows: rows[1].update(id=[]), "lines", "line 2: it is damaged: id is no string"),
        (lambda rows: rows[1].update(digest={}), "lines", "line 2: it is damaged: digest is no"),
        (lambda rows: rows[1].update(x_vector=3), "lines", "line 2: it is damaged: x_vector is"),
        (lambda rows: rows[1].update(seconds="1"), "lines", "line 2: it is damaged: '>=' not"),
        (lambda rows: rows[1].update(seconds=-1), "lines", "line 2: it is damaged: seconds is -1"),
        (lambda rows: rows[1].update(id="0"), "ids", "the same: 0, 0"),
        (lambda rows: rows[3].update(digest="digest 0"), "recordings", "the same: 0, 1b"),
        (lambda rows: rows[2].update(model="1b7-0"), "shapes", "line 3: 0b was prepared with"),
        (
            lambda rows: [row.pop() for row in rows[0]["audio_codes"]],
            "shapes",
            "line 1: 0 has frames of 15 codes",
        ),
        (lambda rows: rows[1]["x_vector"].pop(), "shapes", "line 2: 1 has frames of 16 codes and"),
        (lambda rows: rows[3]["audio_codes"][0].__setitem__(4, 2048), "shapes", "0 .. 2047"),
        (
            lambda rows: [frame.__setitem__(7, 5) for r in rows for frame in r["audio_codes"]],
            "codes",
            ", 1, ",
        ),
        (lambda rows: [r["audio_codes"].extend(r["audio_codes"] * 300) for r in rows], "len", ""),
    ],
    ids=[
        *("text", "list", "object", "number", "string", "negative"),
        *("id", "twin", "encoders", "frames", "x-vector", "range", "stuck", "long"),
    ],
)
def test_a_planted_fault_of_the_data_is_found(job, change, name, detail):
    passed, failed = outcome(planted(job, change), last="lengths")
    assert len(passed) == len(DATA_CHECKS) - 1 and len(failed) == 1
    [(found, shown)] = failed.items()
    assert found.startswith(name) and detail in shown


def test_every_fault_of_the_file_is_listed(capsys, job):
    """The error of `train run` shows the first, and the command that shows all."""
    job.data.write_text('{"id": 1}\n' * 7 + job.data.read_text())
    assert main.main(["train", "run", str(job.data), "-o", str(job.output), "--quiet"]) == 2
    command = capsys.readouterr().err.splitlines()[-1].partition("python -m qwen_megakernel ")[2]
    assert command == f"train verify {job.data}"
    assert main.main([*command.split(), "--model", "tiny-random"]) == 1
    shown = capsys.readouterr().out
    assert all(f"\n     line {number}: it is damaged" in shown for number in range(1, 8))


def test_no_data_is_a_failed_check(job):
    assert list(outcome(replace(job, data=job.data / "none"))[1]) == ["lines"]


# ---- loss and learning ---------------------------------------------------------------------------


def test_a_loss_of_another_layout_than_generations_fails(job, monkeypatch):
    class Misled(speech_checks.SpeechModel):
        def losses(self, ids, request, codes):
            return super().losses(ids, replace(request, text_feed="full"), codes)

    monkeypatch.setattr(speech_checks, "SpeechModel", Misled)
    passed, failed = outcome(job, last="loss of own speech")
    assert passed == DATA_CHECKS and list(failed) == ["loss of own speech"]


def test_labels_that_are_shifted_fail(job, monkeypatch):
    class Shifted(speech_checks.SpeechModel):
        def losses(self, ids, request, codes):
            sums = super().losses(ids, request, codes)
            return torch.cat([sums[:1], sums[2:], sums[1:2]])

    monkeypatch.setattr(speech_checks, "SpeechModel", Shifted)
    assert list(outcome(job, last="loss of own speech")[1]) == ["loss of own speech"]


def test_speech_that_does_not_end_is_cut(job, monkeypatch):
    """The random model ends after a few frames; no speech ends before its second."""
    monkeypatch.setattr(speech_checks, "NUM_FRAMES", 1)
    assert outcome(job, last="loss of own speech")[0][-1] == "loss of own speech"


@pytest.mark.parametrize("method", ["full"])
def test_a_loss_that_does_not_fall_fails(job, method):
    passed, failed = outcome(job, replace(QUICK, method=method, learning_rate=0.0))
    assert list(failed) == ["loss"] and passed[-1] == "resume"


def test_a_loss_that_is_not_a_number_fails(job):
    assert list(outcome(job, replace(QUICK, learning_rate=1e30))[1]) == ["loss"]


def test_a_resume_that_forgets_fails(job, monkeypatch):
    load = speech_checks.SpeechTrainer.load_state

    def forgetful(self, path):
        load(self, path)
        self._optimizer.state.clear()

    monkeypatch.setattr(speech_checks.SpeechTrainer, "load_state", forgetful)
    assert list(outcome(job)[1]) == ["resume"]
