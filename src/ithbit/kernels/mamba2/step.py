"""The training step of Mamba2: its launches, from the token features to the shares of the gradient.

Forward, a block is two launches: the work on each token separately (`token_rows.py`), with the
output of the block before, and the mixing of tokens (`mix.py`). The last mixing includes the loss
and its own backward pass; backward, a block is the same two launches. The convolution shifts rows,
which cannot be done in registers, so it sits between the two. Exact savings: the last block mixes
only into the last token (`last_block.py`), so its gates have gradients only there and its Cs only
in the last three; all other mixing goes through states, with token-by-token matrices of at most 16
tokens, which stay in registers and are recomputed in the backward pass; and the backward pass from
the first mixing to the embedding goes over the few kinds of tokens (`token_kinds.py`,
`first_block.py`).
"""

from functools import cached_property

import triton
from torch import Tensor

from ithbit.kernels import token_kinds
from ithbit.kernels.mamba2 import first_block, last_block, mix, token_rows
from ithbit.kernels.mamba2.tile import TAPS, Mamba2Shape
from ithbit.kernels.plan import Launches, LaunchPlan, shared_out
from ithbit.kernels.tile import CHUNK, alone, chunks_of

_ROWS, ROW_WARPS = 64, 4  # of a tile of a launch on rows
_BACK_ROWS, BACK_WARPS = 32, 1  # the same, backward
_TALLIED, TALLY_WARPS = 64, 1  # examples of a tile of `tally`
_KIND_ROWS, KIND_WARPS = 16, 2  # of a tile of kinds of tokens, as few as a product takes
MIX_WARPS = 1  # per sequence: small products then need no barriers
FINISH_WARPS = 2  # of the last block's mixing with 64 rows of bits; twice as many with 128
# Registers per thread. A multiprocessor has four register files of 16384, and a warp uses one of
# them: 168 leave room for three warps in each, more than that for two. These kernels wait more than
# they issue. A mixing kernel gains more from the third warp, with which a stack of five runs fits
# at once, than the spills cost; kernels on rows spill more and do better with two.
MIX_REGISTERS, ROW_REGISTERS = 168, 255
_REGISTERS = 65536 // 32  # the most that all warps of a program can have together, per lane
# Most shares of a run's gradient; programs take several tiles if there are more.
MAX_PROGRAMS = 256
# The same for one-warp programs on rows: those of five runs fit on the machine at once.
MAX_BACK_PROGRAMS = 211
_MIN_ROWS = 64  # bits of a tile of the last block's mixing


