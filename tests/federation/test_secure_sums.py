"""Secure sums: totals are exact, and a masked message alone is noise."""

from fractions import Fraction
from secrets import token_bytes

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedgram import InputError
from fedgram.federation import secure_sums
from fedgram.federation.secure_sums import Participant, decode, default_threshold, encode, open_sum, to_bytes

SESSION, SUMS = "test", 2


class Exchange:
    """All sites of a session in one process."""

    def __init__(self, sites: int, threshold: int | None = None):
        self.names = [f"site {m}" for m in range(sites)]
        self.threshold = threshold or default_threshold(sites)
        self.sites = {name: Participant(name, SESSION, token_bytes(32)) for name in self.names}
        self.keys = {name: site.public_keys(SUMS) for name, site in self.sites.items()}
        self.sealed = {
            name: site.share_secrets(self.keys, self.threshold) for name, site in self.sites.items()
        }

    def mask(self, values, number=1, among=None):
        """Mask what the given sites have; the others of `among` drop out."""
        among = among or self.names
        return {name: self.sites[name].mask(number, each, self.keys, among) for name, each in values.items()}

    def reveal(self, name, sent, dropped, number=1):
        sealed = {other: self.sealed[other][name] for other in self.names}
        return self.sites[name].reveal(number, sent, dropped, self.keys, sealed)

    def open(self, masked, replying, number=1, among=None):
        dropped = [name for name in among or self.names if name not in masked]
        shares = {name: self.reveal(name, masked, dropped, number) for name in replying}
        return open_sum(SESSION, number, self.keys, masked, dropped, shares, self.threshold)


def draw_values(names, size=5, scale=1.0):
    rng = np.random.default_rng(0)
    return {name: (scale * rng.standard_normal(size)).tolist() for name in names}


def exact_total(values):
    return [sum(map(Fraction, each)) for each in zip(*values.values(), strict=True)]


@settings(max_examples=30)
@given(st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=4))
def test_fixed_point_keeps_numbers_to_64_binary_digits(values):
    errors = [
        abs(found - Fraction(value)) for found, value in zip(decode(encode(values)), values, strict=True)
    ]
    assert max(errors) <= Fraction(1, 2**65)


@pytest.mark.parametrize("value", [np.nan, np.inf, -(2.0**53)])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(InputError, match="largest in a secure sum"):
        encode([value])


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 6), st.floats(1e-9, 1e9))
def test_the_total_is_exact(sites, scale):
    exchange = Exchange(sites)
    values = draw_values(exchange.names, scale=scale)
    found = exchange.open(exchange.mask(values), exchange.names)
    errors = [abs(a - b) for a, b in zip(found, exact_total(values), strict=True)]
    assert max(errors) <= Fraction(sites, 2**65)


def test_sites_that_drop_out_before_and_after_they_send_leave_the_total_of_those_that_sent():
    exchange = Exchange(5)  # three shares open a sum
    values = draw_values(exchange.names)
    sent = {name: values[name] for name in exchange.names[1:]}  # site 0 sends nothing
    found = exchange.open(exchange.mask(sent), exchange.names[2:])  # site 1 reveals nothing
    np.testing.assert_allclose(np.array(found, float), np.array(exact_total(sent), float), atol=1e-15)


def test_the_session_goes_on_with_the_sites_that_are_left():
    exchange = Exchange(4)
    rest = exchange.names[1:]
    values = draw_values(rest)
    found = exchange.open(exchange.mask(values, 2, rest), rest, 2, rest)
    np.testing.assert_allclose(np.array(found, float), np.array(exact_total(values), float), atol=1e-15)


def test_too_few_shares_open_nothing():
    exchange = Exchange(5)
    masked = exchange.mask(draw_values(exchange.names))
    with pytest.raises(InputError, match="Only 2 sites stayed"):
        exchange.open(masked, exchange.names[:2])
    exchange.threshold = 2  # a server that tries with fewer shares than needed restores other secrets
    found = exchange.open(masked, exchange.names[:2])
    assert np.abs(np.array(found, float)).min() > 1e3


def test_a_masked_message_is_uniform_and_tells_no_input_from_another():
    """Bytes of messages with fresh keys: chi-square against uniform, and against those of another input."""
    counts = []
    for value in (0.0, 1e9):
        exchange = Exchange(2)
        masked = exchange.mask({name: [value] * 2000 for name in exchange.names})
        data = np.frombuffer(to_bytes(masked["site 0"]), np.uint8)
        counts.append(np.bincount(data, minlength=256))
    assert all(stats.chisquare(each).pvalue > 1e-7 for each in counts)
    assert stats.chi2_contingency(np.array(counts)).pvalue > 1e-7


def strip_pair_masks(exchange, late):
    """What the server makes of a late message of 'site 2' with the shares of a sum without it."""
    positions = {name: index for index, name in enumerate(exchange.names, start=1)}
    sent = exchange.names[:2]
    shares = [(positions[name], exchange.reveal(name, sent, ["site 2"])["site 2"]) for name in sent]
    seed = Shamir.combine(shares, ssss=False)
    for other in sent:
        stream = secure_sums._pair_stream(seed, exchange.keys[other][1], SESSION, 1, len(late))
        late = late - secure_sums._sign("site 2", other) * stream
    return late


def test_a_late_message_of_a_dropped_site_stays_masked():
    """The server restores the key of a dropped site, so only the site's own mask hides what comes late."""
    exchange = Exchange(3)
    values = draw_values(exchange.names)
    late = strip_pair_masks(exchange, exchange.mask(values)["site 2"])
    guess = decode(late % secure_sums.MODULUS)
    assert np.abs(np.array(guess, float) - values["site 2"]).min() > 1e3


def test_the_attack_on_late_messages_works_without_own_masks(monkeypatch):
    monkeypatch.setattr(secure_sums, "_self_key", lambda seed: bytes(32))
    exchange = Exchange(3)
    values = draw_values(exchange.names)
    late = strip_pair_masks(exchange, exchange.mask(values)["site 2"])
    guess = decode((late - secure_sums._expand(bytes(32), len(late))) % secure_sums.MODULUS)
    np.testing.assert_allclose(np.array(guess, float), values["site 2"], atol=1e-15)


def test_the_total_without_one_pair_mask_is_noise():
    exchange = Exchange(3)
    values = draw_values(exchange.names)
    masked = exchange.mask(values)
    masked["site 0"] = exchange.mask({"site 0": values["site 0"]}, among=exchange.names[:2])["site 0"]
    found = exchange.open(masked, exchange.names)
    assert np.abs(np.array(found, float)).min() > 1e3


def test_a_site_never_reveals_seed_and_key_of_one_site():
    exchange = Exchange(3)
    sealed = {name: exchange.sealed[name]["site 0"] for name in exchange.names}
    site = exchange.sites["site 0"]
    shares = site.reveal(1, exchange.names[:2], exchange.names[2:], exchange.keys, sealed)
    assert {name: len(share) for name, share in shares.items()} == dict.fromkeys(exchange.names, 16)


def test_shares_are_encrypted_for_their_receiver_and_authenticated():
    exchange = Exchange(3)
    sealed = {name: exchange.sealed[name]["site 1"] for name in exchange.names}  # those of another site
    with pytest.raises(InputError, match=r"changed on the way\. Start a new run"):
        exchange.sites["site 0"].reveal(1, exchange.names, [], exchange.keys, sealed)


def test_other_sums_have_other_masks():
    exchange = Exchange(2)
    values = draw_values(exchange.names)
    first, second = exchange.mask(values, 1), exchange.mask(values, 2)
    assert not set(first["site 0"]) & set(second["site 0"])
