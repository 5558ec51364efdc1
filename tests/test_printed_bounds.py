"""What is printed of a bound is a bound too: lower bounds are rounded down, upper bounds up.

Every sentence that prints a bound is made here with values that rounding to the nearest raises (or,
for upper bounds, lowers). A second test reads the source: `display.py` alone formats bounds.
"""

import ast
import random
import re
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import ithbit
from ithbit.capacity_search.card import Fit
from ithbit.display import lower_percent, lower_text, share_text, upper_text
from ithbit.explorer.words import certified
from ithbit.reporting.comparison.agreement import AGREES, Comparison, _line
from ithbit.store.records import SECOND, Case, Proof, Verification
from ithbit.theory.certificate import Certificate, certify
from ithbit.theory.certificate_file import CertificateError
from ithbit.theory.certifiers.every_n import (
    every_n,
    linear_deviation,
    parabola_deviation,
    softmax_deviation,
    trained_every_n,
)
from ithbit.theory.constructions import CONSTRUCTIONS, TRAINED, construct
from ithbit.theory.summary_table import SummaryEntry
from ithbit.theory.verdicts import verdict
from ithbit.verification.proofs.branch_and_bound import SearchResult
from ithbit.verification.proofs.certificate import Confirmed
from ithbit.verification.proofs.interface import Leaves, NodeBounds
from ithbit.verification.proofs.leaf_checks import need_bounds

SOURCE = Path(ithbit.__file__).parent
NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?)"
# Each is above what it is rounded to at four to nine digits, or to full ones.
VALUES = [1.9977789, 1.9999787, 0.00540309, 0.99999999, 0.1234567891, 7.99999999999, 12345.67891]
MORE = [*VALUES, 1e-7 / 3, 2e9 / 3, 5e-324, 1.7e308]


