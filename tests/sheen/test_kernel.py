"""The Qwen2.5 layers on the speech kernel, by emulation, against transformers."""

from unittest.mock import Mock

import pytest
import torch
from nvcc import needs_nvcc
from sheen_toys import GREEDY, HELLO
from tolerances import KERNEL_PROMPT_F32

from qwen_megakernel.decoders.backends import Backend
from qwen_megakernel.decoders.kernel import build, text_model
from qwen_megakernel.decoders.kernel.text_model import KernelTextModel
from qwen_megakernel.errors import BuildError, UnsupportedModel, UsageError
from qwen_megakernel.sheen import engine as engine_module
from qwen_megakernel.sheen.engine import SheenEngine
from qwen_megakernel.sheen.language_model import KernelLanguageModel, TorchLanguageModel

MAX_POSITIONS = 128


@pytest.fixture(scope="module")
def oracle():
    """Qwen2.5-0.5B's proportions: 64-wide heads, seven to a key/value head, biases that matter."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=448,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=7,
        num_key_value_heads=1,
        vocab_size=64,
        max_position_embeddings=512,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Qwen2ForCausalLM(config).eval()
        with torch.no_grad():
            for layer in model.model.layers:
                for each in "qkv":
                    getattr(layer.self_attn, f"{each}_proj").bias.normal_()
    return model


@pytest.fixture(scope="module")
def stack(oracle):
    model = (oracle.config.to_dict(), oracle.state_dict())
    where = {"device": torch.device("cpu"), "dtype": torch.float32}
    return KernelTextModel(*model, max_positions=MAX_POSITIONS, **where)


@torch.inference_mode()
def test_hidden_states_equal_those_of_transformers(oracle, stack):
    ids = torch.arange(37) * 11 % 64
    rows = oracle.model.embed_tokens(ids)
    theirs = oracle.model(ids[None]).last_hidden_state[0]
    whole = stack.forward(0, rows, 0)
    assert (whole - theirs).abs().max() < KERNEL_PROMPT_F32
    stepped = torch.cat([stack.forward(0, row[None], at) for at, row in enumerate(rows)])
    assert (stepped - theirs).abs().max() < KERNEL_PROMPT_F32


@torch.inference_mode()
@pytest.mark.parametrize("each", "qkv")
def test_a_bias_that_is_dropped_would_be_seen(oracle, stack, each):
    ids = torch.arange(9)
    weights = oracle.state_dict()
    name = f"model.layers.1.self_attn.{each}_proj.bias"
    saved = weights[name].clone()
    with torch.no_grad():
        weights[name].zero_()
    try:
        wrong = oracle.model(ids[None]).last_hidden_state[0]
    finally:
        weights[name].copy_(saved)
    right = stack.forward(0, oracle.model.embed_tokens(ids), 0)
    assert (right - wrong).abs().max() > 500 * KERNEL_PROMPT_F32


@torch.inference_mode()
def test_greedy_tokens_equal_those_of_transformers(oracle):
    prompt = [7, 20, 33, 9, 5]
    made = oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=30)
    theirs = made[0, len(prompt) :].tolist()
    assert len(set(theirs)) > 8  # not stuck
    for model in (
        TorchLanguageModel(oracle, num_slots=2),
        KernelLanguageModel(oracle, num_slots=2, max_positions=MAX_POSITIONS),
    ):
        for slot in (1, 0, 1):  # slot 1 is used again
            model.begin(slot)
            ids, ours = prompt, []
            while len(ours) < len(theirs):
                ours.append(int(model.logits(model.read(slot, ids)).argmax()))
                ids = ours[-1:]
            assert ours == theirs


@pytest.mark.slow  # compiles for these dimensions
def test_a_voice_says_the_same_on_the_kernel(trained, samples):
    options = {"backend": "emulation", "warmup": False}
    with SheenEngine.from_pretrained(str(trained), **options) as engine:
        assert engine.backend == "emulation"
        speech = engine.synthesize(HELLO, **GREEDY)
    assert speech.codes.tolist() == samples[0].frames.tolist() and speech.finish_reason == "eos"


def test_where_the_kernel_cannot_be_built_auto_takes_torch(trained, monkeypatch, caplog):
    def load(name, may_change):
        backend = Backend(name, torch.device("cpu"), "planted", may_change=may_change)
        monkeypatch.setattr(engine_module, "choose_backend", lambda *args: backend)
        return SheenEngine.from_pretrained(str(trained), warmup=False)

    monkeypatch.setattr(text_model, "KernelTextModel", Mock(side_effect=BuildError("no compiler")))
    with load("kernel", may_change=True) as engine:
        assert (engine.backend, engine.why) == ("torch", "the kernel cannot run here: no compiler")
        assert "no compiler" in caplog.text
    with load("graph", may_change=True) as engine:  # graph, which may change, falls back too
        assert engine.backend == "torch"
    with pytest.raises(BuildError, match="no compiler"):
        load("kernel", may_change=False)


def test_there_are_no_graphs_of_this_family(trained):
    with pytest.raises(UsageError, match='backend is "graph"'):
        SheenEngine.from_pretrained(str(trained), backend="graph")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"model_type": "llama"}, "'llama' is not qwen2 or qwen3"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused(oracle, change, words):
    with pytest.raises(UnsupportedModel, match=words):
        text_model.text_sizes(oracle.config.to_dict() | change)


# Qwen/Qwen2.5-0.5B, config.json.
QWEN25_05B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_the_released_shape_compiles_without_a_warning_or_a_spill(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path))
    sizes = text_model.text_sizes(QWEN25_05B)
    assert build.build(sizes, build.Target(arch, "bfloat16")).is_file()


def test_seven_queries_to_a_key_get_half_the_threads(load_checkpoint):
    def threads(sizes):
        target = build.Target("sm_90a", "bfloat16")
        return build.definitions(sizes, target)["NUM_THREADS"]

    speech = load_checkpoint("tiny-random").config
    assert threads(text_model.text_sizes(QWEN25_05B)) == threads(speech) // 2
