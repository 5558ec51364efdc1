"""The causal rank: how many independent directions of the past can still change the future.

For position k it is the rank of the Jacobian of outputs k, k + 1, … with respect to inputs
1, …, k - 1, the later inputs held fixed. If the layer is causal and keeps its past in a state of S
numbers that is a smooth function of the inputs, as the outputs are of it, the Jacobian factors
through that state, so the rank is at most S at every k: *proved*. The converse is not: a flat rank
is *observed*, at random points, and a layer may keep more than can be seen there. Where the outputs
are seen to change otherwise than the Jacobian says (`response.py`), the rank is a statement about
that Jacobian alone: nothing of the layer follows from it.

The whole Jacobian is computed in float64, a batch of copies of the same input giving many of its
rows at once, so the layer needs no support of `vmap`. The sequence goes on for 2n tokens after the
last k, so that outputs are never too few to show what is kept. Rows and columns are scaled to unit
length, which changes no rank but lets a fading memory be told from none; singular values below
1e-10 of the largest count as zero, down to 1e-13 unless a clear gap sets them off from rounding.
The greatest rank of several points is reported, at the layer's own weights and at weights moved
away from them (an initial weight of 0 hides what training would show): where a point is not generic
its rank is too small, never too large.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ithbit.probe.response import Response, response

TOLERANCE = 1e-10  # relative; float64 rounding of a Jacobian after scaling is some 1e-13
_FLOAT32_TOLERANCE = 1e-4
_ROWS = 256  # rows of the Jacobian a batch
_FLOOR = 1e-3  # of the tolerance: below that everything is rounding
_GAP = 2e4  # rounding of an ill-conditioned layer shows gaps of some thousand
_SWEEPS = 3  # of scaling rows and columns
_FLAT = 3  # so many equal ranks at the end make a plateau


@dataclass(frozen=True)
class CausalRank:
    """Ranks at k = 1 … n, for a layer of some width.

    `fault` says in what way the layer was seen not to change as its derivative says; the ranks are
    no measure of it then.
    """

    width: int
    ranks: tuple[int, ...]
    n_tokens: int
    dtype: str
    fault: str | None = None

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def everything(self) -> bool:
        """Whether nothing is forgotten: every direction of the past still counts at every k."""
        return all(rank == k * self.width for k, rank in enumerate(self.ranks))

    @property
    def state(self) -> int | None:
        """The value at which the rank stays, None where it still grows at k = n or says nothing."""
        if self.fault is not None:
            return None
        tail = self.ranks[-_FLAT:]
        return tail[-1] if len(tail) == _FLAT and len(set(tail)) == 1 else None

    def sentence(self) -> str:
        """What the ranks say, in words."""
        if self.fault is not None:
            return f"no measure of this layer: {self.fault}; nothing follows from it"
        if self.state == 0:
            return "0 throughout: no input changes a later output, nothing of the past is kept"
        if self.state is not None:
            least = self.ranks.index(self.state) + 1
            return f"flat at {self.state} from k = {least} on, as with a state of that many numbers"
        if self.everything:
            return (
                f"growing by {self.width} a token up to k = {self.n}: nothing is forgotten so far"
            )
        return f"still growing at k = {self.n}, where it is {self.ranks[-1]}: no fixed state seen"


def causal_rank(
    layer: nn.Module,
    width: int,
    n: int,
    points: int = 3,
    seed: int = 0,
    n_tokens: int | None = None,
) -> CausalRank:
    """The causal rank of a layer at k = 1 … n: all points but the last at its own weights.

    The layer is in float64 (or computes in float32, and then so is the rank, less sharply).

    >>> class Gru(nn.GRU):
    ...     def forward(self, x):
    ...         return super().forward(x)[0]
    >>> causal_rank(Gru(2, 2, batch_first=True).double(), width=2, n=6).ranks
    (0, 2, 2, 2, 2, 2)
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = next((p.dtype for p in layer.parameters()), torch.float64)
    device = next((p.device for p in layer.parameters()), torch.device("cpu"))
    tolerance = TOLERANCE if dtype == torch.float64 else _FLOAT32_TOLERANCE
    n_tokens = n_tokens or 3 * n
    elsewhere = torch.Generator().manual_seed(seed + 1)
    best = [0] * n
    seen: list[Response] = []
    for point in range(points):
        used = layer if point < points - 1 else _moved(layer, generator)
        x, other = (
            torch.randn(n_tokens, width, generator=drawn, dtype=torch.float64).to(device, dtype)
            for drawn in (generator, elsewhere)
        )
        whole = jacobian(used, x).double().cpu()
        if not whole.isfinite().all():  # moved to where the layer is not defined
            continue
        seen.append(response(used, x, other, whole, max(n, 2)))
        for k in range(2, n + 1):
            past, future = (k - 1) * width, whole[(k - 1) * width :]
            best[k - 1] = max(best[k - 1], numerical_rank(future[:, :past], tolerance))
    name = str(dtype).removeprefix("torch.")
    return CausalRank(width, tuple(best), n_tokens, name, _fault(seen, max(best)))


