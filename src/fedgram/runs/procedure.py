"""How a client trains and what it returns: procedures, and the words that compose them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fedgram._util.errors import InputError
from fedgram._util.text import suggest

BIAS_RULES = ("shared", "private", "offset")
Bias = Literal["shared", "private", "offset"]
Returned = Literal["trained", "aligned", "solved"]


@dataclass(frozen=True)
class Procedure:
    """One way to train a federation.

    proximal: ρ of the term ρ/2 ‖W - W_t‖², 0 for none.
    corrected: γ of the moment correction γ C_m, 0 for none.
    returned: the head as trained; aligned to the broadcast; or solved for on the frozen backbone.
    bias: what a client predicts and goes on with after averaging: the shared bias; its own; or the shared
    one with its features re-centered and moved by Wᵀ A⁻¹ (μ_m - μ_g).
    centered: every client's targets less their mean. full_model: backbones are averaged as well as heads.
    independent: every client draws its own initial backbone. centralized: one model on the pooled data.
    """

    proximal: float = 0.0
    corrected: float = 0.0
    returned: Returned = "trained"
    bias: Bias = "shared"
    centered: bool = False
    full_model: bool = False
    independent: bool = False
    centralized: bool = False

    def __post_init__(self) -> None:
        for field, known in (("returned", get_args(Returned)), ("bias", BIAS_RULES)):
            if getattr(self, field) not in known:
                raise InputError(
                    f"'{field}' is one of {', '.join(known)}, not '{getattr(self, field)}'.", field=field
                )
        if not 0.0 <= self.proximal < float("inf"):
            raise InputError(
                f"The proximal weight must be at least 0, not {self.proximal:g}.", field="proximal"
            )
        if not 0.0 <= self.corrected <= 1.0:
            raise InputError(
                f"The strength of the correction must lie between 0 and 1, not {self.corrected:g}.",
                field="corrected",
            )
        if self.centralized and any(getattr(self, name) != value for name, value in _PLAIN.items()):
            raise InputError(
                "'centralized' trains one model on the pooled data and combines with no other word.",
                field="procedure",
            )
        if self.full_model and self.independent:
            raise InputError(
                "'full-model' averages backbones, which needs clients to start from a common one: "
                "leave out 'independent'.",
                field="procedure",
            )
        if self.full_model and (self.returned != "trained" or self.bias == "offset"):
            raise InputError(
                "'full-model' averages feature layers too, so clients cannot each transform their own: "
                "leave out 'aligned', 'solved' and 'offset'.",
                field="procedure",
            )

    @classmethod
    def parse(cls, text: str) -> Procedure:
        """A procedure from words joined by '+': 'proximal', 'proximal=1e-2+corrected', 'solved+offset'."""
        settings: dict[str, Any] = {}
        said: dict[str, str] = {}
        for word in text.split("+"):
            name, given, number = word.strip().partition("=")
            field, value = _meaning(name, number if given else None)
            if field in said:
                raise _contradiction(text, said[field], name)
            if field:
                settings[field], said[field] = value, name
        return cls(**settings)

    @property
    def name(self) -> str:
        """The words for it; `parse` reads them back."""
        words = []
        if self.proximal:
            words.append("proximal" if self.proximal == PROXIMAL else f"proximal={_number(self.proximal)}")
        if self.returned != "trained":
            words.append(self.returned)
        if self.corrected:
            words.append("corrected" if self.corrected == 1.0 else f"corrected={_number(self.corrected)}")
        if self.bias != "shared":
            words.append(self.bias)
        flags = ("centered", "full_model", "independent", "centralized")
        words += [flag.replace("_", "-") for flag in flags if getattr(self, flag)]
        return "+".join(words) or "ordinary"


_PLAIN = {each.name: each.default for each in fields(Procedure) if each.name != "centralized"}

PROXIMAL = 1e-3
"""ρ of the paper's experiments, and of the plain word 'proximal'."""

WORDS: dict[str, tuple[str, Any]] = {
    "ordinary": ("", None),
    "proximal": ("proximal", PROXIMAL),
    "corrected": ("corrected", 1.0),
    "aligned": ("returned", "aligned"),
    "solved": ("returned", "solved"),
    "shared": ("bias", "shared"),
    "private": ("bias", "private"),
    "offset": ("bias", "offset"),
    "centered": ("centered", True),
    "full-model": ("full_model", True),
    "independent": ("independent", True),
    "centralized": ("centralized", True),
}
"""Word -> the field that it sets, and to what."""


def _number(value: float) -> str:
    """A number with all its digits, and no '+', which joins words."""
    return f"{value:g}".replace("e+", "e") if float(f"{value:g}") == value else repr(value).replace("e+", "e")


def _contradiction(text: str, first: str, second: str) -> InputError:
    both = (
        f"'{first}' twice" if first == second else f"both '{first}' and '{second}', which exclude each other"
    )
    return InputError(f"The procedure '{text}' says {both}; leave one out.", field="procedure")


def _meaning(word: str, number: str | None) -> tuple[str, Any]:
    if word not in WORDS:
        raise InputError(
            f"There is no procedure '{word}'{suggest(word, WORDS)} Words are {', '.join(WORDS)}.",
            field="procedure",
        )
    field, value = WORDS[word]
    if number is None:
        return field, value
    if not isinstance(value, float):
        raise InputError(f"'{word}' takes no number.", field="procedure")
    try:
        return field, float(number)
    except ValueError:
        raise InputError(f"'{word}' needs a number, not '{number}'.", field="procedure") from None
