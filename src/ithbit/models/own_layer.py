"""A user's layer as a family's block: modules from its factory, one after the other, for several
seeds at once.

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

from ithbit.errors import LayerError
from ithbit.models.layer_check import changed_buffer, check_layer, check_parameters, identical
from ithbit.models.layer_source import layer_for, said
from ithbit.models.stacked import Params, packed, part, unpacked
from ithbit.models.stream import Stream
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens

BATCH = 256  # batch size of the trial: the paper's
_LAST_BATCH = 80  # and that of an epoch's last batch
_TRIED = 3  # seeds in the trial's stack
# One module per thread: during a call the module holds that call's parameters.
_here = threading.local()


def init_block(spec: ModelSpec, seed: int, number: int) -> Params:
    """The parameters of one block of one seed, as the factory draws them."""
    module = layer_for(spec).build(spec.d_model, 1000 * seed + number)
    check_parameters(module, layer_for(spec).name)
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def init_buffers(spec: ModelSpec, seed: int) -> Params:
    """The buffers of all blocks of one seed, by the names that `classifier.logits` expects."""
    buffers: Params = {}
    for number in range(spec.n_layers):
        module = layer_for(spec).build(spec.d_model, 1000 * seed + number)
        for name, value in module.named_buffers():
            buffers[f"blocks.{number}.{name}"] = value.detach().clone()
    return buffers


def trained_module(spec: ModelSpec, seed: int, number: int, params: Params) -> nn.Module:
    """A block of one seed as a module of the user's class, with these parameters."""
    module = layer_for(spec).build(spec.d_model, 1000 * seed + number)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(params[name])
    return module


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One block's output at all tokens, or only at the last: seed batch token dim."""
    x = stream.all(stream.rows)
    stacked = why_not_stacked(spec, x.device) is None
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
            raise RuntimeError(said(error)) from error
        finally:
            for held, kept in before:
                held.clear()
                held.update(kept)
        return out

    if stacked:
        return vmap(one)(params, x)
    rows = {name: value.unbind(0) for name, value in params.items()}
    each = ({name: values[k] for name, values in rows.items()} for k in range(len(x)))
    return torch.stack([one(own, seed) for own, seed in zip(each, x.unbind(0), strict=True)])


def _module(spec: ModelSpec, device: torch.device) -> nn.Module:
    """The module whose code is used, one per thread."""
    modules, key = _modules(), (spec.code, spec.d_model, device)
    if key not in modules:
        modules[key] = layer_for(spec).build(spec.d_model).to(device)
    return modules[key]


def _modules() -> dict[object, nn.Module]:
    if not hasattr(_here, "modules"):
        _here.modules = {}
    modules: dict[object, nn.Module] = _here.modules
    return modules


@cache
@torch.enable_grad()
def why_not_stacked(spec: ModelSpec, device: torch.device) -> str | None:
    """Why seeds of this layer cannot be trained in one stack; None if they can.

    Found by a trial run with gradients. A stack must agree with the seeds run one by one, and on a
    CPU a seed must give the same bits in a stack of several as in a stack of one: a run depends on
    no other seed. A layer that cannot be used at all raises `LayerError`.
    """
    check_layer(layer_for(spec), spec.d_model, n_tokens(spec.task, spec.n_bits), device)
    from ithbit.models.classifier import init  # which imports this module

    layer, generator = layer_for(spec), torch.Generator().manual_seed(0)
    shape = (_TRIED, BATCH, n_tokens(spec.task, spec.n_bits), spec.d_model)
    x, weight = torch.randn(2, *shape, generator=generator).to(device)
    members = [init(spec, seed) for seed in range(_TRIED)]
    whole = torch.stack(list(map(packed, members))).to(device)
    drawn = [init_buffers(spec, seed) for seed in range(_TRIED)]
    buffers = {name: torch.stack([m[name] for m in drawn]).to(device) for name in drawn[0]}

    def tried(rows: slice, stacked: bool, batch: int = BATCH) -> list[Tensor]:
        # Parameters lie in rows, as in training: another layout may change the order of sums.
        views = unpacked(whole[rows].clone(), members[0])
        blocks = [name for name in views if name.startswith("blocks.")]
        leaves = {name: views[name].detach().requires_grad_() for name in blocks}
        kept = {name: value[rows].clone() for name, value in buffers.items()}
        first = out = x[rows, :batch].clone().requires_grad_()
        for k in range(spec.n_layers):
            out = _through(part(leaves | kept, f"blocks.{k}"), spec, out, stacked)
        total = (out * weight[rows, :batch]).sum()
        grads = torch.autograd.grad(total, [first, *leaves.values()], materialize_grads=True)
        for name, value in kept.items():
            if not identical(value, buffers[name][rows]):
                raise LayerError(changed_buffer(layer.name, name.split(".", 2)[2]))
        return [out.detach(), *grads]

    try:
        apart = tried(slice(None), stacked=False)
    except LayerError:
        raise
    except Exception as error:
        raise LayerError(f"{layer.name} cannot be trained: {said(error)}") from error
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
