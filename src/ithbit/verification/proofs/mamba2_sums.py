"""Sums over the tokens of Mamba2, and their range over all strings by dynamic programming.

    S_t = decay_t S_{t-1} + dt_t k_t,   decay_t = exp(-a dt_t)

where dt_t and k_t depend on the last few bits, the *window*, and otherwise are known within boxes.
For given bits S_t grows with S_{t-1}, since decay_t > 0. So the greatest S_t for given latest bits,
the *state*, is that over the bit which leaves the window, from the greatest S_{t-1} of its state.

A dt that is only known within an interval appears in decay and value. With S fixed, the sum is a
function of dt whose second derivative is a² decay S: where S >= 0 it is greatest at an end, else it
exceeds the ends by at most width² / 8 times that.

Rounding: let A be at least the sum of all |dt k|. Suppose that a computed M plus an error E is at
least S_{t-1}. Then decay <= 1 makes the next one plus E at least S_t, but for the rounding of this
step, a few units of terms no larger than 4 A. So T steps are off by `slack(32 T) A` at most. The
least sums are the greatest of -S. What is no possible state is set to 0, and never used.
"""

import numpy as np

from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, slack
from ithbit.verification.proofs.boxes import Box, between, products, times
from ithbit.verification.proofs.interface import Ints
from ithbit.verification.proofs.single_inputs import exp

_UP = 1 + slack(8)
_EXP = 2.0**-46  # relative error of `exp`, and of what is made of it
_STRINGS = 48  # from which axes are chosen
_LONGEST_STEP = 1e9  # dt a, for exp; it is 0 long before


def windows(bits: Ints, size: int) -> Ints:
    """Which windows of that many bits are possible, the latest bit the lowest: node place window.
    Whatever is no bit counts as 0."""
    nodes, n = bits.shape
    can = np.zeros((nodes, n + 1 + size, 2), bool)
    can[:, :, 0] = True
    can[:, size:-1, 0], can[:, size:-1, 1] = bits != 1, bits != 0
    found = np.ones((nodes, n + 2, 1), bool)
    for start in range(size):
        own = can[:, start : start + n + 2]
        found = (found[..., None] & own[:, :, None]).reshape(nodes, n + 2, -1)
    return found


def spreads(
    scores: FloatArray, xd: FloatArray, decay: FloatArray, bits: Ints
) -> tuple[FloatArray, FloatArray]:
    """About the mean (node place bit channel) and the second moments (node place channel channel)
    of the sums of the first block, from a few strings; of the latter without the last three
    tokens. Only for a choice of what to bound."""
    nodes, places, d = len(xd), xd.shape[1], xd.shape[-1]
    possible = windows(bits, 3).astype(float)
    of_bit = possible[..., None] * (np.arange(8)[:, None] % 2 == np.arange(2))
    share = of_bit / np.maximum(of_bit.sum(2, keepdims=True), 1)  # node place window bit
    scores = np.einsum("ntwb,ntwsv->ntbsv", share, scores, optimize=True)
    rng = np.random.default_rng(0)
    density = rng.choice([0.5, 0.5, 0.1, 0.9, 0.0, 1.0], (_STRINGS, 1))
    strings = rng.random((_STRINGS, bits.shape[1])) < density
    mean, moments = np.zeros((nodes, places, 2, d)), np.zeros((nodes, places, d, d))
    for node in range(nodes):
        own = np.where(bits[node] >= 0, bits[node], strings)
        padded = np.pad(own, ((0, 0), (3, 1)))
        window = np.stack([padded[:, t : t + 3] @ [4, 2, 1] for t in range(places)])
        total = np.zeros((places, 2, _STRINGS, d))
        for s in range(places):
            at = window[s]
            value = scores[node, s:, :, s][..., at, None] * xd[node, s, at]
            total[s:] = decay[node, s, at & 1] * total[s:] + value
            mean[node, s] = total[s].mean(1)
            if s + 3 < places:
                off = total[s + 3] - total[s + 3].mean(1, keepdims=True)
                moments[node, s + 3] = np.einsum("brp,brq->pq", off, off, optimize=True)
    return mean, moments


