"""The inputs of a check: each row has a seed, and the text that draws it is what a finding prints.

A row is an input x of T tokens, a cut, and the tokens that replace those of x from the cut on.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from types import CodeType

import torch
from torch import Tensor

_NORMAL = "torch.randn(T, D, generator=g, dtype=torch.float64)"
_SIZES = "torch.rand(T, 1, generator=g, dtype=torch.float64)"

# Kinds of input, and of what its later tokens become: a name and the expression that draws it.
BASES: tuple[tuple[str, str], ...] = (
    ("ordinary", _NORMAL),
    ("of sizes from 1 to 10", f"{_NORMAL} * 10 ** {_SIZES}"),
    ("positive", f"{_NORMAL}.abs()"),
)
FUTURES: tuple[tuple[str, str], ...] = (
    ("ordinary", _NORMAL),
    ("of sizes from 1 to 30", f"{_NORMAL} * 30 ** {_SIZES}"),
    (
        "with single numbers 30 larger",
        f"{_NORMAL} + 30 * (torch.rand(T, D, generator=g) < 0.05)",
    ),
    ("30 times as large", f"30 * {_NORMAL}"),
    ("30 times as large, positive", f"30 * {_NORMAL}.abs()"),
    ("30 times as large, negative", f"-30 * {_NORMAL}.abs()"),
    ("1000 times smaller", f"{_NORMAL} / 1000"),
    ("of signs", f"{_NORMAL}.sign()"),
    ("zero", "torch.zeros(T, D, dtype=torch.float64)"),
    ("copies of token 1", "x[:1].repeat(T, 1)"),
    ("copies of earlier tokens", "x.flip(0)"),
    ("of the other sign", "-x"),
    ("changed in the last token alone", f"torch.cat([x[:-1], {_NORMAL}[-1:]])"),
    (
        "changed in the first token alone",
        f"torch.cat([x[:cut], {_NORMAL}[:1], x[cut + 1:]])",
    ),
)
VAST = ("1000 times as large", f"1000 * {_NORMAL}")


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<input>", "eval")


def seed_of(*parts: object) -> int:
    """A seed for each place in a check: the same wherever and whenever it is tried."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Drawing:
    """One row: how x and its other future are drawn."""

    length: int
    width: int
    cut: int
    base_seed: int
    future_seed: int
    base: str = BASES[0][1]
    future: str = FUTURES[0][1]
    kind: str = FUTURES[0][0]
    later: int | None = None  # the one token (from 0) that is replaced, if not all from the cut on

    def x(self) -> Tensor:
        """The input, (token, dim), in float64."""
        return self._drawn(self.base, self.base_seed, torch.empty(0))

    def other(self, x: Tensor) -> Tensor:
        """What later tokens are replaced by."""
        drawn = self._drawn(self.future, self.future_seed, x)
        if self.later is None:
            return drawn
        y = x.clone()
        y[self.later] = drawn[self.later]
        return y

    def _drawn(self, expression: str, seed: int, x: Tensor) -> Tensor:
        names = {
            "torch": torch,
            "g": torch.Generator().manual_seed(seed),
            **{"T": self.length, "D": self.width, "cut": self.cut, "x": x},
        }
        drawn: Tensor = eval(_compiled(expression), names)
        return drawn

    def lines(self) -> tuple[str, ...]:
        """Python that draws x and y; T and D are known."""
        change = (
            "y = torch.cat([x[:cut], y[cut:]])"
            if self.later is None
            else f"y = torch.cat([x[:{self.later}], y[{self.later}:{self.later + 1}], "
            f"x[{self.later + 1}:]])"
        )
        return (
            f"cut = {self.cut}",
            f"g = torch.Generator().manual_seed({self.base_seed})",
            f"x = {self.base}",
            f"g = torch.Generator().manual_seed({self.future_seed})",
            f"y = {self.future}",
            change,
        )


def drawn(seed: int, *shape: int) -> Tensor:
    """Ordinary inputs in float64."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)