def _fault(seen: list[Response], most: int) -> str | None:
    """In what way the Jacobian does not describe the layer, if any was seen."""
    if most == 0 and any(found.moves for found in seen):
        return "earlier inputs change later outputs although the derivative is 0"
    if any(found.jumps for found in seen):
        return "later outputs jump as earlier inputs move, which the derivative does not show"
    if any(found.strays for found in seen):
        return "later outputs do not change as the derivative says"
    return None


def _moved(layer: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with other weights: noise is added, a quarter of what keeps outputs of size 1."""
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        for value in copied.parameters():
            scale = 0.25 * (value.shape[-1] ** -0.5 if value.dim() > 1 else 1.0)
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value.add_((scale * noise).to(value.device, value.dtype))
    return copied


def jacobian(layer: nn.Module, x: Tensor) -> Tensor:
    """d output / d input at one sequence x (token, width), both flattened: row output."""
    n_tokens, width = x.shape
    size = n_tokens * width
    rows = []
    for start in range(0, size, _ROWS):
        which = torch.arange(start, min(start + _ROWS, size), device=x.device)
        copies = x.expand(len(which), -1, -1).clone().requires_grad_()
        out = layer(copies).flatten(1)
        # A layer that ignores its input, or copies it as a constant, has no graph to go back.
        if not out.requires_grad:
            return torch.zeros(size, size, dtype=x.dtype, device=x.device)
        picked = out.gather(1, which.unsqueeze(1)).sum()
        (grad,) = torch.autograd.grad(picked, copies, materialize_grads=True)
        rows.append(grad.flatten(1))
    return torch.cat(rows)


def numerical_rank(matrix: Tensor, tolerance: float = TOLERANCE) -> int:
    """How many singular values exceed `tolerance` of the largest, after scaling rows and columns.

    >>> numerical_rank(torch.diag(torch.tensor([1.0, 1e-30, 0.0], dtype=torch.float64)))
    2
    """
    for _ in range(_SWEEPS):
        for axis in (1, 0):
            norm = matrix.norm(dim=axis, keepdim=True)
            matrix = torch.where(norm > 0, matrix / norm, 0.0)
    keep = matrix.norm(dim=1) > 0, matrix.norm(dim=0) > 0
    matrix = matrix[keep[0]][:, keep[1]]
    if not matrix.numel():
        return 0
    values = torch.linalg.svdvals(matrix)
    values = values / values[0]
    rank = int((values > tolerance).sum())
    # Just below the tolerance a clear gap still tells what is kept from rounding.
    floor = tolerance * _FLOOR
    below = [r for r in range(rank, len(values)) if values[r] > floor]
    for r in below:
        if r + 1 == len(values) or values[r] > _GAP * values[r + 1]:
            rank = r + 1
    return rank