def first_sums(
    scores: FloatArray, xd: FloatArray, decay: FloatArray, bits: Ints
) -> tuple[FloatArray, FloatArray]:
    """The least and greatest sum at every place and window of the first block (node place window
    channel), only rounded: scores C . B (node, place, window, place, window), dt x (node,
    place and bit of C, place, window, channel) and decays (node place bit channel), exact."""
    nodes, places, d = len(xd), xd.shape[1], xd.shape[-1]
    own = np.arange(8)
    barred = np.where(windows(bits, 3), 0.0, -np.inf)
    states = windows(bits, 2)
    best = np.zeros((2, nodes, places, 8, 4, d))  # of the sum and its negative, by state
    ends = np.empty((2, nodes, places, 8, d))
    for s in range(places):
        value = scores[:, s:, :, s, :, None] * xd[:, s:, own & 1, s]
        kept = best[:, :, s:, :, :, None] * decay[:, s][:, None, None, None]
        total = kept.reshape(2, nodes, places - s, 8, 8, d)
        total[0] += value
        total[1] -= value
        ends[:, :, s] = total[:, :, 0, own, own]
        if s < places - 1:
            total = total[:, :, 1:]
            total += barred[:, s, None, None, :, None]
            new = np.maximum(total[..., :4, :], total[..., 4:, :])
            best[:, :, s + 1 :] = np.where(states[:, s][:, None, None, :, None], new, 0)
    return -ends[1], ends[0]


class LastSums:
    """Sums of the second block at the last token, for its sixteen windows with an even number
    (*ends*): it is no bit itself."""

    def __init__(
        self,
        dt: tuple[FloatArray, FloatArray],
        rate: FloatArray,
        C: Box,
        B: Box,
        x: Box,
        bits: Ints,
    ) -> None:
        """Ends of dt (node place window-of-three head), a (head), C (node end state), and B and x
        (node place window channel)."""
        self.dt, self.x = dt, x
        # exp is off by a factor 1 ± _EXP at most, which `_range` allows for.
        self.decay = [exp(-np.minimum(each * rate, _LONGEST_STEP)) for each in dt]
        width = np.maximum(dt[1] - dt[0], 0) * rate
        self.bend = width * width / 8 * self.decay[0] * (1 + 4 * _EXP) * _UP
        self.barred = np.where(windows(bits, 5), 0.0, -np.inf)
        self.states = windows(bits, 4)
        self.scores = products("nek,nswk->nesw", C, B, C.c.shape[-1])

    def of_channels(self, head_of: Ints) -> Box:
        """The sum of every channel: node end channel."""
        return self._range(Box(*(a[:, None] for a in self.x)), head_of)

    def of_functions(self, weights: FloatArray, head_of: Ints) -> Box:
        """The sums of linear functions of the channels of one head each: weights (node end function
        channel), and the head of each function."""
        by = Box(weights, np.zeros_like(weights))
        x = products("nswp,njfp->njswf", self.x, by, weights.shape[-1])
        return self._range(x, head_of)

    def _range(self, x: Box, head_of: Ints) -> Box:
        nodes, count, places = self.scores.c.shape[:3]
        channels = x.c.shape[-1]
        best = np.zeros((2, nodes, count, 16, channels))
        sizes = np.zeros((nodes, count, channels))
        sign = np.array([1.0, -1.0]).reshape(2, 1, 1, 1, 1)
        of_three, own = np.arange(32) & 7, np.arange(count)
        for s in range(places):
            scores, inputs = (Box(each.c[:, :, s], each.r[:, :, s]) for each in (self.scores, x))
            k = times(Box(scores.c[..., None], scores.r[..., None]), inputs)
            first, last, slow, fast, bend = (
                a[:, s, of_three][:, None][..., head_of] for a in (*self.dt, *self.decay, self.bend)
            )
            top = sign * k.c + k.r
            before = np.repeat(best, 2, axis=3)
            at_first, at_last = before * slow, before * fast
            joint = np.maximum(at_first + first * top, at_last + last * top)
            joint += np.maximum(-before, 0) * bend
            apart = np.maximum(at_first, at_last) + np.maximum(first * top, last * top)
            total = np.minimum(joint, apart)
            sizes += (k.size * last).max(2)
            if s == places - 1:
                ends = total[:, :, own, 2 * own]
                break
            total += self.barred[:, s][:, None, :, None]
            new = np.maximum(total[..., :16, :], total[..., 16:, :])
            best = np.where(self.states[:, s][:, None, :, None], new, 0)
        off = (slack(32 * places + 64) + 4 * places * _EXP) * sizes * _UP + TINY
        return between(-ends[1] - off, ends[0] + off)
