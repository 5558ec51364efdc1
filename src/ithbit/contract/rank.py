"""The causal rank: how many independent directions of the past can still change the future.

At position k it is the rank of the derivative of outputs k, k + 1, … with respect to inputs
1, …, k - 1, stacked over many continuations: the past is fixed, the inputs from k on are drawn
again for each. If a causal layer keeps its past in a state of S numbers that is a smooth function
of the inputs, and the outputs are smooth functions of the state and the later inputs, then the
derivative for every continuation is one matrix times the derivative of the state with respect to
the past, and so is the stack: its rank is at most S. *Proved*: the rank is a lower bound on the
size of any smooth state. A single continuation may see less, for example behind a convolution.
`jacobian.py` decides what counts as rank despite rounding.

That the state is no larger is *observed*, and reported only where the rank is *flat*: k grows until
the rank, first reached at some k, has stayed the same up to twice that k, at every k measured on
the way. Everything else is *still growing*: the rank at the last k is a lower bound, and nothing
follows from it. Nor does it where singular values fade into the noise, as for long products of
decays, even if the rank stays.

Not every k is measured. The rank grows by at most the width from k to k + 1, so where two ranks
differ by the maximum, those between them are determined. Between equal ranks, and on a straight
line, one or several k are tried, more where they are cheap.

The points are random inputs at the layer's own weights and at weights moved away from them (an
initial weight of 0 hides what training would show); the greatest rank counts. At a point that is
not generic it is too small, never too large. Where outputs are seen to change in a way that the
derivative does not predict (`response.py`), the rank is a statement about that derivative alone.
"""

from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from ithbit.contract.jacobian import Point, Spectrum
from ithbit.contract.response import Response, response
from ithbit.models.user_code import FAILURES

_LONGEST = 300  # tokens of a past
_LARGEST = 300_000  # rows times tokens to spend on a larger k, or on those between
_CHECKS = 1024  # rows to spend on k between two equal ranks
_FAR = 256  # where a rank that has settled is measured once more


@dataclass(frozen=True)
class CausalRank:
    """Ranks at k = 1 … n, for a layer of some width.

    `measured` lists the k at which they were measured; the others follow from these. If the rank is
    not `settled`, singular values fade into the noise and it is a lower bound. `values` are the
    singular values at k = n, in units of the noise. `fault` says how the layer was seen to deviate
    from its derivative; the ranks are then no measure of the layer.
    """

    width: int
    ranks: tuple[int, ...]
    n_tokens: int
    dtype: str
    fault: str | None = None
    settled: bool = True
    steady: bool = True  # two points at the layer's own weights have the same rank
    measured: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    far: tuple[int, int] | None = None  # a later k and its rank, where that was measured

    @property
    def n(self) -> int:
        return len(self.ranks)

    @property
    def everything(self) -> bool:
        """Whether nothing is forgotten: every direction of the past still counts at every k."""
        return all(rank == k * self.width for k, rank in enumerate(self.ranks))

    @property
    def reached(self) -> int:
        """The first k with the greatest rank."""
        return self.ranks.index(max(self.ranks)) + 1

    @property
    def state(self) -> int | None:
        """The value at which the rank has stayed; None if nothing can be concluded."""
        if self.fault is not None or not self.settled or not self.steady or not self.flat:
            return None
        return self.ranks[-1] if self.far is None or self.far[1] == self.ranks[-1] else None

    @property
    def flat(self) -> bool:
        """Whether the greatest rank has stayed for as long as it took to reach it."""
        return len(set(self.ranks[self.reached - 1 :])) == 1 and self.n >= 2 * self.reached

    def sentence(self) -> str:
        """What the ranks say, in words."""
        most, n, tail = max(self.ranks), self.n, self.ranks[self.reached - 1 :]
        if self.fault is not None:
            return f"no measure of this layer: {self.fault}; nothing follows from it"
        if self.state == 0:
            return "0 throughout: no input changes a later output, nothing of the past is kept"
        if self.state is not None:
            return (
                f"flat at {most} from k = {self.reached} on, as with a state of that many numbers "
                f"(seen up to k = {n}{f' and at k = {self.far[0]}' if self.far else ''})"
            )
        if self.far is not None and self.settled and self.steady and self.flat:
            return f"{most} up to k = {n}, but {self.far[1]} at k = {self.far[0]}: no conclusion"
        if len(set(tail)) > 1 and self.steady:
            return (
                f"between {min(tail)} and {most} from k = {self.reached} to {n}, without settling: "
                "no conclusion"
            )
        if not self.settled and self.flat:
            return (
                f"at least {most}, the same from k = {self.reached} to {n}; rounding hides whether "
                "more is kept, so no conclusion"
            )
        if not self.settled:
            return (
                f"still growing at k = {n} as far as rounding lets us see: at least {most}, no "
                "conclusion"
            )
        if self.everything:
            return f"still growing at k = {n}, {self.width} per token: nothing is forgotten so far"
        if not self.steady:
            return f"still changing at k = {n}, at most {most}, from input to input: no conclusion"
        return (
            f"still growing at k = {n}, where it is {most}, reached at k = {self.reached} and not "
            "seen to stay for as long: no conclusion"
        )

    def how(self) -> str:
        """Which ranks were measured; the others were not."""
        at = [k for k in self.measured if k > 1]
        far = [] if self.far is None else [self.far[0]]
        if not at or len(at) >= self.n - 1:
            return "all measured"
        return f"measured at k = {', '.join(map(str, at + far))}, filled in between"

    def spelled(self) -> str:
        """All ranks in short form: runs of equal ranks, and of evenly rising ones, are joined.

        >>> CausalRank(16, (0, 16, 32, 48, 64, 64, 64), 14, "float64").spelled()
        '0, 16, … 48 from k = 1 to 4, 64 from k = 5 to 7'
        """
        parts: list[str] = []
        single: list[int] = []  # k whose rank differs from both neighbours'
        for rank, group in groupby(range(1, self.n + 1), key=lambda k: self.ranks[k - 1]):
            same = list(group)
            if len(same) == 1:
                single += same
            else:
                parts += [*self._rising(single), f"{rank} from k = {same[0]} to {same[-1]}"]
                single = []
        return ", ".join(parts + self._rising(single))

    def _rising(self, single: list[int]) -> list[str]:
        ranks = [self.ranks[k - 1] for k in single]
        if len(ranks) > 3 and len({b - a for a, b in pairwise(ranks)}) == 1:
            return [f"{ranks[0]}, {ranks[1]}, … {ranks[-1]} from k = {single[0]} to {single[-1]}"]
        return [f"{rank} at k = {k}" for k, rank in zip(single, ranks, strict=True)]


