"""Coverage in integers: what is called covered is covered, against all strings at small n."""

import itertools

import numpy as np
import pytest

from ithbit.theory.certificate_file import CertificateError
from ithbit.verification.proofs import leaf_checks
from ithbit.verification.proofs.bands import STEP
from ithbit.verification.proofs.coverage import Work, hole, in_steps, is_empty, uncovered
from ithbit.verification.proofs.interface import Leaves
from ithbit.verification.proofs.leaf_checks import need_empty


def strings_of(n: int) -> np.ndarray:
    return np.array(list(itertools.product((0, 1), repeat=n)), np.int8)


def held(bits: np.ndarray, limits: np.ndarray, rows: np.ndarray, strings: np.ndarray) -> np.ndarray:
    """Whether each string is in each leaf."""
    at = (2 * strings.astype(np.int64) - 1) @ rows.T
    fits = ((bits < 0) | (bits == strings[:, None])).all(2)
    return fits & ((limits[..., 0] <= at[:, None]) & (at[:, None] <= limits[..., 1])).all(2)


def random_leaves(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Functionals, and leaves with limits of which many are beyond reach, as a forger has them."""
    rows = rng.integers(-3, 4, (int(rng.integers(0, 3)), n))
    reach = np.abs(rows).sum(1)
    count = int(rng.integers(1, 7))
    bits = rng.choice([-1, -1, -1, 0, 1], (count, n)).astype(np.int8)
    ends = rng.integers(-2 - 2 * reach, 3 + 2 * reach, (count, 2, len(rows)))
    limits = np.sort(ends, 1).transpose(0, 2, 1)
    whole = rng.random((count, len(rows))) < 0.4
    limits[whole] = np.stack([-reach, reach], -1)[np.nonzero(whole)[1]]
    return rows, bits, limits


def test_what_is_covered_is_covered(rng) -> None:
    """Random leaves, with limits beyond reach among them; a hole that is found is one."""
    covered = 0
    for _ in range(6000):
        n = int(rng.integers(1, 5))
        rows, bits, limits = random_leaves(rng, n)
        index, value = int(rng.integers(n)), int(rng.integers(2))
        bits[:, index] = value
        strings = strings_of(n)
        strings = strings[strings[:, index] == value]
        most = np.abs(rows).sum(1)
        found = uncovered(bits, limits, index, value, np.stack([-most, most], -1))
        if found is None:
            covered += 1
            assert held(bits, limits, rows, strings).any(1).all()
    assert covered > 500


def test_holes_without_limits_are_exact(rng) -> None:
    """Where no limits are in the way, both answers are right."""
    for _ in range(300):
        bits = rng.integers(-1, 2, (int(rng.integers(1, 12)), 4)).astype(np.int8)
        bits[:, 2] = 1
        strings = strings_of(4)
        strings = strings[strings[:, 2] == 1]
        none = np.zeros((len(bits), 0, 2), np.int64)
        inside = held(bits, none, np.zeros((0, 4), np.int64), strings).any(1)
        found = uncovered(bits, none, 2, 1, np.zeros((0, 2), np.int64))
        assert (found is None) == inside.all()
        if found is not None:
            assert not inside[((found < 0) | (found == strings)).all(1)].any()


def test_covers_with_limits_are_found(rng) -> None:
    """Cuts of a box at random, at bits and limits; then a leaf is left out or narrowed."""
    whole = np.array([[-4096, 4096], [-4096, 4096]])
    for _ in range(100):
        leaves = [(np.array([1, -1, -1], np.int8), whole)]
        for _ in range(int(rng.integers(1, 12))):
            bits, box = leaves.pop(int(rng.integers(len(leaves))))
            if rng.random() < 0.4 and (bits < 0).any():
                j = int(rng.choice(np.flatnonzero(bits < 0)))
                leaves += [
                    (np.where(np.arange(3) == j, b, bits).astype(np.int8), box) for b in (0, 1)
                ]
            else:
                f = int(rng.integers(2))
                low, high = box.copy(), box.copy()
                low[f, 1] = high[f, 0] = box[f].sum() // 2
                leaves += [(bits, low), (bits, high)]
        bits, boxes = (np.array(each) for each in zip(*leaves, strict=True))
        assert uncovered(bits, boxes, 0, 1, whole) is None
        boxes[0, 1, 1] -= 1
        if boxes[0, 1, 1] == 4095:  # else the next leaf has that end too
            assert uncovered(bits, boxes, 0, 1, whole) is not None
        boxes[0, 1, 1] -= 1
        assert uncovered(bits, boxes, 0, 1, whole) is not None


def test_limits_beyond_reach_are_refused_and_whole_steps_needed() -> None:
    index, bits = np.array([0, 0]), np.array([[0], [1]], np.int8)
    rows, lower = np.array([[1.0]]), np.ones(2)

    def leaves(low: float, high: float) -> Leaves:
        return Leaves(index, bits, np.full((2, 1, 2), (low, high)), lower)

    assert hole(leaves(-1, 1), rows) is None
    found = hole(leaves(-1, 1 - STEP), rows)
    assert found is not None
    assert (found[0], found[1].tolist()) == (0, [0])
    for ends in ((-1, 1 + STEP), (-2, 1), (2, 3), (1, -1)):
        with pytest.raises(CertificateError, match="beyond what strings reach"):
            hole(leaves(*ends), rows)
    for wrong in (STEP / 2, np.nan, np.inf, 1e300):
        with pytest.raises(CertificateError, match="must be whole steps"):
            in_steps(np.array([wrong]))


def test_what_is_called_empty_is_empty(rng) -> None:
    """By enumeration; few free bits are decided, many by functionals that exclude each other."""
    empty = 0
    for _ in range(2000):
        n = int(rng.integers(1, 7))
        rows, bits, limits = random_leaves(rng, n)
        inside = held(bits[:1], limits[:1], rows, strings_of(n)).any()
        assert is_empty(rows, bits[0], limits[0]) == (not inside)
        empty += not inside
    assert 200 < empty < 1800
    free = np.full(20, -1, np.int8)
    half = np.repeat([4096, 0], 10)
    rows = np.array([half, np.full(20, 4096) - half, np.full(20, 4096)])
    apart = np.array([[40000, 40960], [40000, 40960], [-81920, 0]])  # both up, their sum down
    assert is_empty(rows, free, apart)
    assert not is_empty(rows, free, np.array([[40000, 40960], [-40960, 40960], [-81920, 0]]))
    assert not is_empty(rows[:0], free, np.zeros((0, 2), np.int64))


def test_leaves_made_to_be_hard_are_refused_in_time(rng) -> None:
    """Many leaves that fix eight bits each, at random: no order of cuts is a good one."""
    bits = np.full((4000, 40), -1, np.int8)
    for row in bits:
        row[rng.choice(np.arange(1, 40), 8, replace=False)] = rng.integers(0, 2, 8)
    bits[:, 0] = 1
    none = np.zeros((len(bits), 0, 2), np.int64)
    with pytest.raises(CertificateError, match="it takes too long to see whether"):
        uncovered(bits, none, 0, 1, np.zeros((0, 2), np.int64), Work(left=2000))


def test_overlapping_bands_are_decided() -> None:
    """Each cut splits a few leaves more, and they are looked at once for it, not once per cut."""
    rows = np.full((1, 12), 4096)
    most, count = int(rows.sum()), 1500
    low = -most + np.arange(count) * most // (count - 1)
    limits = np.stack([low, low + most], -1)[:, None]
    bits = np.full((count, 12), -1, np.int8)
    bits[:, 0] = 1
    whole = np.array([[-most, most]])
    assert uncovered(bits, limits, 0, 1, whole) is None
    limits[:, 0, 0] = np.maximum(limits[:, 0, 0], 1 - most)
    assert uncovered(bits, limits, 0, 1, whole) is not None


def test_empty_leaves_cost_work(monkeypatch) -> None:
    """Many leaves without a bound would take hours, each little."""
    n = 12
    rows = np.full((4, n), 4096)
    limits = np.tile([-4096 * n, 4096 * n], (40, 4, 1))
    limits[:, 0] = [4097, 4098]
    bits = np.full((40, n), -1, np.int8)
    bits[:, 0] = 1
    leaves = Leaves(np.zeros(40, int), bits, limits * STEP, np.full(40, np.inf))
    need_empty(leaves, rows * STEP)
    monkeypatch.setattr(leaf_checks, "Work", lambda: Work(2000))
    with pytest.raises(CertificateError, match="takes too long"):
        need_empty(leaves, rows * STEP)
