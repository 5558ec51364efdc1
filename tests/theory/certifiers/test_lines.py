"""Exact functions of one variable, and what the linear-time arguments ask of weights."""

from dataclasses import replace

import numpy as np
import pytest
from flint import fmpq

from ithbit.theory.certifiers.exact import (
    Line,
    UnsuitableError,
    exact,
    exact_row,
    line_direction,
    line_of,
)
from ithbit.theory.certifiers.fixed_states import certify_states
from ithbit.theory.certifiers.marker import certify_marker
from ithbit.theory.constructions import construct
from ithbit.theory.gadgets import affine, constant, hat, ramp, two_step, window
from ithbit.theory.layers import ReluNet, matrix
from ithbit.theory.precision import smallest_margin
from ithbit.theory.solution import Embedding


def test_a_line_is_the_net_along_a_direction():
    rng = np.random.default_rng(0)
    net = two_step(rng.normal(size=(4, 2)), rng.normal(size=4), rng.normal(size=(1, 4)), [2])
    along = rng.normal(size=2)
    line = line_of(net, exact_row(along))
    for t in rng.normal(size=20):
        expected = float(net(t * along)[0])
        assert float(line(exact(t))) == pytest.approx(expected, abs=1e-12)
        assert float(line.times(fmpq(3))(exact(t))) == pytest.approx(3 * expected, abs=1e-11)
    plain = line_of(affine([[2.0]], [1.0]), [fmpq(1)])
    assert [plain(fmpq(t)) for t in (-1, 0, 2)] == [-1, 1, 5]


def test_ranges_and_supports_are_exact():
    line = line_of(window(0.25, 0.75), [fmpq(1)])
    assert line.support() == (fmpq(-3, 4), fmpq(3, 4))
    assert line.range(fmpq(-1, 2), fmpq(0)) == (fmpq(1, 2), 1)
    assert line.range(fmpq(-9), fmpq(9)) == (0, 1)


@pytest.mark.parametrize(
    ("net", "message"),
    [(ramp(1.0, 0.0), "does not vanish far from 0"), (constant([1.0], 1), "has no kink")],
)
def test_functions_without_support_are_refused(net, message):
    with pytest.raises(UnsuitableError, match=message):
        line_of(net, [fmpq(1)]).support()


def test_nets_of_another_form_are_refused():
    deep = ReluNet((matrix([[1]]),) * 3, (matrix([0], 1),) * 3)
    with pytest.raises(UnsuitableError, match="more than one hidden layer"):
        line_of(deep, [fmpq(1)])
    with pytest.raises(UnsuitableError, match="more than one combination"):
        line_direction(two_step([[1, 1], [1, 2]], [0, 0], [[1, 1]], [0]))
    assert line_direction(two_step([[0, 0], [2, 4], [1, 2]], [0] * 3, [[1] * 3], [0])).tolist() == [
        2,
        4,
    ]
    assert isinstance(Line((), fmpq(1)), Line)


def first_layer(**changes):
    good = construct("lhi", "softmax-full", 4)
    return replace(good, layers=(replace(good.layers[0], **changes), good.layers[1]))


def second_layer(**changes):
    good = construct("lhi", "linear-full", 4)
    return replace(good, layers=(good.layers[0], replace(good.layers[1], **changes)))


def embedded(**changes):
    good = construct("lhi", "softmax-full", 4)
    return replace(good, embedding=replace(good.embedding, **changes))


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (first_layer(V=matrix([[-1]])), "V and the bits must be positive"),
        (first_layer(K=matrix([[3]])), "K Q must be negative"),
        (first_layer(net=hat(2.0)), "may be marked too"),
        (second_layer(K=matrix([[1]])), "does not take the plain mean"),
        (embedded(index=matrix([[1], [2], [3], [4]])), "embedding of the index negative"),
        (embedded(end=matrix([5.0], 1)), "no token is certain to hold the largest"),
        (
            embedded(bit=matrix(np.array([[6.0, 1], [6, 1], [6, 3], [6, 4]])[..., None], 3)),
            "with index 1, position 2 holding 1 may be marked too",
        ),
        (construct("rhi", "softmax-full", 4), "two layers of width 1"),
    ],
)
def test_the_marker_argument_names_the_hypothesis_that_fails(solution, message):
    with pytest.raises(UnsuitableError, match=message):
        certify_marker(solution)


def test_the_marker_argument_refuses_an_end_token_that_looks_like_a_marked_bit():
    good = construct("lhi", "linear-full", 4)
    table = replace(good.embedding, end=matrix([2.0], 1))
    with pytest.raises(UnsuitableError, match="with index 2, the end token may be marked too"):
        certify_marker(replace(good, embedding=table))


def ssm_layer(place: int, **changes):
    good = construct("lhi", "ssm", 4)
    layers = list(good.layers)
    layers[place] = replace(layers[place], **changes)
    return replace(good, layers=tuple(layers))


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (ssm_layer(0, A=constant([0.5], 1)), "not the constant 1"),
        (ssm_layer(1, A=affine([[1.0]], [1.0])), "not the constant 1"),
        (ssm_layer(0, phi=hat(1.0, (1.0, 0.0))), "does not look at the state"),
        (ssm_layer(0, B=affine([[1.0]], [0.0])), "may be marked too"),
        (ssm_layer(1, B=affine([[1.0]], [1.0])), "tokens without a mark"),
    ],
)
def test_the_marker_argument_names_what_fails_in_an_ssm(solution, message):
    with pytest.raises(UnsuitableError, match=message):
        certify_marker(solution)


def test_fixed_states_are_exact_for_other_embeddings_too():
    """Breakpoints that are no floats, and tokens close to them."""
    good = construct("lhi", "rnn", 4, "pair")
    rows = np.array(good.embedding.bit)
    rows[:, 1, 0] = [1.1, 2.3, 3.5, 4.6]
    table = Embedding(matrix(-rows[:, 1]), matrix(rows, 3), good.embedding.end)
    moved = replace(good, embedding=table)
    assert float(certify_states(moved).margin) == pytest.approx(smallest_margin(moved), abs=1e-12)


def test_fixed_states_name_the_token_that_moves_the_state():
    good = construct("lhi", "rnn", 4)
    rows = np.array(good.embedding.bit)
    rows[3, 0, 0] = 2.0  # position 4 holding a 0 looks like position 2 holding a 1
    table = Embedding(good.embedding.index, matrix(rows, 3), good.embedding.end)
    with pytest.raises(UnsuitableError, match="with index 2, position 4 holding 0 moves the state"):
        certify_states(replace(good, embedding=table))


def test_fixed_states_need_tokens_on_a_line():
    good = construct("lhi", "rnn", 3, "pair")
    rows = np.array(good.embedding.bit)
    rows[0, 0, 1] = 1.0
    table = Embedding(good.embedding.index, matrix(rows, 3), good.embedding.end)
    with pytest.raises(UnsuitableError, match="differ in more than one coordinate"):
        certify_states(replace(good, embedding=table))