def printed(pattern: str, text: str) -> Fraction:
    """The number that stands where the pattern has {}."""
    before, after = pattern.split("{}")
    found = re.search(re.escape(before) + NUMBER + re.escape(after), text)
    assert found, (pattern, text)
    return Fraction(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(construct("lhi", "rnn", 3))


def random_floats(count: int) -> list[float]:
    draw = random.Random(0)
    found = (struct.unpack("d", draw.randbytes(8))[0] for _ in range(count))
    return [x for x in found if x - x == 0]


@pytest.mark.parametrize("digits", [1, 2, 4, 6, 9, 17])
def test_texts_enclose_the_number_within_a_unit_of_the_last_digit(digits):
    for x in [*MORE, *(-x for x in MORE), 0.0, -0.0, 1.0, 4100.0, *random_floats(2000)]:
        low, high = Fraction(lower_text(x, digits)), Fraction(upper_text(x, digits))
        assert low <= Fraction(x) <= high
        assert high - low <= abs(Fraction(x)) / 10 ** (digits - 1)
        assert lower_text(-x, digits).replace("-", "") == upper_text(x, digits).replace("-", "")


def test_texts_enclose_the_number_with_fixed_places():
    for x in [*VALUES, *(-x for x in VALUES), 0.4, 2e9 / 3]:
        low, high = lower_text(x, places=3), upper_text(x, places=3)
        assert Fraction(low) <= Fraction(x) <= Fraction(high)
        assert Fraction(high) - Fraction(low) <= Fraction(1, 1000)
        assert re.fullmatch(r"-?\d+\.\d{3}", low)


def test_texts_of_other_numbers():
    assert lower_text(Fraction(1, 3), 3) == "0.333"
    assert upper_text(Fraction(1, 3), 3) == "0.334"
    assert lower_text(np.float32(0.3)) == "0.3"  # which is above 0.3
    assert upper_text(np.float32(0.3)) == "0.300001"
    assert lower_text(10**400, 3) == "1e+400"
    for nothing in (None, float("nan"), float("inf"), float("-inf")):
        assert lower_text(nothing) == upper_text(nothing) == "none"
        assert lower_text(nothing, places=2) == "none"
    assert lower_percent(float("nan")) == "none"


@pytest.mark.parametrize("value", MORE)
def test_margins_of_proofs_are_rounded_down(value):
    proof = Proof("proved", least_margin=value, least_float32=value / 2)
    sentence = proof.sentence()
    assert printed("margin at least {} in real", sentence) <= value
    assert printed("as run in float32 {}", sentence) <= value / 2
    confirmed = Confirmed("a run", 8, value, 2, SECOND).sentence()
    assert printed("margin at least {}, in real", confirmed) <= value
    found = SearchResult(None, value, 2 * value, "01", 1, 0.5, 10, 1.0)
    assert printed("least bound {}, 10 nodes", found.sentence()) <= value


def test_a_margin_that_is_not_proved_is_not_printed():
    for nothing in (0.0, -1.0, float("nan"), float("-inf")):
        search = SearchResult(None, nothing, 1.0, "01", 1, 0.5, 10, 1.0)
        assert "least bound none" in search.sentence()


@pytest.mark.parametrize("share", [0.99999999, 0.999949, 1 - 2**-53, 0.123456, 0.0])
def test_shares_that_are_proved_are_rounded_down(share):
    said = Proof("open", share_closed=share).sentence()
    assert printed("bounds above 0 on {}% of all", said) <= 100 * Fraction(share)
    assert "100.00%" not in said
    found = SearchResult(None, 0.0, 1.0, "01", 1, share, 10, 1.0).sentence()
    assert printed("{}% closed", found) <= 100 * Fraction(share)


def test_a_verification_prints_its_proof_rounded_down():
    proof = Proof("proved", least_margin=1.9999787)
    found = Verification(
        "proved on all inputs", False, 8, 2048, 10, 0, 0, {}, Case("0" * 8, 1, 3.0), None, 1.0,
        proof=proof,
    )  # fmt: skip
    assert "margin at least 1.99997 in" in found.sentence()


@pytest.mark.parametrize("value", MORE)
def test_margins_of_certificates_are_rounded_down(certificate, value):
    changed = replace(certificate, margin=value)
    assert printed("margin >= {} on all 3·2^3", changed.claim) <= value
    assert printed("margin >= {} on all 3·2^3", str(changed)) <= value
    assert printed("Margin at least {} on every", certified(changed).record) <= value
    entry = SummaryEntry("lhi", "rnn", 1, "Theorem 14a", 2, changed)
    assert printed("margin ≥ {} (Theorem", entry.why) <= value
    said = ithbit.verdict("lhi", "rnn", layers=1, n=3)
    assert printed("margin at least {} on all", str(replace(said, certificate=changed))) <= value


@pytest.mark.parametrize("nothing", [float("nan"), float("-inf")])
def test_a_certificate_without_a_bound_prints_none(certificate, nothing):
    changed = replace(certificate, margin=nothing)
    assert not changed.certified
    assert changed.claim.startswith("no lower bound on the margin")


@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda e: f"{e.task}-{e.family}")
def test_every_formal_construction_prints_what_is_certified(entry):
    found = certify(construct(entry.task, entry.family, 5))
    assert printed("margin >= {} on all", str(found)) <= found.margin
    said = verdict(entry.task, ithbit.theory.architecture.architecture(entry.family, n_layers=2), 5)
    assert said.certificate is not None
    assert printed("margin at least {} on all", str(said)) <= said.certificate.margin


@pytest.mark.parametrize("entry", TRAINED, ids=lambda e: f"{e.task}-{e.family}")
def test_every_trained_construction_prints_what_holds_for_every_n(entry):
    text = str(certify(ithbit.construct(entry.task, entry.family, n=3, model="trained")))
    always = trained_every_n(entry.task, entry.family).margin
    (line,) = (line for line in text.splitlines() if line.startswith("for every n"))
    assert printed("margin >= {}:", line) <= always
    said = ithbit.verdict(entry.task, entry.family, layers=2, n=2000, model="trained")
    assert Fraction(said.every_n) <= always


