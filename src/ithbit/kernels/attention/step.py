"""Softmax and linear attention, full and causal: their launches, 6 L + 2 or 5 L + 3 per step with
the optimiser's.

Work on each token separately goes over the tokens of a run in flat tiles of rows (`token_rows.py`);
mixing goes over sequences (`softmax_mix.py`, `linear_mix.py`, and at the last token
`last_token.py`); queries, keys, values and mixed values pass between them in memory.

Exact savings: the answer is read at the last token, so the last block has one query per sequence
and its feed-forward part sees one row per sequence (`answer_rows`, which also has the head, the
loss and their backward pass). Below the first mixing the backward pass goes over the few kinds of
tokens (`token_kinds.py`, `first_block.py`). Blocks keep their input (for softmax attention, from
the second block on, also before its LayerNorm), queries, keys, values and mixed values; the rest is
recomputed in the backward pass.
"""

from functools import cached_property

import triton
from torch import Tensor

from ithbit.families import family_named
from ithbit.kernels import token_kinds
from ithbit.kernels.attention import first_block, last_token, linear_mix, softmax_mix, token_rows
from ithbit.kernels.attention.block import AttentionShape
from ithbit.kernels.plan import Launches, LaunchPlan, shared_out
from ithbit.layouts import layout_of

_ROWS = 32  # tokens of a flat tile
_BACK_ROWS = 64
_PROJECT_ROWS = 16  # of 8 numbers or more; more rows if tokens are narrower
# Most programs per run in the backward pass over its tokens (or their kinds): so that those of five
# runs run at once (eight one-warp programs per multiprocessor), or take one tile each.
_PROJECT_PROGRAMS = 211
_BACK_PROGRAMS = 264
_TALLIED = 128  # examples of a tile of `tally`, 64 per warp
_KIND_ROWS = 16  # of a tile of kinds of tokens, as few as a product takes
_ANSWERS = 16  # examples of a tile of `answer_rows`
_LANE_NUMBERS = 40  # of each row that a lane of softmax attention's mixing keeps: five short heads
_LEAST_KEPT = 4  # a shorter head counts as 4 there, which limits the code to ten heads
_READ_TOKENS = 128  # tokens, padding included, of a tile of `read`
_READ_WHOLE = 130  # longest sequence, in tokens, that it takes at once
_READ_NUMBERS = 8192  # in a tile (head token D) of `read_long`
# Compiler options of each kernel: chosen by times on an H200, for `answer_rows` by instructions.
_FLAT: dict[str, int] = {"num_warps": 2}
_BACK: dict[str, int] = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}
_PROJECT_BACK: dict[str, int] = {"num_warps": 1, "num_stages": 1}
_TALLY: dict[str, int] = {"num_warps": 2}
_KINDS: dict[str, int] = {"num_warps": 2, "num_stages": 1}
_LINEAR_MIX: dict[str, int] = {"num_warps": 1, "maxnreg": 168}
_READ: dict[str, int] = {"num_warps": 4}
_ANSWER: dict[str, int] = {"num_warps": 2}


def _back_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """`shared_out` for `block_end_back`."""
    return shared_out(triton.cdiv(plan.capacity * plan.n_tokens, _BACK_ROWS), _BACK_PROGRAMS)


def _project_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """`shared_out` for `project_back`."""
    tiles = triton.cdiv(plan.capacity * plan.n_tokens, _project_rows(plan))
    return shared_out(tiles, _PROJECT_PROGRAMS)


