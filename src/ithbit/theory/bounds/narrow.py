"""Bounds at width 1 and 2: count where each index's answer changes, along a line or in a plane.

With the weights fixed, a string leaves a fingerprint theta, and the answer to index i is the sign
of one function f_i(theta), after a small shift of the head so that no required value is 0. All 2^n
answer vectors must occur. If theta is one number and every f_i changes its sign at most Z times,

    2^n <= 1 + n Z.                                                                        (line)

If theta is two numbers and every {f_i = 0} is contained in k lines, all indices together have
N = n k of them:

    2^n <= 1 + N + N (N − 1) / 2.                                                         (plane)

*Formal layers of width 1, hidden w.* An MLP with one hidden layer and one free input has at most
w + 1 affine pieces, each with at most one sign change. SSM, RHI: h' = A(x_i) h + B(x_i) is affine
in theta = h, so Z = w + 1, for any maps A and B. RNN, RHI: N2 after N1, so Z = (w + 1)^2. Linear
attention, RHI: theta = (S, z), and x_i + a with a = (S + v_i phi_i) / (z + phi_i) takes each of
its w + 1 critical values on a line; likewise LHI with theta = (beta, rho), and the SSM on LHI,
where h = A(sigma) alpha_i + b(sigma).

*Trained attention of width 1.* LayerNorm of one number is its offset, so blocks add constants, and
the logit does not depend on the bits: n* = 0 at any depth.

*Mamba2 of width 1, state N, one layer, RHI.* With the bits in the convolution's window fixed, the
channel y = C_i h' + D x is affine in theta = h in R^N. Everything after it is monotone in y: a
gate, u / sqrt(u^2 + eps), the residual sum, again u / sqrt(u^2 + eps), the head. So {f_i = 0} is a
hyperplane, there are at most sum_{r <= N} C(n, r) answer vectors, and n <= N, not counting the
fixed bits.

*nn.GRU of width 1, RHI: Z = 17.* The answer is 1[h' > c] up to a sign, and constant unless |c| <
1. With X = e^(a + u_z h) and E = e^(−a_r − u_r h), h' = c means tanh A(h) = G(h), where A = alpha
+ (u h + b) / (1 + E) and G = c + (c − h) X. All zeros lie where |G| < 1, and there they are the
zeros of Phi = artanh G − A. Then

    P = (1 − G^2)(1 + E)^2 Phi' = G' (1 + E)^2 − (1 − G^2)(u (1 + E) + (u h + b) u_r E)

is an exponential polynomial. Its monomials 1, E, X, XE, XE^2, X^2, X^2 E have coefficients of
degree 0, 1, 1, 2, 1, 2, 3 in h: seven distinct exponents or fewer, so P has at most sum (degree +
1) − 1 = 16 real zeros (Pólya and Szegő) or is identically 0, and then Phi is constant on every
interval. G' = X (u_z (c − h) − 1) vanishes at most once, so {|G| < 1} has at most two intervals.
If one: by Rolle, Phi has at most 16 + 1 zeros. If two: |G| >= 1 in between, with G = ±1 at both
ends of the gap. There P = G'(1 + E)^2, with opposite signs at the two ends, or the gap is one point
and P is 0 there: one of the 16 zeros of P lies in the gap, and Phi has at most 15 + 2 zeros.

*nn.GRU of width 2, RHI.* theta = h in R^2. By the cell argument of `counting`, with a separate
epsilon for each index, 2^n <= 1 + sum_i comp(Z_i) + sum_{i<j} |Z_i ∩ Z_j|. Keep s_k = r_k (U h +
b)_k as unknowns: s_k (1 + R_k) = (U h + b)_k has degree 2. With T_k = e^(2 s_k) and the
exponential Z_k of the update gate, the logit times (1 + Z_1)(1 + Z_2)(c_1 T_1 + 1)(c_2 T_2 + 1) >
0 has degree 4. R_k and Z_k are four exponentials that all indices share up to factors; every index
has its own two T_k. Pairs: 6 unknowns, degrees 2, 2, 2, 2, 4, 4, a chain of 8: by Khovanskii at
most 2^28 2^4 4^2 (6 + 16 − 6 + 1)^8 points. Single curves: every component has a point where the
squared distance to a generic q is critical, (h_1 − q_1) df/dh_2 = (h_2 − q_2) df/dh_1. Multiplied
by (1 + R_1)(1 + R_2), and with s_k R_k replaced by (U h + b)_k − s_k, which it equals, this has
degree 1 + 4 + 2 = 7. So 4 unknowns, degrees 2, 2, 4, 7, a chain of 6: at most
2^15 · 112 · (4 + 15 − 4 + 1)^6.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

from ithbit.families import Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds.counting import cells

GRU_SIGN_CHANGES = 17


@dataclass(frozen=True)
class Narrow:
    """At most `answers(n)` answer vectors, and what that follows from."""

    theorem: str
    answers: Callable[[int], int]
    dimension: int = 0  # n hyperplanes in R^dimension are counted: 2^n cells up to here, not past

    @property
    def n_star(self) -> int:
        """The largest n that is not excluded; 2^n outgrows each of these counts."""
        if self.dimension:
            return self.dimension
        n = 0
        while 1 << (n + 1) <= self.answers(n + 1):
            n += 1
        return n


def narrow(task: Task, arch: Architecture) -> Narrow | None:
    """The count for a narrow architecture, or None where the module head gives none.

    >>> from ithbit.theory.architecture import architecture
    >>> [narrow("rhi", architecture("gru", "trained", width=d)).n_star for d in (1, 2)]
    [6, 80]
    """
    if arch.model == "trained" and arch.attention and arch.width == 1:
        return Narrow("LayerNorm of one number forgets it", lambda n: 1)
    if arch.n_layers > 1 or arch.width > 2:
        return None
    if arch.kind == "gru" and task == "rhi" and arch.width == 1:
        return _line(GRU_SIGN_CHANGES, "zeros of exponential polynomials, and Rolle's theorem")
    if arch.kind == "gru" and task == "rhi":
        pair = 2**28 * 2**4 * 4**2 * 17**8
        single = 2**15 * (2 * 2 * 4 * 7) * 16**6
        return Narrow(
            "cells of curves in a plane, counted by Khovanskii's theorem",
            lambda n: 1 + n * single + comb(n, 2) * pair,
        )
    if arch.width > 1:
        return None
    if arch.kind == "mamba2" and task == "rhi":
        what = "the logit is monotone in an affine function of the state: counting hyperplanes"
        return Narrow(what, lambda n: cells(n, arch.state), arch.state)
    if arch.model == "trained" or arch.heads > 1:
        return None
    pieces = arch.hidden + 1
    if task == "rhi" and arch.kind in ("rnn", "ssm"):
        return _line(pieces**2 if arch.kind == "rnn" else pieces, "affine pieces along a line")
    if arch.kind == "linear" or (task == "lhi" and arch.kind in ("softmax", "ssm")):
        return Narrow(
            "the critical values of the MLP are lines in a plane",
            lambda n: 1 + n * pieces + comb(n * pieces, 2),
        )
    return None


def _line(turns: int, what: str) -> Narrow:
    return Narrow(f"{what}: at most {turns} sign changes per index", lambda n: 1 + n * turns)
