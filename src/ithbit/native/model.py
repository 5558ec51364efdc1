"""The six families as compiled code: logits, and the gradients of their mean loss.

The twin of `models/classifier.py`. What acts on the token table is computed on it as usual, by
torch and its autograd; `wide` has the table's rows as the first block takes them.

Compiled code need not propagate NaN and infinity as the stacked models do: maxima drop NaN, and
sums have another order. So `logits` takes the stacked models for weights with which anything may
overflow (`models/magnitudes.py`), seed by seed: where they are not finite, nor is it. `raw_logits`
does not ask; its caller must have.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ithbit.families import family_named
from ithbit.layouts import LINEAR, MAMBA2
from ithbit.models import classifier
from ithbit.models.classifier import init, token_vectors
from ithbit.models.linear_attention import features
from ithbit.models.magnitudes import stays_finite
from ithbit.models.stacked import Params, layer_norm, linear, part, rms_norm
from ithbit.native.building import module_of
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable


def _wide(kind: str, params: Params, rows: Tensor) -> Tensor:
    """Rows of the table as the first block of a kind takes them."""
    match kind:
        case "softmax":
            mapped = linear(rows, params["qkv.weight"], params["qkv.bias"])
        case "linear":
            weight, bias = params["norm1.weight"], params["norm1.bias"]
            normal = layer_norm(rows, weight, bias, LINEAR.norm_eps)
            qk, v = linear(normal, params["qkv.weight"]).tensor_split([2 * rows.shape[-1]], -1)
            mapped = torch.cat([features(qk), v], -1)
        case "gru":
            return linear(rows, params["ih.weight"], params["ih.bias"])
        case _:
            normal = rms_norm(rows, params["norm.weight"], MAMBA2.norm_eps)
            mapped = linear(normal, params["in.weight"])
    return torch.cat([rows, mapped], -1)


def compiled(spec: ModelSpec) -> Callable[..., None]:
    """The compiled function of a model's family; compiles it if necessary."""
    module = importlib.import_module(module_of(family_named(spec.family).kind))
    run: Callable[..., None] = module.run
    return run


@cache
def _places(spec: ModelSpec) -> tuple[dict[str, int], Any, Any]:
    """Where each parameter starts in a row; where those of each block start; and the sizes, as the
    compiled function takes them. Always in the order of `init`."""
    starts, start = {}, 0
    for name, value in init(spec, 0).items():
        starts[name], start = start, start + value.numel()
    at = [list(part(starts, f"blocks.{layer}").values()) for layer in range(spec.n_layers)]
    inner = spec.d_state if family_named(spec.family).kind == "mamba2" else spec.d_ff
    sizes = [spec.d_model, spec.n_heads, inner, starts.get("leave.norm.weight", 0)]
    return starts, np.array(at), np.array(sizes)


def logits(params: Params, spec: ModelSpec, table: TokenTable, examples: Examples) -> Tensor:
    """The logit of answer 1 for every example: seed batch; by the stacked models for seeds whose
    weights may overflow."""
    with torch.no_grad():
        safe = stays_finite(params, spec, table.n_bits)
        if safe.all():
            return raw_logits(params, spec, table, examples)
        out = torch.empty(examples.index.shape)
        for these, by in ((safe, raw_logits), (~safe, classifier.logits)):
            if these.any():
                few = Examples(examples.bits[these], examples.index[these])
                some = {name: value[these] for name, value in params.items()}
                out[these] = by(some, spec, table, few)
        return out


@torch.no_grad()
def raw_logits(params: Params, spec: ModelSpec, table: TokenTable, examples: Examples) -> Tensor:
    """The same by compiled code alone, for weights that cannot overflow."""
    return gradients(params, spec, table, examples, train=False)[0]


def gradients(
    params: Params, spec: ModelSpec, table: TokenTable, examples: Examples, train: bool = True
) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of each seed's mean loss if `train`: seed batch, seed parameter.

    Parameters are in the order of `init`.
    """
    family = family_named(spec.family)
    wide = _wide(family.kind, part(params, "blocks.0"), token_vectors(params, spec, table))
    starts, at, sizes = _places(spec)
    values = torch.cat([params[name].detach().flatten(1) for name in starts], 1)
    grads = torch.zeros_like(values) if train else values  # written to only in training
    d_wide = torch.zeros_like(wide) if train else wide.detach()
    out = values.new_empty(examples.index.shape)
    arrays = (values, grads, wide.detach(), d_wide, examples.bits, examples.index, out)
    data = tuple(tensor.contiguous().numpy() for tensor in arrays)
    layout = (at, starts["head.weight"], sizes, int(table.task == "lhi"), family.causal, train)
    compiled(spec)(data, layout)
    if train:
        wide_grads = torch.autograd.grad(wide, list(params.values()), d_wide, allow_unused=True)
        for name, grad in zip(params, wide_grads, strict=True):
            if grad is not None:
                grads[:, starts[name] : starts[name] + grad[0].numel()] = grad.flatten(1)
    return out, grads
