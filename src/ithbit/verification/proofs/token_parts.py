"""Sets of vectors cut into parts along their longest direction, for bounds part by part.

Norms of a small vector are far from affine, and one form for all its values is loose. Whatever the
bits are, the vector lies in one of the parts, so the least bound of all parts holds.
"""

import numpy as np

from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, Form, axes_of, slack

PARTS = 16
_UP = 1 + slack(8)


def parts_of(x: Form, parts: int = PARTS) -> Form:
    """Forms that together cover each row of x: row part …. They have its symbols and one more.

    With G = p τᵀ + rest for a direction p, the number τ ε lies in one of the equal parts of its
    range, whose half width is the new symbol's; any p is sound.
    """
    rows, d, symbols = x.G.shape
    p = axes_of(x.G)[..., -1]
    tau = np.matmul(p[:, None], x.G)[:, 0]
    along, off = p[:, :, None] * tau[:, None], slack(symbols)
    reach = np.abs(tau).sum(-1)[:, None] * (1 + off) + TINY
    half = reach / parts * (1 + slack(parts))
    at = reach * ((2 * np.arange(parts) + 1) / parts - 1)  # row part
    c = x.c[:, None] + at[..., None] * p[:, None]
    wrong = x.e + off * (np.abs(x.G) + np.abs(along)).sum(-1)
    wrong = wrong + slack(0) * (np.abs(x.c) + 2 * np.abs(p) * reach)
    G = np.concatenate([x.G - along, (p * half)[..., None]], -1)
    e = np.repeat(wrong * _UP + TINY, parts, 0)
    return Form(c.reshape(rows * parts, d), np.repeat(G, parts, 0), e)


def with_row(x: Form, at: list[int], parts: Form) -> Form:
    """The rows of x once for every part, which stands at these places: part row …."""
    count, rows = len(parts), len(x)
    width = max(x.G.shape[-1], parts.G.shape[-1])

    def wide(G: FloatArray) -> FloatArray:
        return np.concatenate([G, np.zeros((*G.shape[:-1], width - G.shape[-1]))], -1)

    c, e = (np.tile(each, (count, 1, 1)) for each in (x.c, x.e))
    G = np.tile(wide(x.G), (count, 1, 1, 1))
    for row in at:
        c[:, row], G[:, row], e[:, row] = parts.c, wide(parts.G), parts.e
    flat = (count * rows, -1)
    return Form(c.reshape(flat), G.reshape(count * rows, *G.shape[2:]), e.reshape(flat))
