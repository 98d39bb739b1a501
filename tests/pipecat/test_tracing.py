"""OpenTelemetry spans of the service, as Pipecat's own tracing records them."""

from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk")
from fake_engine import FakeEngine
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipecat.frames.frames import InterruptionFrame, TTSAudioRawFrame
from pipelines import Run, service

from qwen_megakernel.pipecat.service import MegakernelTTSService


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """Finished spans of this process; OpenTelemetry takes a provider only once.

    FastAPI makes spans too, so nothing is kept once these tests are over.
    """
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    exporter.shutdown()  # a provider that was shut down warns of each later span


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def tts_spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == "tts"]


def traced(tts: MegakernelTTSService) -> Run:
    return Run(tts, enable_tracing=True, enable_turn_tracking=True)


async def test_a_turn_is_one_span_with_its_text_and_time_to_first_byte(mode, spans):
    async with traced(service(FakeEngine(first_delay_s=0.05), mode)) as run:
        await run.turn("The first one. ", "And the second one.", stops=1)
    (span,) = tts_spans(spans)
    assert span.attributes["gen_ai.request.model"] == "hum"
    assert "".join(span.attributes["text"].split()) == "Thefirstone.Andthesecondone."
    assert 0.05 <= span.attributes["metrics.ttfb"] < 2 + run.slack_s
    assert "tts.interrupted" not in span.attributes
    assert run.tts._tts_spans == {}


async def test_an_interrupted_turn_ends_its_span(mode, spans):
    async with traced(service(FakeEngine(stall_after=1), mode)) as run:
        await run.turn("It was a dark night, and nobody was out in the rain but me.")
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await run.until(InterruptionFrame)
    (span,) = tts_spans(spans)
    assert span.attributes["tts.interrupted"]
    assert run.tts._tts_spans == {}
