"""What a usable layer does before any training: whether it is causal, or ignores its input.

Everything here is *observed* at random inputs by changing tokens and looking at the outputs. An
observed change is a fact; that no change was observed does not prove that there is none.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError
from ithbit.models.layer_source import LayerSource
from ithbit.models.own_layer import TOLERANCE, check_layer, check_outputs, drawn

_DRAWS = 3


@dataclass(frozen=True)
class Leak:
    """The output at `token` changes when `later` changes; tokens count from 1."""

    token: int
    later: int


@dataclass(frozen=True)
class Behaviour:
    """Observed behaviour of a usable layer. `leak` is None if it was seen to be causal."""

    leak: Leak | None
    ignores_input: bool
    declared_state: int | None
    n_parameters: int
    dtype: str

    def sentence(self, name: str) -> str:
        """Causal or not, in words."""
        if self.ignores_input:
            return f"{name} ignores its input: the outputs are the same whatever it reads"
        if self.leak is None:
            return f"{name} is causal: no output changed when later tokens did"
        return (
            f"{name} is not causal: the output at token {self.leak.token} changes with token "
            f"{self.leak.later}"
        )


def usable(layer: LayerSource, width: int, n_tokens: int, device: torch.device) -> nn.Module:
    """The layer in the highest precision it supports; raise `LayerError` if it cannot be used.

    float64 where the layer takes it, else float32, as for kernels that support nothing else or that
    accept float64 but still compute in float32.
    """
    check_layer(layer, width, n_tokens, device)
    doubled = layer.build(width).to(device).double()
    x = drawn(3, n_tokens, width, torch.Generator().manual_seed(0)).to(device)
    with suppress(LayerError):
        check_outputs(doubled, x, layer.name)
        if _computes_in_float64(doubled, x):
            return doubled
    return layer.build(width).to(device)


@torch.no_grad()
def _computes_in_float64(module: nn.Module, x: Tensor) -> bool:
    """Whether doubling a step that is too small for float32 doubles the change."""
    base = module(x)
    once, twice = (module(x + step) - base for step in (1e-7, 2e-7))
    return bool((twice - 2 * once).abs().max() <= 0.01 * twice.abs().max())


def behaviour(module: nn.Module, width: int, n_tokens: int) -> Behaviour:
    """Change each token alone, and all tokens from each position on; see which outputs change."""
    like = next(module.parameters(), torch.zeros(0, dtype=torch.float64))
    generator = torch.Generator().manual_seed(1)
    changed = torch.zeros(n_tokens, n_tokens, dtype=torch.bool)  # changed token, output
    after = torch.zeros(n_tokens, n_tokens, dtype=torch.bool)  # first changed token, output
    for _ in range(_DRAWS):
        x, other = drawn(2, n_tokens, width, generator).to(like)
        token = torch.arange(n_tokens, device=like.device)
        one = (token[:, None] == token)[..., None]
        later = (token[:, None] <= token)[..., None]
        with torch.no_grad():
            base = module(x[None])
            changed |= _differs(module(torch.where(one, other, x)), base)
            after |= _differs(module(torch.where(later, other, x)), base)
    declared = getattr(module, "state_size", None)
    return Behaviour(
        _first_leak(changed, after),
        not bool(changed.any() or after.any()),
        declared if isinstance(declared, int) and not isinstance(declared, bool) else None,
        sum(p.numel() for p in module.parameters()),
        str(like.dtype).removeprefix("torch."),
    )


def _first_leak(changed: Tensor, after: Tensor) -> Leak | None:
    """The first output that a later token affects, and the nearest such token.

    If only changing several tokens has an effect, the last position from which on it does.
    """
    for output in range(changed.shape[1] - 1):
        single = changed[output + 1 :, output].nonzero().flatten().tolist()
        several = after[output + 1 :, output].nonzero().flatten().tolist()
        if single or several:
            ahead = single[0] if single else several[-1]
            return Leak(output + 1, output + 2 + ahead)
    return None


def _differs(out: Tensor, base: Tensor) -> Tensor:
    """Which outputs differ from those of the unchanged input; axes: copy token."""
    tolerance = TOLERANCE.get(out.dtype, 1e-2)
    return ((out - base).abs() > tolerance * (1 + base.abs())).any(-1).cpu()