def test_errors_of_closed_forms_are_rounded_up():
    for family, bound in (("softmax-full", softmax_deviation()), ("linear", linear_deviation())):
        assert printed("E <= {}", every_n("marker", family).because) >= bound
    parabola = every_n("parabola", "softmax-full")
    assert printed("E <= {}", parabola.because) >= parabola_deviation()
    assert Fraction(parabola.margin) <= 8 * (Fraction(1, 4) - Fraction(parabola_deviation()))


def test_intervals_are_rounded_outward():
    fit = Fit("gru", 0.5, 0.40999, 0.60001, 2.0, 6).sentence()
    assert printed("({} to", fit) <= 0.40999
    assert printed("to {},", fit) >= 0.60001
    line = _line(Comparison("accuracy", "a cell", "1", "1", AGREES, interval=(-0.0201, 0.0003)))
    assert printed("interval {} to", line) <= -0.0201
    assert printed(" to {}", line) >= 0.0003


def test_refusals_print_bounds_rounded_down():
    class Bounds:
        batch, functionals = 8, np.zeros((0, 2))

        def __call__(self, index, bits, limits):
            return NodeBounds(np.array([1.9977789]), np.array([9.0]), bits, bits, np.array([False]))

    leaf = Leaves(np.array([0]), np.zeros((1, 2)), np.zeros((1, 0, 2)), np.array([1.9999787]))
    with pytest.raises(CertificateError) as refused:
        need_bounds(Bounds(), leaf)
    assert printed("margin of at least {},", str(refused.value)) <= 1.9999787
    assert printed("the weights give {}", str(refused.value)) <= 1.9977789


BOUNDS = {"least_margin", "least_float32", "least_proved", "share_closed", "n_star"}
# `margin` is also the name of an observed number: of the worst input found, and of a float run.
OBSERVED = {"self.worst.margin", "worst.margin"}
OBSERVED_IN = {"theory/precision.py"}


def nearest(source: str, of_observed: bool = False) -> list[str]:
    """The bounds that a source formats itself, to the nearest."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        value = None
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = "".join(str(p.value) for p in node.format_spec.values if hasattr(p, "value"))
            value = node.value if re.search(r"[.][^,]*|[gfe%]$", spec) else None
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("round", "format"):
            value = node.args[0] if node.args else None
        for part in ast.walk(value) if value is not None else ():
            name = getattr(part, "attr", getattr(part, "id", ""))
            known = ast.unparse(part) in OBSERVED or of_observed
            if name in BOUNDS or (name == "margin" and not known):
                wrong.append(ast.unparse(value))
    return wrong


def test_bounds_are_formatted_in_one_place():
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        assert nearest(path.read_text(), name in OBSERVED_IN) == [], name


@pytest.mark.parametrize(
    "source",
    [
        'f"{self.margin:.6g}"',
        'f"{proof.least_margin:.2f} and more"',
        'f"{100 * self.share_closed:.{digits}f}"',
        "round(certificate.margin, 3)",
        'f"{found.least_proved:g}"',
    ],
)
def test_a_bound_formatted_elsewhere_is_seen(source):
    assert nearest(source)


def test_exact_and_observed_numbers_are_let_through():
    assert nearest('f"{route.n_star:,} {self.worst.margin:.4g} {self.nodes:,} {seconds:.1f}"') == []


def test_one_wrong_answer_of_two_thousand_is_not_rounded_away():
    assert [share_text(0.9995, 3), share_text(0.99999), share_text(1.0, 3)] == [
        "0.999",
        "0.9999",
        "1.000",
    ]
    rounded = re.compile(r"(accuracy|share|half|double|mean):\.[0-9]f")
    found = [
        line.strip()
        for path in Path(ithbit.__file__).parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if rounded.search(line) and "row.accuracy" not in line  # a published one, as printed there
    ]
    assert found == []
