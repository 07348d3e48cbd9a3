"""Procedures: how clients train and return layers, as words joined by '+'."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fedgram._util.errors import InputError, check_type
from fedgram._util.text import suggest

Bias = Literal["shared", "private", "offset"]
BIAS_RULES: tuple[str, ...] = get_args(Bias)
Return = Literal["trained", "aligned", "solved"]


@dataclass(frozen=True)
class Procedure:
    """One way to train a federation.

    Parameters
    ----------
    proximal : float
        ρ of the term ρ/2 ‖W - W_t‖²; 0 for none.
    corrected : float
        γ of the moment correction γ C_m, between 0 and 1; 0 for none.
    returned : {'trained', 'aligned', 'solved'}
        Return the head as trained, rotated to the broadcast, or solved on the frozen backbone.
    bias : {'shared', 'private', 'offset'}
        Bias after averaging: the shared one, the client's own, or the shared one with features that are
        centered and moved by Wᵀ A⁻¹ (μ_m - μ_g).
    centered : bool
        Subtract each client's mean from its targets.
    full_model : bool
        Average backbones as well as heads.
    independent : bool
        Every client draws its own initial backbone.
    centralized : bool
        Train one model on the pooled data.
    local : bool
        Every client trains alone; nothing is exchanged. With validation rows, its head is solved by ridge
        regression on its own features.
    moment_head : int
        After full-model training, solve the ridge head of the pooled rows from sums of features. A number k
        above 1 also does so every k rounds, and training goes on from that head; 0 for none.
    site_effects : bool
        Add an intercept and a deviation of the moment head per client, both shrunk.
    blended : bool
        Predict with a mixture of this model and the one that the client trains alone, with a solved head;
        ridge and shares are chosen on validation rows.

    Raises
    ------
    InputError
        If a value is unknown or out of range, or if options exclude each other.

    Examples
    --------
    >>> from fedgram import Procedure
    >>> Procedure.parse("corrected+proximal=0.01").name
    'proximal=0.01+corrected'
    """

    proximal: float = 0.0
    corrected: float = 0.0
    returned: Return = "trained"
    bias: Bias = "shared"
    centered: bool = False
    full_model: bool = False
    independent: bool = False
    centralized: bool = False
    local: bool = False
    moment_head: int = 0
    site_effects: bool = False
    blended: bool = False

    def __post_init__(self) -> None:
        for field, known in (("returned", get_args(Return)), ("bias", BIAS_RULES)):
            if (value := getattr(self, field)) not in known:
                raise InputError(f"Unknown {field} '{value}'. Choose from {', '.join(known)}.", field=field)
        if not 0.0 <= self.proximal < float("inf"):
            raise InputError(f"proximal must be at least 0, not {self.proximal:g}.", field="proximal")
        if not 0.0 <= self.corrected <= 1.0:
            raise InputError(f"corrected must be between 0 and 1, not {self.corrected:g}.", field="corrected")
        object.__setattr__(self, "moment_head", self._count_rounds(self.moment_head))
        self._refuse_companions("centralized", "trains one model on the pooled data")
        self._refuse_companions("local", "exchanges nothing")
        for name, needed in (("moment_head", "full_model"), ("site_effects", "moment_head")):
            if getattr(self, name) and not getattr(self, needed):
                word, missing = name.replace("_", "-"), needed.replace("_", "-")
                raise InputError(f"'{word}' needs '{missing}'. Add it.", field="procedure")
        if self.moment_head and (self.centered or self.bias != "shared"):
            raise InputError(
                "'moment-head' solves for its own bias. Remove 'private' and 'centered'.", field="procedure"
            )
        if self.full_model and self.independent:
            raise InputError(
                "'full-model' averages backbones, so clients need a common start. Remove 'independent'.",
                field="procedure",
            )
        if self.full_model and (self.returned != "trained" or self.bias == "offset"):
            raise InputError(
                "'full-model' averages feature layers, so clients cannot transform their own. Remove "
                "'aligned', 'solved' and 'offset'.",
                field="procedure",
            )

    def _refuse_companions(self, name: str, meaning: str) -> None:
        others = (each for each in fields(self) if each.name != name)
        if getattr(self, name) and any(getattr(self, each.name) != each.default for each in others):
            raise InputError(f"'{name}' {meaning}. Remove all other words.", field="procedure")

    @staticmethod
    def _count_rounds(value: float) -> int:
        if not (value >= 0 and float(value).is_integer()):
            raise InputError(
                f"moment_head must be a number of rounds of at least 0, not {value:g}.", field="moment_head"
            )
        return int(value)

    @classmethod
    def parse(cls, text: str) -> Procedure:
        """Parse words joined by '+': 'proximal', 'proximal=1e-2+corrected', 'solved+offset'."""
        check_type(text, str, "Procedure.parse()", "Pass words such as 'proximal=0.01+corrected'")
        values: dict[str, Any] = {}
        words: dict[str, str] = {}
        for part in text.split("+"):
            word, equals, number = part.strip().partition("=")
            field, value = _parse_word(word, number if equals else None)
            if field in words:
                first = words[field]
                conflict = f"'{first}' twice" if first == word else f"both '{first}' and '{word}'"
                raise InputError(f"The procedure '{text}' has {conflict}. Remove one.", field="procedure")
            if field:
                values[field], words[field] = value, word
        return cls(**values)

    @property
    def without_limit(self) -> str:
        """Why the averaged head has no predicted limit, as a phrase; empty if it has one."""
        if self.local:
            return "nothing is averaged"
        return "its moment head replaces the averaged head" if self.moment_head else ""

    @property
    def needs_validation(self) -> bool:
        """Whether strengths or shares are chosen on validation rows."""
        return bool(self.moment_head) or self.blended

    @property
    def trains_alone(self) -> bool:
        """Whether every client trains a network without the others, alone or next to the shared one."""
        return self.local or self.blended

    @property
    def has_shared_network(self) -> bool:
        """Whether a run has a network for clients that did not take part."""
        # With centered targets, predictions lack a mean that only clients have.
        return self.centralized or (self.full_model and self.bias == "shared" and not self.centered)

    @property
    def name(self) -> str:
        """Canonical words, which `parse` reads back."""
        words = []
        if self.proximal:
            words.append("proximal" if self.proximal == PROXIMAL else f"proximal={_number(self.proximal)}")
        if self.returned != "trained":
            words.append(self.returned)
        if self.corrected:
            words.append("corrected" if self.corrected == 1.0 else f"corrected={_number(self.corrected)}")
        if self.bias != "shared":
            words.append(self.bias)
        flags = ("centered", "full_model", "independent", "centralized", "local")
        words += [flag.replace("_", "-") for flag in flags if getattr(self, flag)]
        if self.moment_head:
            words.append("moment-head" if self.moment_head == 1 else f"moment-head={self.moment_head}")
        words += [flag.replace("_", "-") for flag in ("site_effects", "blended") if getattr(self, flag)]
        return "+".join(words) or "ordinary"


PROXIMAL = 1e-3
"""ρ of the paper's experiments, and of the word 'proximal'."""

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
    "local": ("local", True),
    "moment-head": ("moment_head", 1.0),
    "site-effects": ("site_effects", True),
    "blended": ("blended", True),
}
"""Map a word to the field that it sets, and to its value."""


def _number(value: float) -> str:
    """Format with all digits and without '+', which joins words."""
    return f"{value:g}".replace("e+", "e") if float(f"{value:g}") == value else repr(value).replace("e+", "e")


def _parse_word(word: str, number: str | None) -> tuple[str, Any]:
    """Return the field that a word sets, and the value."""
    if word not in WORDS:
        raise InputError(
            f"Unknown procedure '{word}'{suggest(word, WORDS)} Choose from {', '.join(WORDS)}.",
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
