"""The GRU's training step: per layer one launch forward and one or two backward (`recurrence.py`).

Exact savings: with polynomial positions the first layer's input gates are linear in the eight
features of a token, so embedding and input weights are multiplied once per program, forward and
backward (other encodings embed their tokens first, and the first layer reads them as later layers
read states); the head reads only the last state; nothing is saved for the backward pass when only
logits are wanted.

Working memory of a layer, all (seed, sequence, token, …): the `states`, with h_0 = 0 first, and
four vectors per token, `saved`: r, z, n and W_hn h + b_hn after the forward pass; the backward pass
overwrites them with the gradients of the gates, and then the fourth with that of the input. Narrow
layers save only that last one.
"""

import triton
from torch import Tensor

from ithbit.kernels import embedding
from ithbit.kernels.gru import recurrence
from ithbit.kernels.plan import Launches, LaunchPlan, shared_out

_NARROW = 8  # widths up to here compute gates again in the backward pass
_WARPS = 4  # of a recurrence's program: few shares to sum, registers to spare
_TILE = 128  # numbers that `rows_back` takes at a time, of 16 tokens or more
# Its programs per run, at most: with eight one-warp programs per multiprocessor, those of five runs
# run at once.
_ROW_PROGRAMS = 211


class GruLaunches(Launches):
    """The launches of a stack of GRUs."""

    @staticmethod
    def shares(plan: LaunchPlan, name: str) -> int:
        """Few, if a recurrence stores them."""
        on_rows = _on_rows(plan)
        weights = [f"blocks.{layer}.{kind}.weight" for layer in on_rows for kind in ("ih", "hh")]
        if name in weights or (on_rows and name.startswith("positions.learned")):
            return max(_recurrences(plan), _row_tiles(plan)[0])
        return _recurrences(plan)

    def run(self, results: Tensor, partials: Tensor | None) -> None:
        plan = self.plan
        self._forward(results, train=partials is not None)
        if partials is None:
            return
        for layer in reversed(range(plan.model.n_layers)):
            self._back(layer, results, partials)
        if not _own_tokens(plan, 0):
            grads = _saved(plan, 0)[:, :, :, -1]
            embedding.embed_back(self, grads, partials, _recurrences(plan))

    def _shape(self, layer: int) -> dict[str, int]:
        """What a recurrence is compiled for."""
        plan = self.plan
        return {
            **plan.draws, "D": plan.model.d_model, "SEQUENCES": _sequences(plan),
            "FIRST": _own_tokens(plan, layer), "CUTS": self.cuts, "num_warps": _warps(plan),
        }  # fmt: skip

    def _forward(self, logits: Tensor, train: bool) -> None:
        """All layers' states: with what backward needs, or only as far as the logits."""
        plan, keep = self.plan, train and not _narrow(self.plan)
        if not _own_tokens(plan, 0):
            embedding.embed(self, _below(plan, 0))
        for layer in range(plan.model.n_layers):
            recurrence.run_layer[self.grid(_recurrences(plan))](
                self.values, self.keys, self.first, self.count, _below(plan, layer),
                _states(plan, layer), _saved(plan, layer) if keep else logits, logits,
                plan.n_parameters, plan.capacity,
                plan.block(layer), plan.encoding, plan.offsets["head.weight"],
                SAVE=keep, READ=not train and layer == plan.model.n_layers - 1,
                **self._shape(layer),
            )  # fmt: skip

    def _back(self, layer: int, losses: Tensor, partials: Tensor) -> None:
        plan, top = self.plan, self.plan.model.n_layers - 1
        recurrence.run_layer_back[self.grid(_recurrences(plan))](
            self.values, self.keys, self.first, self.count, _below(plan, layer),
            _states(plan, layer), _saved(plan, layer), _saved(plan, min(layer + 1, top)),
            losses, partials, partials.shape[1], plan.n_parameters, plan.capacity,
            plan.block(layer), plan.encoding, plan.offsets["head.weight"],
            LAST=layer == top, AGAIN=_narrow(plan), **self._shape(layer),
        )  # fmt: skip
        if layer in _on_rows(plan):
            (n_programs, each), d = _row_tiles(plan), plan.model.d_model
            recurrence.rows_back[self.grid(n_programs)](
                self.values, _below(plan, layer), _states(plan, layer), _saved(plan, layer),
                partials, partials.shape[1], plan.n_parameters,
                _recurrences(plan) * _sequences(plan), plan.block(layer),
                TOKENS=plan.n_tokens, D=d, ROWS=_tile(plan), TILES=each,
                num_warps=max(1, d * d // 512), num_stages=1,
            )  # fmt: skip


def _recurrences(plan: LaunchPlan) -> int:
    """Programs per run of a recurrence."""
    return triton.cdiv(plan.capacity, _sequences(plan))


def _on_rows(plan: LaunchPlan) -> list[int]:
    """The layers whose weight gradients `rows_back` computes; a recurrence computes the others'."""
    if _narrow(plan):
        return []
    return [layer for layer in range(plan.model.n_layers) if not _own_tokens(plan, layer)]


def _row_tiles(plan: LaunchPlan) -> tuple[int, int]:
    """Programs per run of `rows_back`, and the number of tiles that each goes over."""
    tokens = _recurrences(plan) * _sequences(plan) * plan.n_tokens
    return shared_out(triton.cdiv(tokens, _tile(plan)), _ROW_PROGRAMS)


def _tile(plan: LaunchPlan) -> int:
    """Tokens that `rows_back` takes at a time."""
    return max(16, _TILE // plan.model.d_model)


def _own_tokens(plan: LaunchPlan, layer: int) -> bool:
    """Whether a layer draws its own tokens: its input gates are linear in their features."""
    return layer == 0 and plan.model.positions == "polynomial"


def _states(plan: LaunchPlan, layer: int) -> Tensor:
    sequences = _recurrences(plan) * _sequences(plan)
    return plan.buffer(f"states {layer}", sequences, plan.n_tokens + 1, plan.model.d_model)


def _below(plan: LaunchPlan, layer: int) -> Tensor:
    """What a layer reads, in the form of states: those of the layer below or embedded tokens. A
    layer that draws its own tokens gets its own states, which it does not read."""
    return _states(plan, layer if _own_tokens(plan, layer) else layer - 1)


def _saved(plan: LaunchPlan, layer: int) -> Tensor:
    sequences = _recurrences(plan) * _sequences(plan)
    vectors = 1 if _narrow(plan) else 4
    return plan.buffer(f"saved {layer}", sequences, plan.n_tokens, vectors, plan.model.d_model)


def _narrow(plan: LaunchPlan) -> bool:
    """Whether the backward pass computes gates again: where that costs less than to move them."""
    return plan.model.d_model <= _NARROW


def _warps(plan: LaunchPlan) -> int:
    """Warps of a recurrence's program; wide models split the sums of a sequence among them, narrow
    ones wait less with fewer."""
    most = max(1, _WARPS * plan.model.d_model // 16)
    return min(max(min(_WARPS, most), plan.model.d_model**2 // 512), 16)


def _sequences(plan: LaunchPlan) -> int:
    """Sequences per program: so many that a thread has 16 weights of a matrix, and one unit."""
    width = plan.model.d_model
    return max(1, 512 * _warps(plan) // max(width, 16) // width)
