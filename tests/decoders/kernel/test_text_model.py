"""examples/qwen3_text: a Qwen3 text checkpoint through the speech kernel, against transformers."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from commands import ROOT, blocks
from fixtures import module_value
from spies import watch
from tolerances import KERNEL_PROMPT_F32

from qwen_megakernel.decoders.kernel.text_model import layer_tensors, text_sizes
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel, UsageError

pytestmark = pytest.mark.ci

EXAMPLE = ROOT / "examples" / "qwen3_text"
PROMPT = [7, 201, 33, 90, 5, 118, 64, 250, 12, 77, 3, 150, 9, 181, 42, 66, 20, 211, 99]
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("qwen3_text_model", EXAMPLE / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def oracle(request):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=256,
        rope_theta=1000000.0,
        max_position_embeddings=512,
        tie_word_embeddings=request.param,
        initializer_range=0.3,  # with less, every token repeats itself
        eos_token_id=255,
        pad_token_id=255,
        attn_implementation="eager",
    )
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(oracle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    oracle.save_pretrained(folder)
    return folder


decoder = module_value(
    lambda example, folder: example.Decoder.from_pretrained(str(folder), max_positions=128)
)


def greedy(oracle, ids: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        made = oracle.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)
    return made[0, len(ids) :].tolist()


def test_greedy_tokens_equal_those_of_transformers(oracle, decoder):
    theirs = greedy(oracle, PROMPT, NUM_TOKENS)
    assert len(theirs) == NUM_TOKENS and len(set(theirs)) > 8  # neither ended nor stuck
    assert decoder.generate_ids(PROMPT, NUM_TOKENS) == theirs


def test_a_token_is_one_launch_and_head_and_argmax_a_second_launch(decoder, monkeypatch):
    calls, library = [], decoder._layers.library
    watch(monkeypatch, library, "forward", lambda *_: calls.append("kernel"))
    watch(monkeypatch, library, "step", lambda *_: calls.append("kernel draws"))
    watch(monkeypatch, torch, "mv", lambda *_: calls.append("head"))
    decoder.generate_ids(PROMPT, 3)
    assert calls == ["kernel", "head"] * 3 + ["kernel"]  # the last call is for the last token


def test_hidden_states_equal_those_of_transformers(oracle, decoder):
    ours = decoder.forward(PROMPT, 0)
    theirs = oracle.model(torch.tensor([PROMPT])).last_hidden_state[0]
    assert (ours - theirs).abs().max() < KERNEL_PROMPT_F32


def test_an_end_token_ends_the_answer_and_is_not_in_it(oracle, example, folder):
    theirs = greedy(oracle, PROMPT, NUM_TOKENS)
    end = theirs[10]
    decoder = example.Decoder.from_pretrained(str(folder), max_positions=128, end_ids={end})
    assert decoder.generate_ids(PROMPT, NUM_TOKENS) == theirs[: theirs.index(end)]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the words w0 to w255, which reads any other word as w0."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{index}": index for index in range(256)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def test_text_goes_through_the_tokenizer(oracle, example, folder):
    write_tokenizer(folder)
    decoder = example.Decoder.from_pretrained(str(folder), max_positions=128)
    answer = decoder.generate(" ".join(f"w{token}" for token in PROMPT), 5)
    assert answer.split() == [f"w{token}" for token in greedy(oracle, PROMPT, 5)]


def test_the_snippet_of_the_readme_runs(run_here, monkeypatch, oracle, folder):
    """It runs with the test's checkpoint, whose tokenizer reads every English word as w0."""
    monkeypatch.syspath_prepend(EXAMPLE)
    [snippet] = blocks((EXAMPLE / "README.md").read_text("utf-8"), "python")
    for old, new in (
        ("Qwen/Qwen3-0.6B", str(folder)),
        ('device="cuda", dtype=torch.bfloat16', "max_positions=128"),
    ):
        assert old in snippet
        snippet = snippet.replace(old, new)
    write_tokenizer(folder)
    said = run_here("-c", snippet).stdout.split()
    answer = greedy(oracle, [0] * 5, 32)
    assert said == [f"w{token}" for token in answer if token != 255]


def test_what_does_not_fit_is_refused(example, decoder, folder, oracle):
    with pytest.raises(UsageError, match="prompt has 19 tokens, and 120 more may follow"):
        decoder.generate_ids(PROMPT, 120)
    values = json.loads((folder / "config.json").read_text())
    with pytest.raises(UnsupportedModel, match="'llama' is not qwen2 or qwen3"):
        text_sizes(values | {"model_type": "llama"})
    with pytest.raises(UnsupportedModel, match="yarn"):
        text_sizes(values | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    with pytest.raises(ModelFilesError, match=r"tensors are missing: model\.layers\.0"):
        example.Decoder(values, {})
    with pytest.raises(UsageError, match="float16; this decoder computes in bfloat16 or float32"):
        example.Decoder(values, oracle.state_dict(), dtype=torch.float16)


def test_no_weight_beside_the_layers_is_loaded_or_invented(oracle, decoder):
    buffers = decoder._layers._launcher._buffers
    loaded = {
        name for name in oracle.state_dict() if name.startswith(("model.layers", "model.norm"))
    }
    assert set(layer_tensors(buffers.config.talker.stack)) == loaded
    assert list(buffers.caches) == ["model."]
    assert not buffers.model.codec_head and not buffers.model.predictor.layers


def test_the_benchmark_and_the_build_run(run_here, monkeypatch, oracle, folder, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLE)  # as Python does for a script
    out = tmp_path / "result.json"
    options = ("--tokens", 3, "--runs", 2, "--device", "cpu", "--json", out)
    done = run_here(EXAMPLE / "bench.py", "--model", folder, "--dtype", "float32", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["summary"]["tokens_per_s"]["p50"] > 0
    done = run_here(EXAMPLE / "build.py", folder, "--dtype", "float32")
    assert done.returncode == 0 and Path(done.stdout.strip()).is_file()
