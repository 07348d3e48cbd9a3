"""Procedures as words, settings, and what both refuse."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgram import InputError, Penalty
from fedgram.runs.procedure import BIAS_RULES, PROXIMAL, WORDS, Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import PRECISIONS, TrainConfig

NEEDED = {"moment-head": ["full-model"], "site-effects": ["full-model", "moment-head"]}
"""Words that another word needs."""


@pytest.mark.parametrize("word", WORDS)
def test_each_word_sets_its_field(word):
    words = [*NEEDED.get(word, []), word]
    values = dict(WORDS[each] for each in words)
    procedure = Procedure.parse("+".join(words))
    assert procedure == (Procedure(**values) if "" not in values else Procedure())
    assert procedure.name == ("ordinary" if word == "shared" else "+".join(words))
    assert Procedure.parse(f"  {' + '.join(words)} ") == procedure


def test_words_reach_every_field_and_every_bias_rule():
    assert {field for field, _ in WORDS.values()} - {""} == {each.name for each in fields(Procedure)}
    assert [value for field, value in WORDS.values() if field == "bias"] == list(BIAS_RULES)


@st.composite
def allowed(draw):
    """Any procedure that is not refused, with numbers of the kind that people write."""
    if draw(st.booleans()):
        full = draw(st.booleans())
        if full and draw(st.booleans()):
            return Procedure(
                proximal=draw(st.sampled_from([0.0, 0.25])),
                full_model=True,
                moment_head=draw(st.integers(1, 9)),
                site_effects=draw(st.booleans()),
                blended=draw(st.booleans()),
            )
        return Procedure(
            proximal=draw(st.sampled_from([0.0, 1e-4, PROXIMAL, 0.25, 12.0])),
            corrected=draw(st.sampled_from([0.0, 0.125, 0.9, 1.0])),
            returned="trained" if full else draw(st.sampled_from(["trained", "aligned", "solved"])),
            bias=draw(st.sampled_from(["shared", "private"] if full else BIAS_RULES)),
            centered=draw(st.booleans()),
            full_model=full,
            independent=not full and draw(st.booleans()),
        )
    return Procedure(**{draw(st.sampled_from(["centralized", "local"])): draw(st.booleans())})


@given(allowed())
def test_names_read_back(procedure):
    assert Procedure.parse(procedure.name) == procedure
    assert Procedure.parse("+".join(reversed(procedure.name.split("+")))) == procedure
    assert Run(procedure, 7).name == f"{procedure.name}/seed-7"


@given(st.floats(0.0, 1e300), st.floats(0.0, 1.0))
@example(0.1234567, 1.0)
@example(1e6, 0.5)
@example(2.0**60, 1 / 3)
def test_names_read_back_whatever_the_numbers(proximal, corrected):
    procedure = Procedure(proximal=proximal, corrected=corrected)
    assert Procedure.parse(procedure.name) == procedure


def test_numbers_in_words():
    assert Procedure.parse("proximal=1e-2+corrected=0.5") == Procedure(proximal=0.01, corrected=0.5)
    assert Procedure.parse("solved + corrected + offset").name == "solved+corrected+offset"
    assert Procedure.parse("ordinary+private") == Procedure(bias="private")


REFUSED = {
    "aligne": r"Unknown procedure 'aligne'; did you mean 'aligned'\? Choose from ordinary, proximal, ",
    "": r"Unknown procedure ''\. Choose from ordinary, proximal, ",
    "foo": r"Unknown procedure 'foo'\. Choose from ordinary, proximal, ",
    "proximal+proximal=2": r"The procedure 'proximal\+proximal=2' has 'proximal' twice\. Remove one\.$",
    "private+offset": r"The procedure 'private\+offset' has both 'private' and 'offset'\. Remove one\.$",
    "aligned+solved": r"The procedure 'aligned\+solved' has both 'aligned' and 'solved'\. Remove one\.$",
    "aligned=2": "'aligned' takes no number.",
    "ordinary=1": "'ordinary' takes no number.",
    "centered=1": "'centered' takes no number.",
    "proximal=": "'proximal' needs a number, not ''.",
    "aligned=": "'aligned' takes no number.",
    "proximal=much": "'proximal' needs a number, not 'much'.",
    "proximal=-1": "proximal must be at least 0, not -1.",
    "proximal=inf": "proximal must be at least 0, not inf.",
    "proximal=nan": "proximal must be at least 0, not nan.",
    "corrected=1.5": "corrected must be between 0 and 1, not 1.5.",
    "corrected=-0.1": "corrected must be between 0 and 1, not -0.1.",
    "full-model+independent": "'full-model' averages backbones, so clients need a common start. Remove "
    "'independent'.",
    **{
        f"full-model+{word}": "'full-model' averages feature layers, so clients cannot transform their own. "
        "Remove 'aligned', 'solved' and 'offset'."
        for word in ("aligned", "solved", "offset")
    },
    "local+proximal": "'local' exchanges nothing. Remove all other words.",
    "moment-head": "'moment-head' needs 'full-model'. Add it.",
    "full-model+site-effects": "'site-effects' needs 'moment-head'. Add it.",
    "full-model+moment-head+private": "'moment-head' solves for its own bias. Remove 'private' and "
    "'centered'.",
    "full-model+moment-head=1.5": "moment_head must be a number of rounds of at least 0, not 1.5.",
    "full-model+moment-head=-2": "moment_head must be a number of rounds of at least 0, not -2.",
    **{
        f"centralized+{word}": "'centralized' trains one model on the pooled data. Remove all other words."
        for word in WORDS
        if word not in ("ordinary", "shared", "centralized")
    },
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_procedures_say_why(text):
    with pytest.raises(InputError, match="^" + REFUSED[text]) as refused:
        Procedure.parse(text)
    assert refused.value.field in ("procedure", "proximal", "corrected", "moment_head")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"returned": "solve"}, "Unknown returned 'solve'. Choose from trained, aligned, solved."),
        ({"bias": "Offset"}, "Unknown bias 'Offset'. Choose from shared, private, offset."),
    ],
)
def test_fields_take_known_words_only(given, words):
    with pytest.raises(InputError, match=words) as refused:
        Procedure(**given)
    assert refused.value.field in given


NUMBERS = [each.name for each in fields(TrainConfig) if each.name not in ("penalty", "precision", "decay")]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_settings_must_be_positive(name, value):
    with pytest.raises(InputError, match=rf"^{name} must be positive, not {value:g}\.$") as refused:
        replace(TrainConfig(), **{name: value})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", "3"), ("epochs", 2.5), ("batch", 64.0), ("features", None)]
)
def test_counts_are_whole_numbers(name, value):
    with pytest.raises(InputError, match=f"{name} must be an integer, not"):
        TrainConfig(**{name: value})
    assert type(getattr(TrainConfig(**{name: np.int32(7)}), name)) is int
    with pytest.raises(InputError, match=f"{name} must be positive, not -7"):
        TrainConfig(**{name: np.int64(-7)})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", "1e-3", "learning_rate= expects Real, got str. Pass a positive number."),
        (
            "penalty",
            0.1,
            "penalty= expects Penalty, got float. Build it with Penalty(features=0.01, head=0.01).",
        ),
    ],
)
def test_settings_of_another_type_are_named(name, value, words):
    with pytest.raises(InputError) as refused:
        TrainConfig(**{name: value})
    assert refused.value.message == words


@pytest.mark.parametrize("given", [3, None, ["local"]])
def test_a_procedure_is_parsed_from_text(given):
    with pytest.raises(InputError) as refused:
        Procedure.parse(given)
    kind = type(given).__name__
    assert refused.value.message == (
        f"Procedure.parse() expects str, got {kind}. Pass words such as 'proximal=0.01+corrected'."
    )


def test_precisions_are_named():
    said = r"^Unknown precision 'fp8'\. Choose from tf32, fp32, fp16, bf16, fp64\.$"
    with pytest.raises(InputError, match=said) as refused:
        TrainConfig(precision="fp8")
    assert refused.value.field == "precision"
    assert [TrainConfig(precision=each).precision for each in PRECISIONS] == list(PRECISIONS)


def test_the_defaults_are_the_papers():
    assert TrainConfig() == TrainConfig(
        rounds=8, epochs=4000, batch=256, features=512, penalty=Penalty(0.01, 0.01),
        learning_rate=1e-3, final_learning_rate=1e-5, clip=5.0, precision="tf32",
    )  # fmt: skip
    assert PROXIMAL == 1e-3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full-model", True),
        ("full-model+moment-head+site-effects+blended", True),
        ("centralized", True),
        ("full-model+private", False),
        ("full-model+centered", False),  # the mean of an unknown client is not known
        ("ordinary", False),
        ("local", False),
    ],
)
def test_which_runs_have_a_network_for_unknown_clients(text, expected):
    assert Procedure.parse(text).has_shared_network is expected
