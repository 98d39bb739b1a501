"""Drives the web page in a browser, and records what it shows and plays."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fake_engine import STORY

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=20_000)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
# These leave only the page: no profile, no updates, no look-ups of other hosts.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WRITE_DOWN = """
window.played = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  const samples = Array.from(this.buffer.getChannelData(0), (x) => Math.round(x * 32768));
  window.played.push({ when, rate: this.context.sampleRate, samples, at: performance.now() });
  return start.call(this, when);
};
"""


def slow_clock(page: Any) -> None:
    """Slow the clock of the page's player to a tenth, so that no audio comes late.

    If this machine is late, the page rightly leaves a gap.
    """
    page.evaluate(
        """() => {
          const name = "currentTime", clock = BaseAudioContext.prototype;
          const { get } = Object.getOwnPropertyDescriptor(clock, name);
          Object.defineProperty(clock, name, { get() { return get.call(this) / 10; } });
        }"""
    )


def speak(page: Any, text: str = STORY) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Speak", exact=True).click()


def finished(page: Any) -> None:
    expect(page.locator("#speak")).to_have_text("Speak")  # the request has ended, too
    expect(page.locator("#download")).to_be_visible()


def played(page: Any) -> list[dict[str, Any]]:
    return page.evaluate("window.played")


def pcm(pieces: list[dict[str, Any]]) -> bytes:
    return np.concatenate([np.array(piece["samples"], "<i2") for piece in pieces]).tobytes()


def download(page: Any, format: str = "wav") -> np.ndarray:
    page.select_option("#format", format)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    assert waiting.value.suggested_filename == f"speech.{format}"
    samples, rate = soundfile.read(Path(waiting.value.path()), dtype="int16")
    assert rate == 24000
    return samples


def figure(page: Any, name: str) -> float:
    return float(page.inner_text(f"#{name}").split()[0])


def pixels(page: Any, canvas: str, share: float) -> np.ndarray:
    """Return [width, 4]: one row of the drawing, at `share` of the height."""
    row = page.evaluate(
        """([id, share]) => {
          const canvas = document.getElementById(id), y = Math.floor(share * canvas.height);
          return Array.from(canvas.getContext("2d").getImageData(0, y, canvas.width, 1).data);
        }""",
        [canvas, share],
    )
    return np.array(row).reshape(-1, 4)


def waveform_width(page: Any) -> int:
    """Return the last column whose bar is higher than silence."""
    return int(pixels(page, "waveform", 0.45)[:, 3].nonzero()[0].max(initial=0))
