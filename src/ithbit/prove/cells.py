"""A function of forms that vary mostly along one line, bounded cell by cell on that line.

Norms are most nonlinear where a vector is small. There a single affine form is loose; but the
output of one layer of attention varies almost along a single direction, so a few cells along it
are much tighter.
"""

from collections.abc import Callable

import numpy as np

from ithbit.prove.forms import TINY, Form, slack

_UP = 1 + slack(8)


def in_cells(x: Form, function: Callable[[Form], Form], k: int, cells: int = 16) -> Form:
    """The function of a form that varies mostly along one line, bounded cell by cell on that line:
    a form with the first k symbols, all else in its error.

    With the line's direction p and G = p τᵀ + rest, σ = τ ε lies in one of the cells. There the
    function is a form in the cell's own symbol, ε and more; over all cells it is within a radius
    of a constant plus the chord's slope times σ plus the mean of the cells' generators times ε.
    """
    count, d, symbols = x.G.shape
    _, vectors = np.linalg.eigh(np.nan_to_num(np.matmul(x.G, x.G.swapaxes(-1, -2))))
    p = vectors[..., -1]  # any vector is sound
    tau = np.matmul(p[:, None], x.G)[:, 0]
    along = p[:, :, None] * tau[:, None]
    rest = x.G - along
    off = slack(symbols) * (np.abs(x.G) + np.abs(along)).sum(-1)
    reach = np.abs(tau).sum(-1) * (1 + slack(symbols)) + TINY
    half = reach / cells * (1 + slack(cells))
    middle = reach[:, None] * ((2 * np.arange(cells) + 1) / cells - 1)  # row cell
    c = x.c[:, None] + p[:, None] * middle[..., None]
    wrong = (x.e + off)[:, None] + slack(0) * (np.abs(c) + reach[:, None, None] * 2)
    G = np.concatenate([(p * half[:, None])[..., None], rest], -1)
    G = np.broadcast_to(G[:, None], (count, cells, *G.shape[1:])).reshape(-1, d, symbols + 1)
    y = function(Form(c.reshape(-1, d), G, (wrong * _UP).reshape(-1, d)))
    size = y.c.shape[-1]
    yc, ye = (a.reshape(count, cells, size) for a in (y.c, y.e))
    yG = y.G.reshape(count, cells, size, -1)
    own = ye + np.abs(yG[..., k + 1 :]).sum(-1) * (1 + slack(yG.shape[-1]))
    step, moved = yG[..., 0], yG[..., 1 : k + 1]
    slope = (yc[:, -1] + step[:, -1] - yc[:, 0] + step[:, 0]) / (2 * reach[:, None])
    mean = moved.mean(1)
    bend = np.abs(step - (slope * half[:, None])[:, None])
    spread = own + bend + np.abs(moved - mean[:, None]).sum(-1)
    at = yc - slope[:, None] * middle[..., None]
    room = slack(k + 8) * (np.abs(yc) + np.abs(slope[:, None]) * reach[:, None, None] + spread)
    spread = (spread + room + slack(k + 8) * np.abs(moved).sum(-1)) * _UP
    top, bottom = (at + spread).max(1), (at - spread).min(1)
    G = slope[..., None] * tau[:, None, :k] + mean
    e = (top - bottom) / 2 + np.abs(slope) * np.abs(tau[:, k:]).sum(-1)[:, None]
    e = e + slack(k + 8) * (np.abs(top) + np.abs(bottom) + np.abs(slope) * reach[:, None])
    e = e + slack(k + 8) * np.abs(mean).sum(-1)
    return Form((top + bottom) / 2, G, e * _UP + TINY)
