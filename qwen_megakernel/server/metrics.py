"""Prometheus metrics, named as vLLM-Omni proposes for speech, and the record of one request."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from qwen_megakernel.records import Drift
from qwen_megakernel.server.admission import Admission

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10)
_RATES = (1, 2, 5, 10, 12.5, 25, 50, 100, 200, 500, 1000)  # 12.5 frames per second is real time


class _CacheHits(Collector):
    """The engine's own counter."""

    def __init__(self, hits: Callable[[], int]):
        self._hits = hits

    def collect(self) -> Iterator[CounterMetricFamily]:
        what = "Reference recordings whose voice was in the cache"
        yield CounterMetricFamily("tts_reference_cache_hits", what, value=self._hits())


class Metrics:
    """All metrics of /metrics, in a registry for each server.

    Args:
        cache_hits: returns the engine's count of reference cache hits.
    """

    def __init__(self, admission: Admission, cache_hits: Callable[[], int]):
        registry = self.registry = CollectorRegistry()
        histogram = functools.partial(Histogram, registry=registry)
        counter = functools.partial(Counter, registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        what = "Time from a request's arrival to the last frame of its speech"
        self.duration = histogram("tts_request_duration_seconds", what, buckets=_SECONDS)
        what = "Time from a request's arrival to its first samples"
        self.first_audio = histogram("tts_time_to_first_audio_seconds", what, buckets=_SECONDS)
        what = "Time from a request's arrival to the end of its speech, over the speech's length"
        self.realtime_factor = histogram("tts_realtime_factor", what, buckets=_FACTORS)
        what = "Codec frames per second, from the first samples to the last"
        self.frame_rate = histogram("tts_tokens_per_second", what, buckets=_RATES)
        self.requests = counter("tts_requests", "Requests that were admitted", ["finish_reason"])
        what = "Requests that were answered with an error"
        self.refused = counter("tts_refused", what, ["status"])
        self.underruns = counter("tts_underruns", "Times a player without a buffer ran dry")
        what = "Parts of speech that differed too much from the first one of their voice"
        self.drifts = counter("tts_drifted_parts", what, ["redrawn"])
        self.drifts.labels("yes"), self.drifts.labels("no")  # which count from 0 on
        active = gauge("tts_active_requests", "Requests being spoken or waiting")
        active.set_function(lambda: len(admission.running))
        waiting = gauge("tts_waiting_requests", "Requests waiting for a slot")
        waiting.set_function(lambda: admission.num_waiting)
        registry.register(_CacheHits(cache_hits))
        ProcessCollector(registry=registry)


@dataclass(slots=True)
class SpeechRecord:
    """The times and counts of one request; `end` and `count` add them to `metrics`."""

    metrics: Metrics
    sample_rate: int
    arrived: float = field(default_factory=time.perf_counter)
    first_audio: float | None = None  # perf_counter() of the first samples
    num_samples: int = 0
    num_frames: int = 0
    underruns: int = 0
    _played_until: float = 0.0
    _ended: float | None = None

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds from the arrival until now, or until the end of the speech."""
        return 1000 * ((self._ended or time.perf_counter()) - self.arrived)

    @property
    def first_audio_ms(self) -> float | None:
        """Milliseconds from the arrival to the first samples."""
        return None if self.first_audio is None else 1000 * (self.first_audio - self.arrived)

    def add(self, num_samples: int, num_frames: int) -> None:
        """Count a chunk that the engine has made; the last one may have no samples."""
        self.num_frames += num_frames
        if not num_samples:
            return
        now = time.perf_counter()
        if self.first_audio is None:
            self.first_audio = self._played_until = now
            self.metrics.first_audio.observe(now - self.arrived)
        elif now > self._played_until:
            self.underruns += 1
            self._played_until = now
        self._played_until += num_samples / self.sample_rate
        self.num_samples += num_samples

    def count(self, reason: str, drifts: Iterable[Drift] = ()) -> None:
        """Count the request by the reason why its speech ended, and its drifts."""
        self.metrics.requests.labels(reason).inc()
        self.metrics.underruns.inc(self.underruns)
        for drift in drifts:
            self.metrics.drifts.labels("yes" if drift.is_redrawn else "no").inc()

    def end(self) -> None:
        """Record the times of a speech whose last frame is made."""
        self._ended = time.perf_counter()
        metrics, spent = self.metrics, self._ended - self.arrived
        metrics.duration.observe(spent)
        if self.num_samples and self.first_audio is not None:
            metrics.realtime_factor.observe(spent * self.sample_rate / self.num_samples)
            speaking = self._ended - self.first_audio
            if speaking > 0:
                metrics.frame_rate.observe(self.num_frames / speaking)
