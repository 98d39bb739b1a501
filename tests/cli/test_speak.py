"""The front ends that speak a text, run as they are typed: files, output, exit codes."""

import argparse
import contextlib
import functools
import io
import itertools
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
from commands import ROOT, run

from qwen_megakernel import audio, families
from qwen_megakernel.cli import options, running
from qwen_megakernel.cli import speak as cli_speak
from qwen_megakernel.cli.main import main
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import COMMENT

SHORT = ("--max-frames", "6", "--seed", "3", "--backend", "cpu")
TINY = ("--model", "tiny-random")
SPEAK = ("-m", "qwen_megakernel", "speak")
every_front_end = pytest.mark.parametrize(
    "script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py", "--text")]
)


@pytest.fixture
def speak(run_here):
    return functools.partial(run_here, *SPEAK)


@pytest.fixture
def speak_bytes(capsysbinary):
    """speak_bytes(*arguments): exit code, stdout and stderr in bytes, since samples are no text."""

    def speak(*arguments):
        code = main(["speak", *map(str, arguments)])
        return code, *capsysbinary.readouterr()

    return speak


def test_demo_tts_writes_the_file_and_says_what_it_did(run_here, caplog, tmp_path):
    out = tmp_path / "demo.wav"
    done = run_here("demo_tts.py", "Hello there.", "--output", out, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(out)
    assert rate == 24000 and len(samples) <= 6 * 1920
    assert "seed 3" in done.stderr and "RANDOM" in caplog.text
    assert done.stdout == ""  # stdout is for data


def test_markup_that_is_read_aloud_names_the_option_of_the_command(speak, tmp_path, caplog):
    done = speak("One <break/> two.", "--output", tmp_path / "a.wav", *TINY, *SHORT)
    assert done.returncode == 0 and "read aloud; --text-format ssml obeys it" in caplog.text


@every_front_end
def test_quiet_front_ends_say_nothing_of_a_speech_that_went_well(run_here, tmp_path, script):
    out = tmp_path / "a.wav"
    done = run_here(*script, "Hello.", "--output", out, "--quiet", *TINY, *SHORT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and out.exists()


@pytest.mark.parametrize("mark", ["metadata", "none"])
@every_front_end
def test_files_of_every_front_end_say_that_they_are_synthetic(run_here, tmp_path, script, mark):
    out = tmp_path / "a.flac"
    done = run_here(*script, "Hello.", "--output", out, "--mark", mark, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    with soundfile.SoundFile(out) as file:
        assert file.comment == (COMMENT if mark == "metadata" else "")


def test_speak_writes_a_file_a_dump_and_chunk_lines(speak, tmp_path):
    out, dump = tmp_path / "a.flac", tmp_path / "codes.tsv"
    done = speak("Hello there.", "--output", out, "--dump-codes", dump, "--stream", *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    codes = np.loadtxt(dump, dtype=int, ndmin=2)
    assert codes.shape[1] == 16
    assert len(soundfile.read(out)[0]) == len(codes) * 1920
    assert done.stdout == "" and "frames 0..0" in done.stderr


def test_the_dump_option_and_the_variable_give_the_same_file(speak, tmp_path, monkeypatch):
    """Neither file has the engine's warm-up, and a second run replaces the contents."""
    option, variable = tmp_path / "option.tsv", tmp_path / "variable.tsv"
    common = ("Hello.", "--output", tmp_path / "a.wav", *TINY, *SHORT)
    assert speak(*common, "--dump-codes", option).returncode == 0
    assert len(option.read_text().splitlines()) == 6
    monkeypatch.setenv("TTS_DUMP_CODES", str(variable))
    for _ in range(2):
        assert speak(*common).returncode == 0
        assert variable.read_bytes() == option.read_bytes()


@pytest.mark.parametrize("prints", [print, functools.partial(print, flush=True)])
def test_output_that_nothing_takes_has_an_exit_code_and_no_traceback(monkeypatch, capsys, prints):
    """A full disk exits with 5; a reader that has ended (`... | head -1`) is no error."""
    reading, writing = os.pipe()
    os.close(reading)
    args = argparse.Namespace(debug=False, quiet=False)
    full, gone = ("/dev/full", 5, "standard output: No space left"), (writing, 0, "")
    for (file, code, shown), buffering in itertools.product((full, gone), (-1, 0)):
        file = os.dup(file) if file is writing else file
        with io.TextIOWrapper(open(file, "wb", buffering), write_through=not buffering) as output:
            monkeypatch.setattr(sys, "stdout", output)
            assert running.run(lambda _: prints("figures") or 0, args) == code
            assert sys.stdout is output
            sys.stdout.flush()  # as Python does when it exits
        assert shown in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_samples_that_cannot_be_written_are_reported(environment):
    """A chunk is larger than the buffer, so no rest is written, and fails again, at the exit."""
    command = [sys.executable, *SPEAK, "Hello there, friend.", "--stdout", "--quiet", *TINY]
    command += ["--backend", "cpu"]
    environment = os.environ | environment
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read(100)) == 100
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 5
    assert done.stderr == b"error: standard output: No space left on device.\n"


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_closed_or_full_standard_error_changes_neither_samples_nor_exit_code(errors):
    """`print` without standard error writes to standard output; a full disk raises an error."""
    words = [sys.executable, *SPEAK, "Hello.", "--stdout", "--stream", "--seed", "1", *TINY, *SHORT]
    whole, cut = (
        subprocess.run(
            ["sh", "-c", f'"$@" {redirection}', "sh", *words],
            cwd=ROOT,
            capture_output=True,
            timeout=60,
        )
        for redirection in ("2>/dev/null", errors)
    )
    assert (cut.returncode, cut.stdout) == (0, whole.stdout) and whole.stdout


def test_closed_descriptors_are_held_so_that_no_file_takes_their_place():
    program = "import os, sys; sys.argv[1:] = ['--version']; import qwen_megakernel.__main__ as m\n"
    program += "try: m.main()\nfinally: [os.fstat(number) for number in range(3)]"
    command = ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("buffering", [-1, 0])
def test_output_in_an_encoding_without_a_character_has_an_escape(tmp_path, monkeypatch, buffering):
    args = argparse.Namespace(debug=False, quiet=False)
    with io.TextIOWrapper(open(tmp_path / "out", "wb", buffering), "ascii") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert running.run(lambda _: print("Zoë") or 0, args) == 0
        assert output.errors == "strict"  # as the program that calls the command left it
    assert (tmp_path / "out").read_text() == "Zo\\xeb\n"


def test_output_may_be_kept_in_memory():
    args = argparse.Namespace(debug=False, quiet=False)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert running.run(lambda _: print("Zoë") or 0, args) == 0
    assert output.getvalue() == "Zoë\n"


@pytest.mark.parametrize("error", [OSError(113, "No route to host"), BrokenPipeError(32, "gone")])
def test_a_fault_of_something_else_is_not_put_on_the_output(capsys, error):
    def fail(_):
        print("figures")
        raise error

    assert running.run(fail, argparse.Namespace(debug=False, quiet=False)) == 5
    shown = capsys.readouterr()
    assert shown.out == "figures\n" and shown.err == f"error: {error.strerror}.\n"


def test_a_folder_that_cannot_be_written_is_reported(run_here, tmp_path):
    (tmp_path / "file").touch()
    done = run_here("-m", "qwen_megakernel", "download", *TINY[1:], "--to", tmp_path / "file")
    assert done.returncode == 5
    assert f"error: Cannot write {tmp_path / 'file'}: File exists" in done.stderr


def test_a_download_that_fails_leaves_no_folder(run_here, tmp_path):
    to = tmp_path / "new" / "folder"
    done = run_here("-m", "qwen_megakernel", "download", "/no/such/model", "--to", to)
    assert done.returncode == 4 and os.listdir(tmp_path) == []
    (tmp_path / "new").mkdir()
    run_here("-m", "qwen_megakernel", "download", "/no/such/model", "--to", to)
    assert os.listdir(tmp_path) == ["new"] and os.listdir(tmp_path / "new") == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_download_to_a_full_disk_is_one_line_and_leaves_no_part(
    run_here, tmp_path, monkeypatch, is_there
):
    def copy(source, target, **_):
        raise OSError(28, "No space left on device", source)

    if is_there:
        (tmp_path / "to").mkdir()
    monkeypatch.setattr(shutil, "copyfile", copy)
    done = run_here("-m", "qwen_megakernel", "download", *TINY[1:], "--to", tmp_path / "to")
    assert done.returncode == 5
    *_, line = done.stderr.splitlines()
    assert line.startswith(f"error: Cannot write {tmp_path / 'to'}: ")
    assert line.count("No space left on device") == 1
    assert os.listdir(tmp_path) == ["to"] * is_there


def test_speak_reads_standard_input_and_writes_raw_samples_and_chunk_lines_beside(
    speak_bytes, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello there."))
    code, samples, shown = speak_bytes("-", "--stdout", "--stream", *TINY, *SHORT)
    assert code == 0 and b"frames 0..0" in shown, shown
    assert len(samples) > 0 and len(samples) % (2 * 1920) == 0


LATIN1 = "Grüße aus dem café".encode("latin-1")


@every_front_end
def test_a_text_that_is_not_utf8_is_refused_and_its_place_named(run_here, script):
    done = run_here(*script, os.fsdecode(LATIN1), *TINY, *SHORT)
    assert done.returncode == 2 and "error: The text is not UTF-8 text: " in done.stderr
    assert "can't decode byte 0xfc in position 2" in done.stderr
    assert "iconv -f LATIN1 -t UTF-8" in done.stderr


def test_a_utf16_file_gets_the_hint_that_converts_it(run_here, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Grüße", encoding="utf-16")
    done = run_here(*SPEAK, "--file", path, *TINY, *SHORT)
    assert done.returncode == 2 and "iconv -f UTF-16 -t UTF-8" in done.stderr


@pytest.mark.parametrize("words", [["--hello--"], ["--text", "--hello--"], ["-ynot"]])
def test_a_text_that_looks_like_an_option_gets_the_form_that_speaks_it(run_here, words):
    done = run_here(*SPEAK, *words, *TINY)
    assert done.returncode == 2 and "--text=TEXT" in done.stderr


def test_a_file_that_is_not_utf8_is_named(run_here, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(LATIN1)
    done = run_here(*SPEAK, "--file", path, *TINY, *SHORT)
    assert done.returncode == 2 and f"error: {path} is not UTF-8 text: " in done.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the locale decides
def test_standard_input_that_is_not_utf8_is_refused(monkeypatch, errors):
    stdin = io.TextIOWrapper(io.BytesIO(LATIN1), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError, match=r"^Standard input is not UTF-8 .* 0xfc in position 2"):
        running.read_text("-")


def test_standard_input_of_another_locale_gets_the_hint_that_reads_it(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO("Grüße".encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError, match=r"^Standard input is not ASCII text") as caught:
        running.read_text("-")
    assert caught.value.hint == "If it is UTF-8, set PYTHONIOENCODING=utf-8."


def test_a_book_is_spoken_to_a_file(monkeypatch, tmp_path, capsys):
    book = "A sentence of some words for this book. " * 600  # 24 000 characters
    monkeypatch.setattr(cli_speak, "LONG_CHARS", 20_000)
    (tmp_path / "book.txt").write_text(book)
    for words in (["-"], ["--file", str(tmp_path / "book.txt")]):
        for text_format in ("plain", "pauses"):
            monkeypatch.setattr(sys, "stdin", io.StringIO(book))
            words += ["--text-format", text_format, "--output", str(tmp_path / "a.wav")]
            assert main(["speak", *words, "--backend", "cpu", "--max-frames", "1", *TINY]) == 0
            assert soundfile.info(tmp_path / "a.wav").duration > 0.07
            assert capsys.readouterr().err.startswith("reading 2")


def test_progress_is_a_line_every_few_seconds_where_there_is_no_terminal(capsys, monkeypatch):
    args = argparse.Namespace(quiet=False, stream=False, stdout=False)
    for seconds, shown in ((0, ["... 0.5 s of speech in 00:00"]), (60, [])):
        monkeypatch.setattr(cli_speak, "SECONDS_BETWEEN_LINES", seconds)
        with cli_speak._progress_bar(args, "Hello." * 20) as bar:
            bar.update(0.5)
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1:] == shown and not any("\r" in line for line in lines)


def test_samples_do_not_fill_a_terminal(speak_bytes, monkeypatch):
    code, samples, shown = speak_bytes("Hello.", "--stdout", *TINY, *SHORT)
    assert code == 0 and samples and shown.endswith(b"hear it: aplay -t raw -f S16_LE -r 24000\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(options, "engine_from_args", lambda *_: pytest.fail("loaded"))
    code, samples, shown = speak_bytes("Hello.", "--stdout", "--sample-rate", 8000, *TINY)
    assert code == 2 and samples == b"" and b"| aplay -t raw -f S16_LE -r 8000" in shown


def test_a_closed_standard_output_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["speak", "Hello.", "--stdout", *TINY]) == 2
    assert capsys.readouterr().err == (
        "error: There is no standard output to write samples to.\nUse --output.\n"
    )


def test_an_interruption_says_what_the_file_has(speak, monkeypatch, tmp_path):
    write, chunks = audio.WavWriter.write, []

    def interrupted(self, samples):
        if len(chunks) == 2:
            raise KeyboardInterrupt
        chunks.append(samples)
        write(self, samples)

    monkeypatch.setattr(audio.WavWriter, "write", interrupted)
    done = speak("Hello there.", "--output", tmp_path / "a.wav", *TINY, *SHORT)
    assert done.returncode == 130
    seconds = sum(map(len, chunks)) / 24000
    assert soundfile.info(tmp_path / "a.wav").duration == seconds
    shown = f"{tmp_path / 'a.wav'} has the first {seconds:.2f} s\ninterrupted\n"
    assert done.stderr.endswith(shown)


def test_demo_voice_has_one_line_before_its_result(speak, tmp_path, caplog):
    done = speak("Hi.", "--model", "demo-voice", "--output", tmp_path / "a.wav")
    assert [*caplog.messages, *done.stderr.splitlines()][1:] == done.stderr.splitlines()
    assert len(done.stderr.splitlines()) == 1 and "demonstration voice" in caplog.messages[0]
    assert "--" not in caplog.messages[0]  # Python logs it, too


def test_the_same_seed_gives_the_same_file_in_another_process(speak, tmp_path):
    for command, name in ((speak, "a.wav"), (functools.partial(run, *SPEAK), "b.wav")):
        assert command("Hi.", "--output", tmp_path / name, *TINY, *SHORT).returncode == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("", *TINY), 2, "empty"),
        (("🙂", *TINY), 2, "no letter"),
        (("Hello.", "--voice", "alloy", *TINY), 2, "aiden"),
        (("Hello.", "--language", "Klingon", *TINY), 2, "english"),
        (("Hello.", "--seed", "-4", *TINY), 2, "-4"),
        (("Hello.", "--model", "/no/such/folder"), 4, "/no/such/folder"),
        (("Hello.", "--backend", "kernel", *TINY), 3, "--backend torch"),
        (("Hello.", "--device", "cuda", *TINY), 3, "--device cpu"),
        (
            ("Hello.", "--temperature", "0", *TINY),
            2,
            "above 0 and at most 1000000. For greedy decoding use --greedy",
        ),
        (("Hello.", "--output", "/no/such/dir/a.wav", *TINY), 5, "there is no folder /no/such/dir"),
        (("Hello.", "--output", "a.xyz", *TINY), 2, "wav"),
    ],
)
def test_what_cannot_work_ends_with_its_code_one_message_and_no_file(
    speak, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    done = speak(*arguments)
    assert done.returncode == code, done.stderr
    assert message.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_one_file_for_two_outputs_is_refused(speak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = speak("Hi.", "-o", "a.wav", "--dump-codes", tmp_path / "a.wav", *TINY)
    assert done.returncode == 2 and "a.wav is the file of two outputs" in done.stderr
    assert not list(tmp_path.iterdir())


def test_unwritable_codes_and_a_dash_are_refused_before_a_model_is_loaded(
    run_here, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "engine_from_args", lambda *_: pytest.fail("loaded"))
    for script in (SPEAK, (ROOT / "demo_pipeline.py", "--text")):
        for path in ("/no/such/dir/a.tsv", "."):
            done = run_here(*script, "Hello.", "--dump-codes", path)
            assert done.returncode == 5 and f"Cannot write codes to {path}: " in done.stderr
    done = run_here(*SPEAK, "Hello.", "--output", "-")
    assert done.returncode == 2 and "--stdout" in done.stderr
    for option in ("--stdout", "--play"):
        done = run_here(*SPEAK, "Hello.", option, "--loudness", "-16")
        assert done.returncode == 2 and f"{option} and --loudness cannot be" in done.stderr
    assert os.listdir(tmp_path) == []


@every_front_end
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("Hello.", "-o", "/no/such/dir/a.wav"), 5, ""),
        (("🙂",), 2, ""),
        (("a" * 20_001,), 2, ""),
        (("Hello.", "--output", "a.xyz"), 2, ""),
        (("Hello.", "--temperature", "-1"), 2, "-1"),
        (("Hello.", "--top-p", "3"), 2, "3"),
        (("Hello.", "--top-k", "-2"), 2, "-2"),
        (("Hello.", "--max-frames", "0"), 2, "0"),
    ],
)
def test_what_cannot_be_spoken_or_written_is_refused_before_a_model_is_loaded(
    run_here, monkeypatch, script, arguments, code, told
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    done = run_here(*script, *arguments)
    assert done.returncode == code
    if told:  # of an option, with or without the usage before it
        assert told in done.stderr and "must be" in done.stderr
    else:
        assert done.stderr.startswith("error: ")
    assert "--max-chars" not in done.stderr  # these commands do not have it


@every_front_end
def test_a_speech_that_is_cut_off_is_reported(run_here, tmp_path, caplog, script):
    text = "This sentence is too long for so few frames."
    options = ("--model", "demo-voice", "--backend", "cpu", "--max-frames", "5", "--seed", "7")
    done = run_here(*script, text, *options, "--output", tmp_path / "a.wav")
    assert done.returncode == 0, done.stderr
    assert "Stopped at 5 frames (0.4 s) without an end token (seed 7)." in caplog.messages


def test_options_that_greedy_decoding_ignores_are_reported(speak, tmp_path, caplog):
    ignored = ("--temperature", "0.5", "--top-k", "3", "--repetition-penalty", "1.2")
    output = ("--output", tmp_path / "a.wav")
    assert speak("Hello.", "--greedy", *ignored, *output, *TINY, *SHORT).returncode == 0
    shown = [message for message in caplog.messages if "no effect" in message]
    assert shown == ["--greedy: --temperature has no effect.", "--greedy: --top-k has no effect."]


@pytest.mark.parametrize(
    ("count", "shown"), [(1, "at 1 frame (0.1 s)"), (2, "at 2 frames (0.2 s)")]
)
def test_one_frame_is_not_plural(caplog, count, shown):
    running.warn_of_end(Mock(finish_reason="length", codes=[0] * count, seed=7), 0.08)
    assert shown in caplog.text


def test_debug_shows_the_traceback_and_keeps_the_exit_code(speak):
    done = speak("", "--debug", *TINY)
    assert done.returncode == 2 and "Traceback" in done.stderr
    assert done.stderr.endswith("\nerror: Text is empty after trimming.\n")


def test_debug_shows_the_times_of_loading_and_of_the_first_chunk(speak, caplog, tmp_path):
    caplog.set_level("DEBUG")
    done = speak("Hello.", "--debug", "--output", tmp_path / "a.wav", *TINY, *SHORT)
    assert done.returncode == 0
    for words in ("Loaded in ", "Warmed up in ", "first_chunk "):
        assert any(words in message for message in caplog.messages)


@pytest.mark.parametrize("script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py",)])
def test_a_text_comes_as_an_argument_an_option_or_a_file(script, run_here, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(running, "read_text", lambda text: seen.append(text) or "")
    (tmp_path / "a.txt").write_text("Hello.")
    for words in (["Hello."], ["--text", "Hello."], ["-f", tmp_path / "a.txt"]):
        assert run_here(*script, "--model", "demo-voice", *words).returncode == 2
    assert seen == ["Hello."] * 3


def test_the_name_of_a_file_is_spoken_with_a_hint(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes").write_text("Hello.")
    for text in ("my notes", "missing.txt", "Read missing.txt", "x" * 5000):
        assert running.read_text(text) == text
    assert [message.split()[4] for message in caplog.messages] == ["my", "missing.txt."]
    assert all("--file" in message for message in caplog.messages)