def _mix_tiles(plan: LaunchPlan) -> tuple[int, int, int, int]:
    """`shared_out` for the last block's mixing; then sequences per tile, and rows of each."""
    span = max(8, triton.next_power_of_2(plan.model.n_bits))
    group = max(1, _MIN_ROWS // span)
    return *shared_out(triton.cdiv(plan.capacity, group), MAX_PROGRAMS), group, span


def _back_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """`shared_out` for a launch on rows."""
    return shared_out(triton.cdiv(plan.capacity * plan.n_tokens, _BACK_ROWS), MAX_BACK_PROGRAMS)


def _kind_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """`shared_out` for the launch on kinds of tokens."""
    return shared_out(token_kinds.tiles(plan, _KIND_ROWS), MAX_PROGRAMS)


class Mamba2Launches(Launches):
    """The launches of a stack of Mamba2 models."""

    @staticmethod
    def shares(plan: LaunchPlan, name: str) -> int:
        last = f"blocks.{plan.model.n_layers - 1}."
        after_mixing = name.endswith((".gate_norm.weight", ".out.weight"))
        if name.startswith(("leave.", "head.")) or (after_mixing and name.startswith(last)):
            return _mix_tiles(plan)[0]
        if not name.startswith("blocks.") or (name.startswith("blocks.0.") and not after_mixing):
            return _kind_tiles(plan)[0]
        return _back_tiles(plan)[0]

    def run(self, results: Tensor, partials: Tensor | None) -> None:
        for layer in range(self.plan.model.n_layers):
            if layer > 0:
                self._mix(layer - 1)
            self._project(layer)
        self._finish(results, partials)
        if partials is not None:
            for layer in reversed(range(1, self.plan.model.n_layers)):
                self._project_back(layer, partials)
                self._mix_back(layer - 1)
            self._tokens_back(partials)

    @cached_property
    def shape(self) -> Mamba2Shape:
        """What the kernels are compiled for."""
        plan, model, at = self.plan, self.plan.model, self.plan.in_block
        _, mix_tiles, group, span = _mix_tiles(plan)
        conv = model.d_model + 2 * model.d_state
        single, chunks = alone(plan.n_tokens), chunks_of(plan.n_tokens)
        return Mamba2Shape(
            **plan.draws,
            TOKENS=plan.n_tokens,
            TAIL=min(TAPS.value, plan.n_tokens),
            ALONE=single,
            CHUNKS=chunks,
            CHUNKS_WIDE=triton.next_power_of_2(chunks),
            STARTS=chunks + single,
            CAPACITY=plan.capacity,
            SPAN=span,
            GROUP=group,
            TILES=mix_tiles,
            ROWS=_ROWS,
            BACK_ROWS=_BACK_ROWS,
            BACK_TILES=_back_tiles(plan)[1],
            TALLIED=_TALLIED,
            KIND_ROWS=_KIND_ROWS,
            KIND_TURNS=_kind_tiles(plan)[1],
            D=model.d_model,
            STATE=model.d_state,
            HEADS=model.n_heads,
            CONV_DIM=conv,
            WIDTH=model.d_model + conv,
            WIDE=triton.next_power_of_2(model.d_model + conv),
            STEPS=triton.next_power_of_2(3 * model.n_heads),
            POSITIONS=plan.encoding,
            ENCODING=model.positions,
            IN=at["in.weight"],
            CONV=at["conv.weight"],
            CONV_BIAS=at["conv.bias"],
            DT_BIAS=at["dt_bias"],
            A_LOG=at["a_log"],
            SKIP=at["skip"],
            GATE_NORM=at["gate_norm.weight"],
            OUT=at["out.weight"],
        )

    def rows(self, name: str, layer: int = 0) -> Tensor:
        """Numbers of every token, by name and layer."""
        of = self.shape
        columns = {
            "bits": 1,
            "stream": of.D,  # a layer's input
            "raw": of.WIDTH,
            "steps": 2 * of.HEADS,
            "inputs": 2 * of.CONV_DIM,
            "mixed": of.D,
            "d_mixed": of.D,
            "d_steps": 3 * of.HEADS,
            "slopes": of.WIDTH,
            "gradients": of.D,
        }
        return self.plan.rows(f"{name} {layer}", columns[name])

    def slopes(self, layer: int) -> Tensor:
        # Two, used in turn: while a layer's are read, those of the gate below are written.
        return self.rows("slopes", layer % 2)

    def _sums_and_states(self, layer: int) -> tuple[Tensor, Tensor]:
        plan, of = self.plan, self.shape
        tokens = of.CHUNKS * CHUNK.value
        sums = plan.buffer(f"sums {layer}", plan.capacity, of.HEADS, 2, tokens)
        return sums, plan.buffer(f"states {layer}", plan.capacity, of.STARTS, of.STATE, of.D)

    def _mix(self, layer: int) -> None:
        plan = self.plan
        mix.mix[self.grid(plan.capacity)](
            self.values, self.count, self.rows("raw", layer), self.rows("steps", layer),
            self.rows("inputs", layer), *self._sums_and_states(layer), self.rows("mixed", layer),
            plan.n_parameters, plan.block(layer),
            K=self.shape, num_warps=MIX_WARPS, num_stages=1, maxnreg=MIX_REGISTERS,
        )  # fmt: skip

    def _project(self, layer: int) -> None:
        plan, before = self.plan, max(layer - 1, 0)  # the first has no layer before it
        token_rows.project[self.grid(triton.cdiv(plan.capacity * plan.n_tokens, _ROWS))](
            self.values, self.keys, self.first, self.count, plan.waves,
            self.rows("bits"), self.rows("stream", before), self.rows("raw", before),
            self.rows("mixed", before), self.rows("stream", layer), self.rows("raw", layer),
            self.rows("steps", layer), plan.n_parameters, plan.block(before), plan.block(layer),
            BOTTOM=layer == 0, CUTS=self.cuts if layer == 0 else 0, K=self.shape,
            num_warps=ROW_WARPS, num_stages=1,
        )  # fmt: skip

    def _finish(self, results: Tensor, partials: Tensor | None) -> None:
        """The last block's mixing, the head, and in training the backward pass through both."""
        plan, of, layer = self.plan, self.shape, self.plan.model.n_layers - 1
        warps = FINISH_WARPS * (of.GROUP * of.SPAN // _MIN_ROWS)
        shares = results if partials is None else partials
        last_block.finish[self.grid(_mix_tiles(plan)[0])](
            self.values, self.keys, self.first, self.count, self.rows("stream", layer),
            self.rows("raw", layer), self.rows("steps", layer), self.slopes(layer),
            self.rows("d_steps"), self.rows("gradients"), results, shares, shares.shape[1],
            plan.n_parameters, plan.block(layer),
            TRAIN=partials is not None, CUTS=self.cuts, K=of, num_warps=warps, num_stages=1,
            maxnreg=min(MIX_REGISTERS, _REGISTERS // warps),
        )  # fmt: skip

    def _project_back(self, layer: int, partials: Tensor) -> None:
        plan = self.plan
        token_rows.project_back[self.grid(_back_tiles(plan)[0])](
            self.values, self.count, self.rows("stream", layer), self.rows("raw", layer),
            self.slopes(layer), self.rows("d_steps"), self.rows("gradients"),
            self.rows("raw", layer - 1), self.rows("mixed", layer - 1), self.slopes(layer - 1),
            self.rows("d_mixed"), partials, partials.shape[1], plan.n_parameters,
            plan.block(layer - 1), plan.block(layer), TOP=layer == plan.model.n_layers - 1,
            K=self.shape, num_warps=BACK_WARPS, num_stages=1, maxnreg=ROW_REGISTERS,
        )  # fmt: skip

    def _mix_back(self, layer: int) -> None:
        plan = self.plan
        mix.mix_back[self.grid(plan.capacity)](
            self.values, self.count, self.rows("steps", layer), self.rows("inputs", layer),
            *self._sums_and_states(layer), self.rows("d_mixed"), self.slopes(layer),
            self.rows("d_steps"), plan.n_parameters, plan.block(layer),
            K=self.shape, num_warps=MIX_WARPS, num_stages=1, maxnreg=MIX_REGISTERS,
        )  # fmt: skip

    def _tokens_back(self, partials: Tensor) -> None:
        """The backward pass from the bottom block's mixing to the embedding."""
        plan, of, top = self.plan, self.shape, self.plan.model.n_layers == 1
        grads = self.slopes(0), self.rows("d_steps"), self.rows("gradients")
        sums = (
            plan.buffer("slope sums", TAPS.value, 2, of.TOKENS, of.WIDTH),
            plan.buffer("step sums", 2, of.TOKENS, 3 * of.HEADS),
            plan.buffer("gradient sums", 2, of.TOKENS, of.D),
        )
        parts = triton.cdiv(of.WIDTH, first_block.COLUMNS.value) + 1
        first_block.tally[self.grid(of.TOKENS * parts)](
            self.count, self.rows("bits"), *grads, *sums,
            TOP=top, K=of, num_warps=TALLY_WARPS, num_stages=1,
        )  # fmt: skip
        first_block.tokens_back[self.grid(_kind_tiles(plan)[0])](
            self.values, self.keys, self.first, self.count, plan.waves, *grads, *sums,
            partials, partials.shape[1], plan.n_parameters, plan.block(0),
            TOP=top, K=of, num_warps=KIND_WARPS, num_stages=1, maxnreg=ROW_REGISTERS,
        )  # fmt: skip
