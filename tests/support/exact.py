"""The margin of a trained model on one input, in arb balls of 600 bits and by the book.

It is the truth that the fuzz harness compares bounds with, so it shares no code with them: one
input at a time, no sets, no error terms but those of the balls. What a token holds after layer 1 is
kept for the tokens that it sees, since many inputs share it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx, fmpq

from ithbit.families import FAMILIES
from ithbit.spec import ModelSpec

PRECISION = 600
Vector = list[Any]  # of arb


class Exact:
    """One model; `margin` is its logit with the sign of the right answer."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, np.ndarray]) -> None:
        self.spec, family = spec, FAMILIES[spec.family]
        self.softmax, self.causal = family.kind == "softmax", family.causal
        self.kept: dict[Any, Vector] = {}
        with ctx.workprec(PRECISION):
            self.eps = arb(fmpq(1, 10**12) if self.softmax else fmpq(1, 10**5))
            self.p = {name: arb_mat(np.atleast_2d(v).tolist()) for name, v in params.items()}
            self.root = arb(2).rsqrt()

    def margin(self, index: int, bits: list[int]) -> Any:
        """The margin of a string at an index from 0, as a ball."""
        with ctx.workprec(PRECISION):
            if self.spec.task == "rhi":
                tokens = [("bit", bit, t) for t, bit in enumerate(bits)]
                tokens.append(("query", index, len(bits)))
            else:
                tokens = [("query", index, 0)]
                tokens += [("bit", bit, t + 1) for t, bit in enumerate(bits)]
                tokens.append(("end", 0, len(bits) + 1))
            if self.spec.n_layers == 1:
                last = self._first(tokens, len(tokens) - 1)
            else:
                states = [self._first(tokens, t) for t in range(len(tokens))]
                projected = [self._projected(x, "blocks.1.") for x in states]
                last = self._block(states[-1], projected[-1], projected, "blocks.1.")
            logit = self._linear(last, "head")[0]
            return logit if bits[index] else -logit

    def _first(self, tokens: list[Any], t: int) -> Vector:
        """Token t after layer 1."""
        seen = tuple(tokens[: t + 1] if self.causal else tokens)
        if (tokens[t], seen) not in self.kept:
            own, others = self._token(tokens[t]), [self._token(u) for u in seen]
            qkv = [x[1] for x in others]
            self.kept[tokens[t], seen] = self._block(own[0], own[1], qkv, "blocks.0.")
        return self.kept[tokens[t], seen]

    def _token(self, token: Any) -> Any:
        """A token before layer 1, and its query, key and value there."""
        if token not in self.kept:
            kind, value, t = token
            n = self.spec.n_bits
            length = n + (1 if self.spec.task == "rhi" else 2)
            part, place = arb(fmpq(value, n)), arb(fmpq(t, length - 1))
            features = {
                "bit": [1, 0, 0, value, 0, 0],
                "query": [0, 1, 0, 0, part, part * part],
                "end": [0, 0, 1, 0, 0, 0],
            }[kind]
            x = self.p["embed"] * arb_mat([[each] for each in features])
            x += self.p["positions.polynomial"] * arb_mat([[place], [place * place]])
            if self.softmax:
                x += self.p["enter.type"].transpose()
            row = [x[r, 0] for r in range(x.nrows())]
            row = self._norm(row, "enter.norm") if self.softmax else row
            self.kept[token] = [row, self._projected(row, "blocks.0.")]
        return self.kept[token]

    def _projected(self, x: Vector, block: str) -> list[Vector]:
        """Query, key and value of a token; for linear attention, features of the first two."""
        d = self.spec.d_model
        inner = x if self.softmax else self._norm(x, f"{block}norm1")
        qkv = self._linear(inner, f"{block}qkv")
        q, k, v = (qkv[a : a + d] for a in (0, d, 2 * d))
        return [q, k, v] if self.softmax else [_features(q), _features(k), v]

    def _block(self, x: Vector, own: list[Vector], seen: list[list[Vector]], block: str) -> Vector:
        """A block at one token, from the queries, keys and values of what it sees."""
        size, mixed = self.spec.d_head, []
        for h in range(self.spec.n_heads):
            at = slice(h * size, (h + 1) * size)
            weights = [_dot(own[0][at], k[at]) for _, k, _ in seen]
            total = arb(0)
            if self.softmax:
                scores = [w * arb(size).rsqrt() for w in weights]
                top = max(s.mid() for s in scores)
                weights = [(s - top).exp() for s in scores]
            else:
                total = arb(fmpq(1, 10**6))
            total = sum(weights, total)
            values = zip(*(v[at] for _, _, v in seen), strict=True)
            mixed += [_dot(weights, column) / total for column in values]
        x = _add(x, self._linear(mixed, f"{block}out"))
        x = self._norm(x, f"{block}norm1") if self.softmax else x
        inner = x if self.softmax else self._norm(x, f"{block}norm2")
        up = self._linear(inner, f"{block}up")
        hidden = [v * (1 + (v * self.root).erf()) / 2 for v in up]
        x = _add(x, self._linear(hidden, f"{block}down"))
        return self._norm(x, f"{block}norm2") if self.softmax else x

    def _linear(self, x: Vector, name: str) -> Vector:
        y = self.p[f"{name}.weight"] * arb_mat([[each] for each in x])
        if f"{name}.bias" in self.p:
            y += self.p[f"{name}.bias"].transpose()
        return [y[r, 0] for r in range(y.nrows())]

    def _norm(self, x: Vector, name: str) -> Vector:
        gain, bias = (self.p[f"{name}.{each}"] for each in ("weight", "bias"))
        mean = sum(x, arb(0)) / len(x)
        x = [v - mean for v in x]
        scale = (_dot(x, x) / len(x) + self.eps).rsqrt()
        return [v * scale * gain[0, r] + bias[0, r] for r, v in enumerate(x)]


def _dot(a: Any, b: Any) -> Any:
    return sum((x * y for x, y in zip(a, b, strict=True)), arb(0))


def _add(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def _features(x: Vector) -> Vector:
    """ELU + 1."""
    return [v + 1 if v > 0 else v.exp() if v <= 0 else v.exp().union(v + 1) for v in x]
