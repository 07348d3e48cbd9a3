"""Measure the explorer's frames while a client is dragged: 12 clients with 2 and with 6 targets.

Run with Chromium and Playwright installed: python benchmarks/explorer.py

A headless browser starts a frame 60 times a second; "idle" is its rate on the same page without work. "Late"
frames come more than one and a half periods after the one before. Milliseconds are per frame: of our
script, and CPU time of the page's main thread with style, layout and painting. Without a GPU, raster and
composition take a second core, so that frames are late if other work shares the machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.browser import open_browser

from fedgram import Moments
from fedgram.display.explorer.page import describe_data, write_explorer
from fedgram.ufm.instances import random_covariances

CLIENTS, FRAMES = 12, 240
PERIOD = 1000 / 60  # milliseconds
QUANTILES = (0.5, 0.99)
FRAME = "ProxyMain::BeginMainFrame"  # Chromium's name for all work of the main thread in a frame
HEADER = f"{'':>6}{'frames/s':>9}{'late':>7}{'script':>9}{'99%':>9}{'thread':>9}{'99%':>9}"
IDLE = """async (frames) => {
  const times = [];
  for (let t = 0; t < frames; t++) times.push(await new Promise(requestAnimationFrame));
  return times.slice(1).map((time, k) => time - times[k]);
}"""
# Each frame moves the pointer once, as a mouse does, and draws what follows from it.
DRAG = """async (frames) => {
  const node = document.querySelector(".targets .means .mean");
  const box = node.getBoundingClientRect();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  const send = (type, t) => node.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, bubbles: true, button: 0,
    clientX: x + 60 * Math.sin(t / 15), clientY: y + 40 * Math.sin(t / 11),
  }));
  node.setPointerCapture = () => {};
  const frame = () => new Promise(requestAnimationFrame);
  const render = explorer.render.bind(explorer);
  const [drawn, times] = [[], []];
  explorer.render = (time) => {
    const start = performance.now();
    render(time);
    drawn.push(performance.now() - start);
  };
  send("pointerdown", 0);
  for (let t = 0; t < frames; t++) {
    send("pointermove", t);
    times.push(await frame());
  }
  node.dispatchEvent(new Event("lostpointercapture"));
  delete explorer.render;
  const gaps = times.slice(1).map((time, k) => time - times[k]);
  return { drawn, gaps };
}"""


def main() -> None:
    rng = np.random.default_rng(0)
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explorer.html"
        write_explorer(path)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(path.as_uri())
        print(HEADER)
        gaps = page.evaluate(IDLE, FRAMES)
        print(f"{'idle':>6}{1000 / np.mean(gaps):9.1f}{share_late(gaps):7.1%}")
        for targets in (2, 6):
            covariance = random_covariances(rng, (CLIENTS,), targets, (0.3, 3.0))
            moments = Moments(np.full(CLIENTS, 200), rng.standard_normal((CLIENTS, targets)), covariance)
            page.evaluate("(given) => explorer.open(given)", describe_data(moments))
            page.evaluate(DRAG, 30)  # until the code is compiled
            found = page.evaluate(DRAG, FRAMES)
            rate, late = 1000 / np.mean(found["gaps"]), share_late(found["gaps"])
            script = np.quantile(found["drawn"], QUANTILES)
            thread = np.quantile(trace_frames(browser, page, Path(folder) / "trace.json"), QUANTILES)
            cells = "".join(f"{value:9.2f}" for value in (*script, *thread))
            print(f"{f'C = {targets}':>6}{rate:9.1f}{late:7.1%}{cells}")


def share_late(gaps: list[float]) -> float:
    """Fraction of frames that come too late."""
    return float(np.mean(np.array(gaps) > 1.5 * PERIOD))


def trace_frames(browser: Any, page: Any, path: Path) -> list[float]:
    """CPU milliseconds of the main thread in each frame of a drag."""
    browser.start_tracing(page=page, path=path, categories=["cc"])
    page.evaluate(DRAG, FRAMES)
    browser.stop_tracing()
    events = json.loads(path.read_text())["traceEvents"]
    return [each["tdur"] / 1000 for each in events if each["name"] == FRAME and "tdur" in each]


if __name__ == "__main__":
    main()
