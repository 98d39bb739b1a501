"""docs/pipecat.md: its snippets run, with a small random model in place of the released ones."""

import re

import soundfile
from commands import ROOT, blocks, run
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.filters.identity_filter import IdentityFilter
from pipecat.services.tts_service import TextAggregationMode

from qwen_megakernel import TTSEngine
from qwen_megakernel.pipecat_tts import MegakernelTTSService

PAGE = (ROOT / "docs" / "pipecat.md").read_text(encoding="utf-8")
SNIPPETS = [re.sub('Qwen/[^"]+', "tiny-random", block) for block in blocks(PAGE, "python")]


class Transport:
    """The ends of a pipeline that the page takes from an application."""

    input = output = staticmethod(IdentityFilter)


def test_the_first_pipeline_runs_as_it_stands(tmp_path):
    (tmp_path / "first.py").write_text(SNIPPETS[0])
    done = run("first.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert soundfile.info(tmp_path / "table.wav").duration > 1


async def test_every_snippet_runs():
    _, quickstart, one_engine, token_mode = SNIPPETS
    others = {name: IdentityFilter() for name in ("stt", "user", "llm", "assistant")}
    names = others | {"transport": Transport(), "Pipeline": Pipeline}
    exec(quickstart, names)
    assert names["tts"] in names["pipeline"].processors
    await names["tts"].cleanup()

    names = {"MegakernelTTSService": MegakernelTTSService}
    exec(one_engine, names)
    with names["engine"] as engine:
        assert isinstance(engine, TTSEngine) and engine.num_slots == 4
        await names["bot"](None)
        exec(token_mode, names | {"TextAggregationMode": TextAggregationMode})
