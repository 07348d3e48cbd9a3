"""Embed matplotlib's SVG files in the page: smaller, with named runs and themed colors."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, PALE, RED, VIOLET

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
# Variables of the style sheet, which a dark page sets to lighter colors.
THEMED = {
    BLUE: "blue", ORANGE: "orange", GREEN: "green", RED: "red", VIOLET: "violet", GREY: "grey", PALE: "grey",
    INK: "ink", "#000000": "ink", "#595959": "soft", "#666666": "soft",
}  # fmt: skip
WHITE = "fill: #ffffff"  # style of the background of the figure and of its panels
UNUSED = ("width", "height", "version")


class FigureEmbedder:
    """Embeds the figures of one page, which it numbers."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, content: bytes, label: str) -> str:
        """Return the element of an SVG file; label: what it shows, for screen readers."""
        self._count += 1
        return embed_svg(content, f"f{self._count}", label)


def embed_svg(content: bytes, name: str, label: str) -> str:
    """Return the element of an SVG file for an HTML page.

    Ids start with `name`, so that figures do not share them. Artists with runs (see `tag_runs`) get the
    attribute data-runs. Coordinates keep two decimals of a point.
    """
    ElementTree.register_namespace("", SVG[1:-1])
    root = ElementTree.fromstring(content)
    width = float(root.attrib["viewBox"].split()[2])
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', content.decode()))
    ids = {identity: f"{name}-{number}" for number, identity in enumerate(used)}
    _move_styles(root)
    for element in root.iter():
        _shorten(element, ids)
    _flatten(root)
    root.attrib |= {"role": "img", "aria-label": label, "style": f"--width: {width / 72 * 96:.0f}px"}
    for each in UNUSED:
        root.attrib.pop(each, None)
    return ElementTree.tostring(root, encoding="unicode")


def _move_styles(root: ElementTree.Element) -> None:
    """Move the style of references to their shape; matplotlib defines a shape for each style."""
    shapes = {element.get("id"): element for element in root.iter(f"{SVG}path")}
    for reference in root.iter(f"{SVG}use"):
        if style := reference.attrib.pop("style", ""):
            shapes[reference.attrib[f"{XLINK}href"][1:]].set("style", style)


def _shorten(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Rename or drop the id, round numbers and theme colors of one element."""
    attributes = element.attrib
    identity = attributes.pop("id", "")
    if identity.startswith("runs_"):
        attributes["data-runs"] = identity.removeprefix("runs_").replace("_", " ")
    elif identity in ids:
        attributes["id"] = ids[identity]
    if target := attributes.pop(f"{XLINK}href", "")[1:]:
        attributes["href"] = f"#{ids[target]}"
    if "clip-path" in attributes:
        attributes["clip-path"] = f"url(#{ids[attributes['clip-path'][5:-1]]})"
    for key in ("d", "x", "y", "width", "height", "transform"):
        if key in attributes:
            attributes[key] = _round(attributes[key])
    if "style" in attributes:
        attributes["style"] = _theme(attributes["style"])
    if element.tag not in (f"{SVG}text", f"{SVG}tspan"):
        element.text = None
    element.tail = None


def _round(numbers: str) -> str:
    shorter = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), numbers)
    return " ".join(shorter.split()).replace(" L ", "L").replace(" C ", "C")


def _theme(style: str) -> str:
    style = re.sub(r"font-family: [^;]*;? ?", "", style)
    return re.sub(
        "#[0-9a-f]{6}", lambda found: f"var(--{THEMED[found[0]]})" if found[0] in THEMED else found[0], style
    )


def _flatten(parent: ElementTree.Element) -> None:
    """Drop metadata, the global style, white panels, and groups without attributes around their children."""
    children: list[ElementTree.Element] = []
    for child in parent:
        _flatten(child)
        if child.tag in (f"{SVG}metadata", f"{SVG}style") or child.get("style") == WHITE:
            continue
        children += list(child) if child.tag == f"{SVG}g" and not child.attrib else [child]
    parent[:] = [child for child in children if child.tag != f"{SVG}defs" or len(child)]
