"""Measure the explorer's frames while a client is dragged: 12 clients with 2 and with 6 targets.

    python benchmarks/explorer.py [--runs 5] [--json FILE]
    python benchmarks/explorer.py --tables [--docs docs/benchmarks.md]

Needs Chromium and Playwright. A headless browser starts at most 60 frames a second. Runs alternate with runs
of an empty page in the same browser: its rate is what the machine can do at that moment. "Late" frames come
more than one and a half periods after the one before. Milliseconds are per frame: of our script, and CPU time
of the page's main thread with style, layout and painting. Without a GPU, raster and composition take a second
core, so that frames are late if other work shares the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.browser import open_browser

from benchmark_pages import add_options, finish, markdown_table, read_results
from fedgram import Moments
from fedgram.display.explorer.page import describe_data, write_explorer
from fedgram.ufm.instances import random_covariances

STORED = Path(__file__).with_name("explorer_results.json")
CLIENTS, FRAMES = 12, 240
TARGETS = (2, 6)
EMPTY = "empty page"
PERIOD = 1000 / 60  # milliseconds
VIEWPORT = {"width": 1280, "height": 900}
FRAME = "ProxyMain::BeginMainFrame"  # Chromium's name for all work of the main thread in a frame
HEADINGS = ("", "frames per second", "late", "script, ms", "main thread, ms")
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each page, interleaved")
    add_options(parser, STORED)
    options = parser.parse_args()
    results = read_results(STORED) if options.tables else measure(options.runs)
    print(tables(results)["explorer"])
    finish(results, tables, options)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Table of the page, by name: medians over runs, with the smallest and the largest."""
    formats: dict[str, Callable[[float], str]] = {
        "rate": "{:.1f}".format,
        "late": "{:.1%}".format,
        "script": "{:.1f}".format,
        "thread": "{:.1f}".format,
    }
    rows = [
        (row["page"], *(_spread(row[name], show) for name, show in formats.items()))
        for row in results["pages"]
    ]
    machine = f"{results['cores']} cores, load average {results['load']:.1f} before the first run."
    return {"explorer": f"{machine}\n\n{markdown_table(HEADINGS, rows)}"}


def _spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    if not values:
        return ""
    least, median, most = map(show, np.quantile(values, (0, 0.5, 1)))
    return median if least == most else f"{median} ({least} to {most})"


def measure(runs: int) -> dict[str, Any]:
    """Frames of every page, run by run, and how busy the machine was."""
    load = os.getloadavg()[0]
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explorer.html"
        write_explorer(path)
        empty, page = (browser.new_page(viewport=VIEWPORT) for _ in range(2))
        page.goto(path.as_uri())
        results = [new_row(EMPTY), *(new_row(f"{CLIENTS} clients, C = {targets}") for targets in TARGETS)]
        for _ in range(runs):
            empty.bring_to_front()
            add_rate(results[0], empty.evaluate(IDLE, FRAMES))
            page.bring_to_front()
            for row, targets in zip(results[1:], TARGETS, strict=True):
                page.evaluate("(given) => explorer.open(given)", describe_data(draw_moments(targets)))
                page.evaluate(DRAG, 30)  # until the code is compiled
                found = page.evaluate(DRAG, FRAMES)
                add_rate(row, found["gaps"])
                row["script"].append(float(np.median(found["drawn"])))
                frames = trace_frames(browser, page, Path(folder) / "trace.json")
                row["thread"].append(float(np.median(frames)))
    return {"cores": os.cpu_count(), "load": load, "pages": results}


def new_row(page: str) -> dict[str, Any]:
    return {"page": page, "rate": [], "late": [], "script": [], "thread": []}


def add_rate(row: dict[str, Any], gaps: list[float]) -> None:
    """Add the frames per second of a run, and its fraction of late frames."""
    row["rate"].append(float(1000 / np.mean(gaps)))
    row["late"].append(float(np.mean(np.array(gaps) > 1.5 * PERIOD)))


def draw_moments(targets: int) -> Moments:
    rng = np.random.default_rng(targets)
    covariance = random_covariances(rng, (CLIENTS,), targets, (0.3, 3.0))
    return Moments(np.full(CLIENTS, 200), rng.standard_normal((CLIENTS, targets)), covariance)


def trace_frames(browser: Any, page: Any, path: Path) -> list[float]:
    """CPU milliseconds of the main thread in each frame of a drag."""
    browser.start_tracing(page=page, path=path, categories=["cc"])
    page.evaluate(DRAG, FRAMES)
    browser.stop_tracing()
    events = json.loads(path.read_text())["traceEvents"]
    return [each["tdur"] / 1000 for each in events if each["name"] == FRAME and "tdur" in each]


if __name__ == "__main__":
    main()
