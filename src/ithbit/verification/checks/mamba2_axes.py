"""Which linear functions of a token's sum the check of Mamba2 bounds: about uncorrelated ones,
whose effects on what follows are about orthogonal.

Nothing here is trusted: the check bounds whatever functions it is given, and allows for how far the
inverse is off. Everything is plain float64, from a few random strings.
"""

from collections.abc import Callable

import numpy as np

from ithbit.verification.checks.ball_arrays import Array

_STRINGS = 40
_LEAST = 1e-10  # second moment of an axis, relative to the largest


def axes(
    parts: tuple[Array, Array, Array, Array, Array],
    bits: list[int],
    possible: Array,
    effect: Callable[[Array], Array],
    sizes: list[int],
) -> tuple[Array, Array]:
    """The functions and their inverse: place bit function channel, and place bit channel function.

    From x, B, C, steps and decays (place window channel), possible windows (place window), and how
    what follows depends on sums around a mean (place bit channel). Functions are of one head's
    channels each; sizes of the heads.
    """
    x, B, C, steps, decay = parts
    places, d = len(x), x.shape[-1]
    share = possible[:, None] * (np.arange(8) % 2 == np.arange(2)[:, None])  # place bit window
    share = share / np.maximum(share.sum(-1, keepdims=True), 1)
    read = share @ C
    rng = np.random.default_rng(1)
    strings = rng.random((_STRINGS, len(bits))) < rng.choice([0, 0.1, 0.5, 0.9, 1], (_STRINGS, 1))
    strings = np.where(np.array(bits) < 0, strings, np.array(bits))
    padded = np.pad(strings.astype(int), ((0, 0), (3, 1)))
    total, mean = np.zeros((places, 2, _STRINGS, d)), np.zeros((places, 2, d))
    moments = np.zeros((places, d, d))
    for s in range(places):
        w = padded[:, s : s + 3] @ [4, 2, 1]
        score = read[s:] @ B[s, w].T
        total[s:] = decay[s, w] * total[s:] + score[..., None] * (steps[s, w] * x[s, w])
        mean[s] = total[s].mean(1)
        if s + 3 < places:  # the last three tokens are a window's own
            off = (total[s + 3] - total[s + 3].mean(1, keepdims=True)).reshape(-1, d)
            moments[s + 3] = off.T @ off
    J, F, A = effect(mean), np.zeros((places, 2, d, d)), np.zeros((places, 2, d, d))
    for k in range(len(sizes)):
        own = slice(sum(sizes[:k]), sum(sizes[: k + 1]))
        value, vectors = np.linalg.eigh(np.nan_to_num(moments[:, own, own], posinf=0, neginf=0))
        root = np.sqrt(np.maximum(value, _LEAST * value[:, -1:]) + 1e-200)[:, None]
        half = (vectors * root)[:, None]
        seen = np.nan_to_num(J[..., own] @ half, posinf=0, neginf=0)
        gram = np.swapaxes(seen, -1, -2) @ seen
        turn = np.linalg.eigh(np.nan_to_num(gram, posinf=0, neginf=0))[1]
        F[..., own, own] = np.swapaxes(turn, -1, -2) @ np.swapaxes(vectors / root, -1, -2)[:, None]
        A[..., own, own] = half @ turn
    scale = np.abs(F).max(-1, keepdims=True)
    F, A = F / scale, A * np.swapaxes(scale, -1, -2)
    good = (np.isfinite(F) & np.isfinite(A)).all((-1, -2), keepdims=True)
    return np.where(good, F, np.eye(d)), np.where(good, A, np.eye(d))
