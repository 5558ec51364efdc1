"""Consistency: a term of the training loss by which what a layer says of a token comes to depend on
nothing but that token, the index i and bit i.

Where it does, bounds over all inputs that share i and bit i lose nothing to the other bits, and
proofs close (docs/proofs.md). The term is a sum over layers of weight * distance, measured in two
ways:

- *pairs* of examples share the index and its bit, and nothing else (`paired`): the squared distance
  between what a layer gives for one and for the other;
- *single flips* of an example (`with_flips`): the square of the radius that they span, the sum of
  the absolute changes by every flip but that of bit i. It is what a bound by sets will meet.

Compared are the outputs of every layer but the last, at the tokens that two inputs have in common
(the query, the end, and bits of equal value), and at the read-out token what the last layer has
mixed and what it makes of it: a norm of what nearly cancels would enlarge the little that is left.
The states of a GRU's last layer are compared at every token if the index comes first. All are
compared as what follows takes them (`Blocks.normal`): up to LayerNorm's scale, for instance. A
user's layer is compared by its outputs.

A distance d counts as (c / 50) log(1 + 50 w d / c), where c is the protocol's `consistency` and w
the weight of the epoch (`tightening.py`). That is w d while small; for a large w the pull on d is
a share of d, whatever the scale of layer and family, and no more than c / 50.
"""

import torch
from torch import Tensor

from ithbit.engine.evaluate import bce, ordered_mean
from ithbit.models.classifier import blocks_of, layer_outputs, readout
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples, paired, with_flips
from ithbit.tasks.tokens import TokenTable

_LEVEL = 1 / 50  # of the consistency asked for: where the pull of a distance levels off
# Strings come in whole multiples of this: a CPU's loops round the numbers left over differently, so
# a run's result would depend on its place in the stack.
_WHOLE = 32


class ConsistentLoss:
    """The loss of a stack with the term, and its gradient.

    `weights` (seed, double) are read at every call: of pairs, and of single flips.
    """

    def __init__(
        self, spec: ModelSpec, table: TokenTable, consistency: float, weights: Tensor
    ) -> None:
        self.spec, self.table, self.weights = spec, table, weights
        self.level = consistency * _LEVEL
        # With the index first, every state follows it, and should depend on nothing else.
        self.states = blocks_of(spec).carries_state and spec.task == "lhi"

    def gradients(
        self, params: Params, whole: Params, examples: Examples, first: Tensor, flips: bool
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of each run, without the term, and the gradient with it: seed, seed
        parameter. `whole` has the buffers too; `first` (seed 1) is the number of the first
        example. Single flips are taken only if `flips`. Where a weight is 0, a run's bits are those
        without what it weighs.
        """
        pairs, tightens = paired(examples), self.weights[:, :1] > 0
        examples = Examples(
            torch.where(tightens.unsqueeze(-1), pairs.bits, examples.bits),
            torch.where(tightens, pairs.index, examples.index),
        )
        compared, out = self._compared(whole, examples)
        loss = bce(out, examples.answer).mean(1)
        total = loss + self._term(self._pair_distances(compared, examples), 0)
        found = _flat_gradient(total, params)
        if flips:
            term = self._term(self._radii(whole, examples, first), 1)
            more = _flat_gradient(term, params)
            found = torch.where(self.weights[:, 1:2] > 0, found + more, found)
        return loss.detach(), found

    def _compared(self, params: Params, examples: Examples) -> tuple[list[Tensor], Tensor]:
        """What is compared of each layer (seed batch token dim), and the logits: seed batch."""
        spec, blocks = self.spec, blocks_of(self.spec)
        found: list[Tensor] = []
        for mixed, x in layer_outputs(params, spec, self.table, examples, not self.states):
            if len(found) == spec.n_layers - 1 and mixed is not x:
                found.append(blocks.normal(mixed))
            found.append(blocks.normal(x))
        return found, readout(params, spec, x)

    def _pair_distances(self, compared: list[Tensor], examples: Examples) -> list[Tensor]:
        """Squared distances within the pairs, for each layer: seed pair token, whose sum is the
        mean."""
        half = examples.index.shape[1] // 2
        common = self._in_common(examples.bits[:, :half], examples.bits[:, half : 2 * half])
        counts = common.sum((1, 2), keepdim=True)
        found = []
        for layer, x in enumerate(compared if half else []):
            apart = (x[:, :half] - x[:, half : 2 * half]).square().sum(-1)
            last = layer >= self.spec.n_layers - 1
            found.append(apart / apart[0].numel() if last else apart * common / counts)
        return found

    def _radii(self, params: Params, examples: Examples, first: Tensor) -> list[Tensor]:
        """Squared radii by single flips, for each layer: seed example token, whose sum is the
        mean. Of strings as long as the batch, a window of bits is flipped, another at each step."""
        n, count = self.spec.n_bits, examples.index.shape[1]
        flips, bases = min(n, max(1, count - 1)), max(1, count // (n + 1))
        places = torch.arange(flips, device=first.device) + (0 if flips == n else first)
        places = (places % n).expand(len(first), -1)
        base = Examples(examples.bits[:, :bases], examples.index[:, :bases])
        strings = with_flips(base, places)
        total = strings.index.shape[1]
        filled = torch.arange(-(-total // _WHOLE) * _WHOLE, device=first.device) % total
        strings = Examples(strings.bits[:, filled], strings.index[:, filled])
        compared, _ = self._compared(params, strings)
        flipped = torch.nn.functional.one_hot(places, n).unsqueeze(1)  # seed 1 flip bit
        common = self._in_common(flipped, torch.zeros_like(flipped))
        # Bit i itself may matter anywhere: bounds are sought for each of its values.
        free = (places.unsqueeze(1) != base.index.unsqueeze(-1) - 1).to(common.dtype)[..., None]
        found = []
        for layer, x in enumerate(compared):
            x = x[:, :total].unflatten(1, (bases, flips + 1))
            counts = free if layer >= self.spec.n_layers - 1 else free * common
            apart = (x[:, :, 1:] - x[:, :, :1]).abs() * counts.unsqueeze(-1)
            square = (apart.sum(2) * (n / flips)).square().sum(-1)
            found.append(square / square[0].numel())
        return found

    def _in_common(self, one: Tensor, other: Tensor) -> Tensor:
        """1 for the tokens that strings with one index have in common, else 0: … token."""
        same = (one == other).to(self.table.features.dtype)
        query = torch.ones_like(same[..., :1])
        parts = [same, query] if self.spec.task == "rhi" else [query, same, query]
        return torch.cat(parts, -1)

    def _term(self, distances: list[Tensor], which: int) -> Tensor:
        """A term with the gradient of `level * log(1 + weight * distance / level)`, for each layer:
        seed."""
        weight = self.weights[:, which]
        total = torch.zeros_like(weight, dtype=self.table.features.dtype)
        for distance in distances:
            # Summed in a fixed order, since the gradient depends on it.
            size = ordered_mean(distance.detach().flatten(1)) * distance[0].numel()
            slope = weight / (1 + weight * size / self.level)
            total = total + slope.to(total.dtype) * distance.flatten(1).sum(1)
        return total


def _flat_gradient(total: Tensor, params: Params) -> Tensor:
    """The gradient of a stack's totals: seed parameter. Parameters that they do not depend on have
    gradient zero."""
    if not total.requires_grad:  # batches too small for a pair
        return torch.cat([torch.zeros_like(value).flatten(1) for value in params.values()], 1)
    grads = torch.autograd.grad(total.sum(), list(params.values()), materialize_grads=True)
    return torch.cat([grad.reshape(len(grad), -1) for grad in grads], dim=1)
