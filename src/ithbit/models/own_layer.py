"""A user's layer in use: the one check that it can be used at all, and its modules as a family's
block for several seeds at once.

The check, for training and `probe`, is *observed* on random inputs at the layer's first weights.
What it refuses cannot be trained with a result that means anything: outputs that differ from call
to call, that depend on the other examples of a batch, or that are not numbers.

Embedding, positions and head are those of every family (`classifier.py`); between them are L
modules with nothing around them: residuals and norms are up to the layer. The weights of block k of
a seed are those that the factory draws at seed 1000 seed + k. One module is kept only for its code;
parameters and buffers are passed to it, and what a call leaves on it, such as a table for the next,
is taken off again: it belongs to that call's seeds. Seeds are stacked with `torch.func.vmap` if a
trial run shows that it works for the layer, and otherwise run one by one.
"""

import textwrap
import threading
import warnings
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ithbit.errors import LayerError
from ithbit.models.layer_source import LayerSource, layer_for
from ithbit.models.stacked import Params, Stream, packed, part, unpacked
from ithbit.models.user_code import error_text, explained
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens

# Largest relative difference of two outputs that counts as rounding.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_EXAMPLES = 32  # so many that rare random numbers show
BATCH = 256  # batch size of the trial: the paper's
_LAST_BATCH = 80  # and that of an epoch's last batch
_TRIED = 3  # seeds in the trial's stack
# One module per thread: during a call the module holds that call's parameters.
_thread = threading.local()


def check_layer(layer: LayerSource, width: int, n_tokens: int, device: torch.device) -> None:
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
    with explained(f"{name} raises on an input of shape {tuple(x.shape)}"):
        out = module(x)
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


def off_in_evaluation(layer: LayerSource, width: int) -> str | None:
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
    tolerance = TOLERANCE.get(one.dtype, 1e-2)
    return torch.allclose(one, other, tolerance, tolerance)


def init_block(spec: ModelSpec, seed: int, number: int) -> Params:
    """The parameters of one block of one seed, as the factory draws them."""
    module = _built(spec, seed, number)
    check_parameters(module, layer_for(spec).name)
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def init_buffers(spec: ModelSpec, seed: int) -> Params:
    """The buffers of all blocks of one seed, by the names that `classifier.logits` expects."""
    return {
        f"blocks.{number}.{name}": value.detach().clone()
        for number in range(spec.n_layers)
        for name, value in _built(spec, seed, number).named_buffers()
    }


def trained_module(spec: ModelSpec, seed: int, number: int, params: Params) -> nn.Module:
    """A block of one seed as a module of the user's class, with these parameters."""
    module = _built(spec, seed, number)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(params[name])
    return module


def _built(spec: ModelSpec, seed: int, number: int) -> nn.Module:
    return layer_for(spec).build(spec.d_model, 1000 * seed + number)


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One block's output at all tokens, or only at the last: seed batch token dim."""
    x = stream.all(stream.rows)
    stacked = stacking_obstacle(spec, x.device) is None
    out = _through(params, spec, x, stacked)
    return out[:, :, -1:] if readout_only else out


def _through(params: Params, spec: ModelSpec, x: Tensor, stacked: bool) -> Tensor:
    module = _module(spec, x.device)
    assert all(name in params for name, _ in module.named_buffers()), "buffers were left out"

    def one(own: Params, x: Tensor) -> Tensor:
        before = [(vars(each), vars(each).copy()) for each in module.modules()]
        try:
            out: Tensor = functional_call(module, own, (x,))
        except SystemExit as error:  # in a user's layer: ends the run, not the process
            raise RuntimeError(error_text(error)) from error
        finally:
            for buffer, initial in before:
                buffer.clear()
                buffer.update(initial)
        return out

    if stacked:
        return vmap(one)(params, x)
    rows = {name: value.unbind(0) for name, value in params.items()}
    each = ({name: values[k] for name, values in rows.items()} for k in range(len(x)))
    return torch.stack([one(own, seed) for own, seed in zip(each, x.unbind(0), strict=True)])


def _module(spec: ModelSpec, device: torch.device) -> nn.Module:
    """The module whose code is used, one per thread."""
    modules: dict[object, nn.Module] = vars(_thread).setdefault("modules", {})
    key = spec.code, spec.d_model, device
    if key not in modules:
        modules[key] = layer_for(spec).build(spec.d_model).to(device)
    return modules[key]


@cache
@torch.enable_grad()
def stacking_obstacle(spec: ModelSpec, device: torch.device) -> str | None:
    """Why seeds of this layer cannot be trained in one stack; None if they can.

    Found by a trial run with gradients. A stack must agree with the seeds run one by one, and on a
    CPU a seed must give the same bits in a stack of several as in a stack of one: a run depends on
    no other seed. A layer that cannot be used at all raises `LayerError`.
    """
    layer, generator = layer_for(spec), torch.Generator().manual_seed(0)
    shape = (_TRIED, BATCH, n_tokens(spec.task, spec.n_bits), spec.d_model)
    check_layer(layer, spec.d_model, shape[2], device)
    from ithbit.models.classifier import init, stack  # which imports this module

    x, weight = torch.randn(2, *shape, generator=generator).to(device)
    members = [init(spec, seed) for seed in range(_TRIED)]
    packed_rows = torch.stack(list(map(packed, members))).to(device)
    initial = stack([init_buffers(spec, seed) for seed in range(_TRIED)])
    buffers = {name: value.to(device) for name, value in initial.items()}

    def tried(rows: slice, stacked: bool, batch: int = BATCH) -> list[Tensor]:
        # Parameters lie in rows, as in training: another layout may change the order of sums.
        views = unpacked(packed_rows[rows].clone(), members[0])
        blocks = [name for name in views if name.startswith("blocks.")]
        leaves = {name: views[name].detach().requires_grad_() for name in blocks}
        initial = {name: value[rows].clone() for name, value in buffers.items()}
        first = out = x[rows, :batch].clone().requires_grad_()
        for k in range(spec.n_layers):
            out = _through(part(leaves | initial, f"blocks.{k}"), spec, out, stacked)
        total = (out * weight[rows, :batch]).sum()
        grads = torch.autograd.grad(total, [first, *leaves.values()], materialize_grads=True)
        for name, value in initial.items():
            if not identical(value, buffers[name][rows]):
                raise LayerError(changed_buffer(layer.name, name.split(".", 2)[2]))
        return [out.detach(), *grads]

    with explained(f"{layer.name} cannot be trained"):
        apart = tried(slice(None), stacked=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            together = tried(slice(None), stacked=True)
            same = device.type != "cpu" or all(
                identical(alone, among[1:2])
                for batch in (BATCH, _LAST_BATCH)
                for alone, among in zip(
                    tried(slice(1, 2), True, batch), tried(slice(None), True, batch), strict=True
                )
            )
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return textwrap.shorten(lines[0].rstrip("."), 120, placeholder=" …")
    if not all(map(alike, apart, together)):
        return "its outputs in a stack differ from those of a single seed"
    if not same:
        return "its outputs in a stack differ in the last bits from those of a single seed"
    return None


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs or gradients differ by no more than rounding: a thousandth of the largest
    number, since sums over a batch cancel, or 1e-4 where all are small.

    >>> alike(torch.tensor([5000.0, 1.0]), torch.tensor([5000.0, 1.1]))
    True
    >>> alike(torch.tensor([5.0, 1.0]), torch.tensor([5.0, 1.1]))
    False
    """
    largest = one.nan_to_num(posinf=0.0, neginf=0.0).abs().max().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=max(1e-4, 1e-3 * largest), equal_nan=True)
