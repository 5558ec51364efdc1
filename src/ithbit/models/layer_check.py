"""Whether a user's layer can be used at all: the one check of a layer, for training and `probe`.

It is *observed* on random inputs at the layer's first weights. What it refuses cannot be trained
with a result that means anything: outputs that differ from call to call, that depend on the other
examples of a batch, or that are not numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ithbit.errors import LayerError
from ithbit.models.layer_source import FAILURES, Layer, said

# Largest relative difference of two outputs that counts as rounding.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_EXAMPLES = 32  # so many that rare random numbers show


def check_layer(layer: Layer, width: int, n_tokens: int, device: torch.device) -> None:
    """Raise `LayerError` if the layer cannot be used at this width and length.

    It is checked in float32, as it is trained. What fails there but not in float64 is due to
    rounding, and passes.
    """
    module = layer.build(width)
    check_parameters(module, layer.name)
    x = drawn(_EXAMPLES, n_tokens, width, torch.Generator().manual_seed(0)).to(device)
    apply(module.to(device), x.float(), layer.name)
    try:
        check_outputs(layer.build(width).to(device), x.float(), layer.name)
    except LayerError as error:
        try:
            check_outputs(layer.build(width).to(device).double(), x, layer.name)
        except LayerError:
            raise error from None


def apply(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """The module's output; raises a `LayerError` that explains why if there is no usable one."""
    try:
        out = module(x)
    except LayerError:
        raise
    except FAILURES as error:
        raise LayerError(
            f"{name} raises on an input of shape {tuple(x.shape)}: {said(error)}"
        ) from error
    if isinstance(out, tuple):
        raise LayerError(
            f"{name} returns a tuple of {len(out)}; return its output tensor alone, as with [0]"
        )
    if not isinstance(out, torch.Tensor):
        raise LayerError(f"{name} returns {type(out).__name__}, not a tensor")
    if out.shape != x.shape:
        raise LayerError(
            f"{name} returns shape {tuple(out.shape)} for an input of shape {tuple(x.shape)}; it "
            "must keep (batch, token, width)"
        )
    return out


def check_parameters(module: nn.Module, name: str) -> None:
    """Raise `LayerError` if a parameter cannot be trained."""
    for which, value in module.named_parameters():
        lazy = nn.parameter.is_lazy(value)
        if lazy or value.dtype != torch.float32:
            what = "created on first use" if lazy else f"of {value.dtype}"
            raise LayerError(
                f"{name} has a parameter {which} that is {what}; training needs float32 parameters "
                "that exist from the start"
            )


@torch.no_grad()
def check_outputs(module: nn.Module, x: Tensor, name: str) -> None:
    """Raise `LayerError` if an output is more or less than a function of its own example."""
    before = {which: value.clone() for which, value in module.named_buffers()}
    out = apply(module, x, name)
    after = dict(module.named_buffers())
    for which, value in before.items():
        if not identical(value, after[which]):
            raise LayerError(changed_buffer(name, which))
    if not out.isfinite().all():
        what = "NaN" if out.isnan().any() else "infinite numbers"
        raise LayerError(f"{name} gives {what} on an input of ordinary size")
    if not _close(out, apply(module, x, name)):
        raise LayerError(
            f"{name} is not deterministic: the same input gives different outputs, in evaluation "
            "mode too; draw no random numbers (F.dropout needs training=self.training) and keep "
            "nothing from one call to the next"
        )
    for one in (slice(1), slice(-1, None)):  # over a batch, a recurrence leaves the first as it is
        if not _close(out[one], apply(module, x[one], name)):
            raise LayerError(
                f"{name} mixes the examples of a batch: an output depends on the other examples; "
                "inputs are (batch, token, width), so torch.nn's recurrent and attention layers "
                "need batch_first=True, and no statistics may be taken over the batch"
            )


def changed_buffer(name: str, which: str) -> str:
    """The sentence for a layer that changes a buffer while it computes."""
    return (
        f"{name} changes its buffer {which} while it computes, so its output could depend on "
        "earlier inputs; compute it from the input, or leave it as it was built"
    )


def off_in_evaluation(layer: Layer, width: int) -> str | None:
    """A remark on parts that evaluation mode, in which layers always run, switches off; or None."""
    parts = [part for part in layer.build(width).modules() if not part.training]
    drops = any(
        (isinstance(part, _DropoutNd) and part.p > 0)
        or (isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0)
        for part in parts
    )
    norms = any(isinstance(part, _BatchNorm) and part.running_mean is not None for part in parts)
    off = ["its dropout is off"] * drops + ["its BatchNorm keeps its first statistics"] * norms
    return f"{layer.name} runs in evaluation mode: {' and '.join(off)}" if off else None


def drawn(batch: int, n_tokens: int, width: int, generator: torch.Generator) -> Tensor:
    """Random inputs in float64."""
    return torch.randn(batch, n_tokens, width, generator=generator, dtype=torch.float64)


def identical(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, where NaN is the same as NaN.

    >>> identical(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    True
    """
    if one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _close(one: Tensor, other: Tensor) -> bool:
    allowed = TOLERANCE.get(one.dtype, 1e-2) * (1 + other.abs())
    return bool(((one - other).abs() <= allowed).all())