def _project_rows(plan: LaunchPlan) -> int:
    return _PROJECT_ROWS * max(1, 8 // plan.model.d_model)


def _kind_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """`shared_out` for `tokens_back`."""
    return shared_out(token_kinds.tiles(plan, _KIND_ROWS), _PROJECT_PROGRAMS)


class AttentionLaunches(Launches):
    """The launches of a stack of softmax or linear attention models."""

    @staticmethod
    def shares(plan: LaunchPlan, name: str) -> int:
        last = f"blocks.{plan.model.n_layers - 1}."
        projected = ".qkv." in name
        if family_named(plan.model.family).kind != "softmax":
            projected |= ".norm1." in name
        if name.startswith("head.") or (name.startswith(last) and not projected):
            return triton.cdiv(plan.capacity, _ANSWERS)
        if not name.startswith("blocks.") or (name.startswith("blocks.0.") and projected):
            return _kind_tiles(plan)[0]
        return _project_tiles(plan)[0] if projected else _back_tiles(plan)[0]

    def run(self, results: Tensor, partials: Tensor | None) -> None:
        self._enter()
        for layer in range(self.last):
            self._mix(layer)
            self._block_end(layer)
        self._read()
        self._answer(results, partials)
        if partials is not None:
            self._read_back()
            for layer in range(self.last, 0, -1):
                self._project_back(layer, partials)
                self._block_end_back(layer - 1, partials)
                self._mix_back(layer - 1)
            self._tokens_back(partials)

    @property
    def last(self) -> int:
        """The last layer."""
        return self.plan.model.n_layers - 1

    @cached_property
    def shape(self) -> AttentionShape:
        model = self.plan.model
        softmax = family_named(model.family).kind == "softmax"
        return AttentionShape(
            D=model.d_model,
            FF=model.d_ff,
            H=model.n_heads,
            SOFTMAX=softmax,
            SCALE=model.d_head**-0.5,
            EPS=layout_of(model.family).norm_eps,
            ENCODING=model.positions,
            AT=tuple(self.plan.in_block.items()),
        )

    def rows(self, name: str) -> Tensor:
        """(seed, example, token, D)."""
        return self.plan.rows(name, self.plan.model.d_model)

    def ones(self, name: str) -> Tensor:
        """(seed, example, D): for the last token."""
        return self.plan.buffer(name, self.plan.capacity, self.plan.model.d_model)

    def qkv(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        q = self.ones("last_q") if layer == self.last else self.rows(f"q{layer}")
        return q, self.rows(f"k{layer}"), self.rows(f"v{layer}")

    def d_qkv(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        dq = self.ones("last_dq") if layer == self.last else self.rows("dq")
        return dq, self.rows("dk"), self.rows("dv")

    def sums(self, layer: int) -> Tensor:
        """What `mix` keeps of the weights' sums for `mix_back`; at most seed example token D."""
        return self.rows(f"sums{layer}")

    def raw(self, layer: int) -> Tensor:
        """A block's input, before the LayerNorm that softmax attention has there."""
        return self.rows(f"raw{layer}" if self.shape.SOFTMAX else f"x{layer}")

    @property
    def bits(self) -> Tensor:
        """(seed, token, example): a token's bits, which are read together, lie together."""
        return self.plan.buffer("bits", self.plan.n_tokens, self.plan.capacity)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.plan.capacity, self.plan.n_parameters

    @property
    def positions(self) -> tuple[int, int]:
        """Where the encoding's and softmax attention's entering parameters start, if any."""
        return self.plan.encoding, self.plan.offsets.get("enter.type", 0)

    @property
    def row_tiles(self) -> tuple[int, int]:
        """The grid of a forward launch on all rows."""
        return self.grid(triton.cdiv(self.plan.capacity * self.plan.n_tokens, _ROWS))

    def _enter(self) -> None:
        token_rows.enter_rows[self.row_tiles](
            self.values, self.keys, self.first, self.count,
            self.bits, self.rows("x0"), *self.qkv(0), self.plan.waves,
            self.plan.block(0), *self.positions, *self.sizes, **self.plan.draws,
            ROWS=_ROWS, LAST=self.last == 0, CUTS=self.cuts, K=self.shape, **_FLAT,
        )  # fmt: skip

    def _mix(self, layer: int) -> None:
        grid, constants = self._mix_shape()
        kernel = softmax_mix.mix if self.shape.SOFTMAX else linear_mix.mix
        kernel[grid](
            *self.qkv(layer), self.rows(f"mixed{layer}"), self.sums(layer),
            self.count, self.plan.capacity, **constants,
        )  # fmt: skip

    def _mix_back(self, layer: int) -> None:
        grid, constants = self._mix_shape()
        q, k, v = self.qkv(layer)
        mixed, sums, grad = self.rows(f"mixed{layer}"), self.sums(layer), self.rows("d_mixed")
        dq, dk, dv = self.d_qkv(layer)
        sizes = self.count, self.plan.capacity
        if self.shape.SOFTMAX:
            softmax_mix.queries_back[grid](q, k, v, mixed, sums, grad, dq, *sizes, **constants)
            softmax_mix.keys_back[grid](q, k, v, sums, grad, dk, dv, *sizes, **constants)
        else:
            linear_mix.mix_back[grid](
                q, k, v, mixed, sums, grad, dq, dk, dv, *sizes, **constants
            )  # fmt: skip

    def _mix_shape(self) -> tuple[tuple[int, int], dict[str, object]]:
        """Grid and constants: lanes for softmax attention, otherwise one warp per sequence."""
        plan, model = self.plan, self.plan.model
        causal = family_named(model.family).causal
        constants: dict[str, object] = {
            "TOKENS": plan.n_tokens, "D": model.d_model, "H": model.n_heads, "CAUSAL": causal,
        }  # fmt: skip
        if not self.shape.SOFTMAX:
            return self.grid(plan.capacity), {**constants, **_LINEAR_MIX}
        lots = triton.cdiv(plan.n_tokens, softmax_mix.SLOTS.value)
        groups = triton.cdiv(lots, max(1, _LANE_NUMBERS // max(model.d_head, _LEAST_KEPT)))
        constants |= {"SCALE": self.shape.SCALE, "PARTS": triton.cdiv(lots, groups)}
        warps = max(1, model.n_heads * softmax_mix.SLOTS.value // 32)
        return self.grid(plan.capacity * groups), {**constants, "num_warps": warps}

    def _block_end(self, layer: int) -> None:
        plan, after = self.plan, layer + 1
        token_rows.block_end[self.row_tiles](
            self.values, self.count, self.rows(f"x{layer}"), self.rows(f"mixed{layer}"),
            self.raw(after), self.rows(f"x{after}"), *self.qkv(after), plan.waves,
            plan.block(layer), plan.block(after), *self.sizes, TOKENS=plan.n_tokens,
            ROWS=_ROWS, LAST=after == self.last, K=self.shape, **_FLAT,
        )  # fmt: skip

    def _read(self) -> None:
        grid, constants = self._read_shape()
        kernel = last_token.read_long if self._long else last_token.read
        kernel[grid](
            *self.qkv(self.last), self.ones("last_mixed"), self.count, self.plan.capacity,
            **constants,
        )  # fmt: skip

    def _read_back(self) -> None:
        grid, constants = self._read_shape()
        kernel = last_token.read_long_back if self._long else last_token.read_back
        kernel[grid](
            *self.qkv(self.last), self.ones("last_mixed"), self.ones("d_last_mixed"),
            *self.d_qkv(self.last), self.count, self.plan.capacity, **constants,
        )  # fmt: skip

    @property
    def _long(self) -> bool:
        """Whether a sequence is too long for `read` to take whole."""
        return self.plan.n_tokens > _READ_WHOLE

    def _read_shape(self) -> tuple[tuple[int, int], dict[str, object]]:
        plan = self.plan
        pad = triton.next_power_of_2(plan.n_tokens)
        if self._long:
            pad = min(256, max(16, _READ_NUMBERS // (plan.model.d_model * plan.model.n_heads)))
        group = max(1, _READ_TOKENS // pad) if not self._long else 1
        constants = {"TOKENS": plan.n_tokens, "PAD": pad, "GROUP": group, "K": self.shape, **_READ}
        return self.grid(triton.cdiv(plan.capacity, group)), constants

    def _answer(self, results: Tensor, partials: Tensor | None) -> None:
        """The end of the last block; with `partials` also its backward pass."""
        plan = self.plan
        shares = results if partials is None else partials
        token_rows.answer_rows[self.grid(triton.cdiv(plan.capacity, _ANSWERS))](
            self.values, self.keys, self.first, self.count,
            self.rows(f"x{self.last}"), self.ones("last_mixed"), self.ones("d_last_mixed"),
            self.ones("last_dx"), results, shares,
            plan.block(self.last), plan.offsets["head.weight"], shares.shape[1], *self.sizes,
            N=plan.model.n_bits, TOKENS=plan.n_tokens, WORDS=plan.draws["WORDS"], ROWS=_ANSWERS,
            TRAIN=partials is not None, CUTS=self.cuts, K=self.shape, **_ANSWER,
        )  # fmt: skip

    def _block_end_back(self, layer: int, partials: Tensor) -> None:
        plan = self.plan
        n_programs, each = _back_tiles(plan)
        token_rows.block_end_back[self.grid(n_programs)](
            self.values, self.count, self.rows(f"x{layer}"), self.rows(f"mixed{layer}"),
            self.raw(layer + 1), self.rows("dx"), self.rows("d_mixed"), partials,
            plan.block(layer), partials.shape[1], *self.sizes, TOKENS=plan.n_tokens,
            ROWS=_BACK_ROWS, TILES=each, K=self.shape, **_BACK,
        )  # fmt: skip

    def _project_back(self, layer: int, partials: Tensor) -> None:
        plan = self.plan
        n_programs, each = _project_tiles(plan)
        q, k, _ = self.qkv(layer)
        token_rows.project_back[self.grid(n_programs)](
            self.values, self.count, self.rows(f"x{layer}"), self.rows("dx"),
            self.ones("last_dx"), *self.d_qkv(layer), q, k, plan.waves, partials,
            plan.block(layer), partials.shape[1], *self.sizes, TOKENS=plan.n_tokens,
            ROWS=_project_rows(plan), TILES=each, LAST=layer == self.last, K=self.shape,
            **_PROJECT_BACK,
        )  # fmt: skip

    def _tokens_back(self, partials: Tensor) -> None:
        """From the first mixing back to the embedding."""
        plan, d, only = self.plan, self.plan.model.d_model, self.last == 0
        grads = *self.d_qkv(0), self.ones("last_dx") if only else self.rows("dx")
        sums = plan.buffer("sums by kind", len(grads), 2, plan.n_tokens, d)
        parts = len(grads) * max(1, d // first_block.COLUMNS.value)
        first_block.tally[self.grid((plan.n_tokens - 1) * parts)](
            self.count, self.bits, *grads, sums, plan.capacity,
            N=plan.model.n_bits, LHI=plan.draws["LHI"], ROWS=_TALLIED,
            TILES=triton.cdiv(plan.capacity, _TALLIED), D=d, LAST=only, **_TALLY,
        )  # fmt: skip
        n_programs, each = _kind_tiles(plan)
        first_block.tokens_back[self.grid(n_programs)](
            self.values, self.keys, self.first, self.count, *grads, sums, plan.waves,
            partials, plan.block(0), *self.positions, partials.shape[1], *self.sizes,
            **self.plan.draws, ROWS=_KIND_ROWS, TILES=each, LAST=only, K=self.shape, **_KINDS,
        )  # fmt: skip
