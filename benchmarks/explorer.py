"""Measure the explorer's frames while a client is dragged: 12 clients with 2 and with 6 targets.

Run with Chromium and Playwright installed: python benchmarks/explorer.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.browser import open_browser

from fedgram import Moments
from fedgram.display.explorer.page import describe_data, write_explorer
from fedgram.ufm.instances import random_covariances

CLIENTS, FRAMES = 12, 240
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
        print(f"{'targets':>7}  {'frames/s':>8}  {'script per frame, ms: median':>28}  {'95%':>5}")
        for targets in (2, 6):
            covariance = random_covariances(rng, (CLIENTS,), targets, (0.3, 3.0))
            moments = Moments(np.full(CLIENTS, 200), rng.standard_normal((CLIENTS, targets)), covariance)
            page.evaluate("(given) => explorer.open(given)", describe_data(moments))
            page.evaluate(DRAG, 30)  # until the code is compiled
            found = page.evaluate(DRAG, FRAMES)
            rate = 1000 / np.mean(found["gaps"])
            median, most = np.quantile(found["drawn"], [0.5, 0.95])
            print(f"{targets:>7}  {rate:8.1f}  {median:28.2f}  {most:5.2f}")


if __name__ == "__main__":
    main()