@dataclass
class _Search:
    """The ranks at one point, for a growing set of k."""

    point: Point
    moved: Point
    width: int
    n_tokens: int | None
    found: dict[int, Spectrum] = field(default_factory=dict)
    spent: int = 0

    def measure(self, k: int, n: int, point: Point | None = None) -> int:
        """The rank at k, with n tokens from k on, or as many as `n_tokens` leaves."""
        most = max(spectrum.rank for spectrum in self.found.values())
        expected = min((k - 1) * self.width, most + self.width * (k > max(self.found)))
        later = n if self.n_tokens is None else self.n_tokens - k + 1
        spectrum = (point or self.point).spectrum(k, later, expected)
        if spectrum is None:
            raise FloatingPointError
        self.spent += len(spectrum.values) * (k + later)
        if k not in self.found or spectrum.rank > self.found[k].rank:
            self.found[k] = spectrum
        return self.found[k].rank

    def profile(self, n: int) -> list[int]:
        """The ranks at k = 1 … n, derived from those at some k."""
        # If the last rank is not settled, no conclusion depends on the earlier ones.
        self.spent = 0 if self.found[n].settled else 3 * _LARGEST // 4
        rank = self.found[n].rank
        # Where a rank that grows by the width, as most do, reaches that of n.
        knee = -(-rank // self.width) + 1
        for k in (knee, knee - 1):
            full = rank == (knee - 1) * self.width and self._rank(knee) == rank
            if 1 < k < n and k not in self.found and not full:
                self.measure(k, n)
        ranks: list[int] = [0] * n
        for a, b in pairwise([1, *sorted(k for k in self.found if 1 < k <= n)]):
            self._between(a, b, n, ranks)
        return ranks

    def _rank(self, k: int) -> int:
        return self.found[k].rank if k in self.found else 0

    def _between(self, a: int, b: int, n: int, ranks: list[int]) -> None:
        first, last = self._rank(a), self._rank(b)
        step, rest = divmod(last - first, b - a)
        ranks[a - 1], ranks[b - 1] = first, last
        if b - a == 1 or step == self.width or self.spent > _LARGEST:
            for k in range(a + 1, b):
                ranks[k - 1] = first + (k - a) * (step if step == self.width else 0)
            return
        count = max(1, _CHECKS // (3 * (first + 16))) if first == last else 1
        # Not evenly spaced: a layer may reset at regular intervals.
        even = [a + (b - a) * j // (count + 1) for j in range(1, count + 1)]
        tried = sorted({k + j % 2 for j, k in enumerate(even)} - {a, b}) or [a + 1]
        for j, k in enumerate(tried):
            if j or self.measure(k, n, self.moved) < first:  # the first one at the moved weights
                self.measure(k, n)
        if not rest and all(self._rank(k) == first + (k - a) * step for k in tried):
            for k in range(a + 1, b):
                ranks[k - 1] = first + (k - a) * step
            return
        for low, high in pairwise([a, *tried, b]):
            self._between(low, high, n, ranks)


def causal_rank(layer: nn.Module, width: int, n: int, n_tokens: int | None = None) -> CausalRank:
    """The causal rank of a layer at k = 1 … n, and beyond if it has not settled by then.

    Two of three points are at the layer's own weights. The layer is in float64; one that computes
    in float32 gives a less sharp rank. Given `n_tokens`, the layer sees that many and k ends at n.

    >>> class Gru(nn.GRU):
    ...     def forward(self, x):
    ...         return super().forward(x)[0]
    >>> causal_rank(Gru(2, 2, batch_first=True).double(), width=2, n=6).ranks
    (0, 2, 2, 2, 2, 2)
    """
    generator = torch.Generator().manual_seed(0)
    like = next(layer.parameters(), torch.zeros(0, dtype=torch.float64))
    n = max(n, 2)
    later = n if n_tokens is None else n_tokens - n + 1
    seen: list[Response] = []
    looked: list[tuple[Point, Spectrum]] = []

    def drawn(tokens: int) -> Tensor:
        x = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
        return x.to(like)

    weights = moved_weights(layer, generator)
    moved = Point(layer, drawn(_LONGEST), 0, weights)
    own = [Point(layer, drawn(_LONGEST), seed) for seed in (1, 2)]
    for point in [*own, moved]:
        x = torch.cat([point.past[: n - 1], drawn(later)])
        most = max((spectrum.rank for _, spectrum in looked), default=0)
        if most < (n - 1) * width:  # otherwise no point can show more
            spectrum = point.spectrum(n, later, most or width)
            if spectrum is None:  # moved to where the layer is not defined
                continue
            looked.append((point, spectrum))
        seen.append(response(point, x, drawn(len(x)), n))
    name = str(like.dtype).removeprefix("torch.")
    tokens = n_tokens or 2 * n - 1
    if not looked:
        fault = "its derivative is not finite at random inputs"
        return CausalRank(width, (0,) * n, tokens, name, fault)
    best, spectrum = max(looked, key=lambda pair: (pair[1].rank, pair[1].settled))
    at_own = {found.rank for point, found in looked if point is not moved and found.settled}
    search = _Search(best, moved, width, n_tokens, {n: spectrum})
    found = _grown(search, n, name, _fault(seen, spectrum.rank), len(at_own) < 2)
    return _seen_far(search, found, n)


def _seen_far(search: _Search, found: CausalRank, n: int) -> CausalRank:
    """A rank that has settled, measured at a late k too, where that is affordable."""
    state = found.state
    if not state or found.n >= _FAR or search.n_tokens or (state + 16) * (_FAR + n) > _LARGEST:
        return found
    try:
        rank = search.measure(_FAR, n)
    except (FloatingPointError, *FAILURES):  # a layer made for shorter inputs
        return found
    # Fewer: the point is not generic, or has faded. More, but not clearly: rounding over so many.
    if rank < state or (rank > state and not search.found[_FAR].settled):
        return found
    return replace(found, far=(_FAR, rank))


def _grown(search: _Search, n: int, dtype: str, fault: str | None, steady: bool) -> CausalRank:
    """The ranks up to n, or beyond if that may show more and the layer allows it."""
    start = n
    while True:
        try:
            ranks = search.profile(n)
        except FloatingPointError:
            ranks, steady = [0] * (n - 1) + [search.found[n].rank], False
        measured = tuple(sorted(k for k in search.found if k <= n))
        most = max(ranks)
        reached = ranks.index(most) + 1
        # At k = n and at most of the others: a rank that has just been reached is partly faint.
        clear = [search.found[k].settled for k in measured if k >= reached]
        settled = clear[-1] and 2 * sum(clear) > len(clear)
        tokens = search.n_tokens or 2 * n - 1
        found = CausalRank(
            search.width,
            tuple(ranks),
            tokens,
            dtype,
            fault,
            settled,
            steady,
            measured,
            search.found[n].values,
        )
        further = 2 * reached if reached < n and settled else 2 * n + 4
        rows = most + search.width if reached < n else (further - 1) * search.width
        if (
            fault is not None
            or search.n_tokens is not None
            or found.state is not None
            or not steady
            or (not settled and n > start)
            or rows * 2 * further > _LARGEST
            or not n < further <= min(4 * start, _LONGEST)
        ):
            return found
        try:
            search.measure(further, further)
        except (FloatingPointError, *FAILURES):  # a layer made for shorter inputs
            return found
        n = further


def _fault(seen: list[Response], most: int) -> str | None:
    """How the derivative fails to describe the layer, if it was seen to."""
    if most == 0 and any(found.moves for found in seen):
        return "earlier inputs change later outputs although the derivative is 0"
    if any(found.jumps for found in seen):
        return "later outputs jump as earlier inputs move, which the derivative does not show"
    if any(found.strays for found in seen):
        return "later outputs do not change as the derivative says"
    return None


def moved_weights(layer: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """The weights with noise added: a quarter of the scale that keeps outputs near 1."""
    weights = {}
    for name, value in layer.named_parameters():
        scale = 0.25 * (value.shape[-1] ** -0.5 if value.dim() > 1 else 1.0)
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        weights[name] = value.detach() + (scale * noise).to(value.device, value.dtype)
    return weights
