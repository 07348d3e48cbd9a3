r"""Convert formulas to MathML, which browsers render without a script.

`\tag{7}` at the end of a display formula numbers it and makes it the target of links to `#eq-7`.
"""

from __future__ import annotations

import re
from functools import cache
from html import unescape

from math_core import LatexToMathML

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', flags=re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', flags=re.DOTALL)
TAG = re.compile(r"\\tag\{(\w+)\}")
# `eq. (7)` and `eqs. (3)-(5)` in text, not in a link of its own.
CITATION = re.compile(r"\b(eqs?\. )\((\w{1,3})\)(?!</a>)", flags=re.IGNORECASE)


@cache
def _converter() -> LatexToMathML:
    return LatexToMathML(macros={"norm": r"\lVert #1\rVert", "tr": r"\operatorname{tr}"})


def convert_formulas(html: str) -> str:
    """Replace the formulas that Arithmatex marked by MathML."""
    html = INLINE.sub(lambda match: _convert(match[1], is_display=False), html)
    return DISPLAY.sub(lambda match: _numbered(match[1]), html)


def link_citations(html: str, theory: str) -> str:
    """Link `eq. (7)` to the equation on the theory page, given the page's relative address."""
    return CITATION.sub(rf'\1<a href="{theory}#eq-\2">(\2)</a>', html)


def _numbered(latex: str) -> str:
    tag = TAG.search(latex)
    formula = _convert(TAG.sub("", latex), is_display=True)
    if tag is None:
        return f'<div class="equation">{formula}</div>'
    number = tag[1]
    link = f'<a class="number" href="#eq-{number}">({number})</a>'
    return f'<div class="equation" id="eq-{number}">{formula}{link}</div>'


def _convert(latex: str, *, is_display: bool) -> str:
    return _converter().convert_with_local_state(unescape(latex).strip(), displaystyle=is_display)
