"""tools/fake_gpu refuses calls that a GPU forbids, and data that is read too early is wrong.

These tests run under it, with every test that needs a GPU: `make rehearse-gpu`.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tiny_speech import TEXT, VOICE, tiny_engine
from tolerances import AUDIO_GPU_F32

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.gpu.cuda_graphs import Graphs, download, upload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "QWEN_MEGAKERNEL_FAKE_GPU" not in os.environ, reason="make rehearse-gpu runs it"
    ),
]
GPU = torch.device("cuda")


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values).pin_memory()


def test_a_copy_without_a_wait_has_not_arrived():
    host = pinned(1.0)
    host.copy_(torch.tensor([2.0]).to(GPU), non_blocking=True)
    assert host.item() == 1
    torch.cuda.current_stream().synchronize()
    assert host.item() == 2


def test_a_source_that_is_overwritten_too_soon_is_copied_late():
    host, target = pinned(1.0), torch.zeros(1, device=GPU)
    target.copy_(host, non_blocking=True)
    host.fill_(2)
    assert target.item() == 2


def test_another_stream_waits_only_where_the_program_asks_for_it():
    host, target = pinned(1.0), torch.zeros(1, device=GPU)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        target.copy_(host, non_blocking=True)
    assert target.item() == 0
    torch.cuda.current_stream().wait_stream(side)
    assert target.item() == 1


def test_uploads_and_downloads_wait_for_what_they_must():
    target = torch.zeros(2, 2, device=GPU)
    upload(target, torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T)
    wait = download(target)
    target.zero_()
    assert wait().tolist() == [[1, 3], [2, 4]]


def test_a_graph_does_its_work_when_it_is_replayed():
    x, graph = torch.zeros(2, device=GPU), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        y = x * 10
    assert x.tolist() == [0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2] and y.tolist() == [20, 20]


def test_tensors_of_two_gpus_do_not_meet():
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")
    moved = torch.ones(2, device="cuda:1").to("cuda:0")
    assert (moved + torch.ones(2, device="cuda:0")).tolist() == [2, 2]


@pytest.mark.parametrize("forbidden", ["item", "synchronize", "ordinary memory", "mask"])
def test_what_waits_cannot_be_recorded_and_the_stream_is_the_callers_again(forbidden):
    x, times = torch.ones(2, device=GPU), []
    waiting = {
        "item": x[0].item,
        "synchronize": torch.cuda.synchronize,
        "ordinary memory": lambda: x.copy_(torch.zeros(2), non_blocking=True),
        "mask": lambda: x[x > 0],
    }

    def work() -> None:
        times.append(1)
        waiting[forbidden]()

    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="CUDA error"):
        Graphs(GPU).run("key", work)
    assert len(times) == 2  # once directly, then in the failed recording
    assert torch.cuda.current_stream() == before
    assert (x + 1).sum().item() >= 2


@pytest.mark.parametrize("gpu", ["cuda", "cuda:1"])
@pytest.mark.parametrize("backend", ["kernel", "graph"])
def test_an_engine_speaks_as_on_a_cpu(backend, gpu):
    said = []
    for device, name in ((gpu, backend), ("cpu", "torch")):
        options = {"device": device, "backend": name, "dtype": "float32", "num_slots": 2}
        with TTSEngine.from_pretrained("tiny-random", **options) as tts:
            streams = [tts.stream(TEXT, voice=VOICE, seed=n, max_frames=20) for n in (1, 2)]
            said.append([Speech.collect(stream) for stream in streams])
    for ours, theirs in zip(*said, strict=True):
        assert (ours.codes == theirs.codes).all()
        assert np.abs(ours.audio - theirs.audio).max() <= AUDIO_GPU_F32


def test_engines_are_made_beside_one_that_speaks():
    """Graphs are recorded while other threads use the GPU."""

    def make(backend: str, gpu: str) -> TTSEngine:
        return tiny_engine(backend=backend, device=gpu, dtype="float32")

    def say(tts: TTSEngine) -> list[list[int]]:
        return tts.synthesize(TEXT, voice=VOICE, seed=1, max_frames=12).codes.tolist()

    kinds = [("graph", "cuda:0"), ("kernel", "cuda:0"), ("graph", "cuda:1")]
    with make("graph", "cuda:0") as first, ThreadPoolExecutor(len(kinds)) as pool:
        said = say(first)
        made = [pool.submit(make, *kind) for kind in kinds]
        while not all(each.done() for each in made):
            assert say(first) == said
        for each in made:
            with each.result() as tts:
                assert say(tts) == said
