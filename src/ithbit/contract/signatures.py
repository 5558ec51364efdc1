"""How a layer is called, found by its signature and by trying: the arguments it needs beside its
input, a causal mask among them, and its output taken out of what it returns."""

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.contract.calling import Caller
from ithbit.contract.comparison import apart
from ithbit.contract.inputs import drawn
from ithbit.contract.watching import CannotCheckError, watched
from ithbit.models.user_code import FAILURES

_ADDED = "torch.full((x.shape[1],) * 2, -torch.inf, dtype=x.dtype, device=x.device).triu(1)"
_SEEN = "torch.ones((x.shape[1],) * 2, dtype=torch.bool, device=x.device).tril()"
_HIDDEN = f"~{_SEEN}"
# In this order: a mask is what makes a layer causal. The forms that libraries take.
_MASKS = (_ADDED, _SEEN, _HIDDEN, f"{_ADDED}[None, None]", f"{_SEEN}[None, None]", f"{_SEEN}.int()")
_MASK_NAMES = (
    *("attn_mask", "mask", "attention_mask", "src_mask", "causal_mask", "tgt_mask", "attn_bias"),
    "m",
)
_POSITIONS = "torch.arange(x.shape[1], device=x.device)"
_POSITION_NAMES = ("position_ids", "positions", "position", "pos", "pos_ids", "input_pos", "t")
_STEPS = ("cache_position", "input_positions")
_KEYS = ("key", "value", "keys", "values", "k", "v")
_MEMORIES = ("memory", "context", "encoder_hidden_states", "cond")
_OUTPUTS = ("last_hidden_state", "hidden_states", "output", "out", "logits", "y", "x")


def find_call(caller: Caller, n_tokens: int) -> tuple[str, str]:
    """The call that gives (batch, token, …) for an input of so many tokens, and a remark on it;
    raises what the layer raises if there is none."""
    module = caller.module(n_tokens)
    x = caller.converted(drawn(5, 2, n_tokens, caller.subject.width))
    required, masks = _arguments(module)
    plain = _first_call(caller, module, x, [required])
    if isinstance(plain, str) and not (masks and _leaks(caller, plain, x)):
        return plain, ""
    for name in masks:
        for mask in _MASKS:
            call = _first_call(caller, module, x, [[*required, f"{name}={mask}"]])
            if isinstance(call, str) and not _leaks(caller, call, x):
                remark = f"called with a causal mask as {name}"
                also = "; without one, earlier outputs read later tokens"
                return call, remark + (also if isinstance(plain, str) else "")
    if isinstance(plain, str):
        return plain, ""
    raise plain


def _first_call(
    caller: Caller, module: nn.Module, x: Tensor, forms: list[list[str]]
) -> str | Exception:
    """The first form that gives an output of the right shape; else the first error."""
    errors: list[Exception] = []
    for arguments in forms:
        text = f"layer({', '.join(['x', *arguments])})"
        caller.beat(f"it reads an input of shape {tuple(x.shape)}")
        try:
            with torch.no_grad(), watched(f"it reads an input of shape {tuple(x.shape)}"):
                torch.manual_seed(1)
                out = eval(text, {"torch": torch, "layer": module, "x": x.clone()})
        except CannotCheckError:
            raise
        except FAILURES as error:
            errors.append(error if isinstance(error, Exception) else RuntimeError(str(error)))
            continue
        suffix = _suffix(out, x)
        if suffix is not None:
            return text + suffix
        errors.append(ValueError(_no_output(out, x)))
    return errors[0]


def _no_output(out: Any, x: Tensor) -> str:
    shape = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    return (
        f"it gives {shape} for an input of shape {tuple(x.shape)}; the output must have an entry "
        "for each (batch, token)"
    )


def _suffix(out: Any, x: Tensor) -> str | None:
    """How to take the output out of what a layer returns."""

    def fits(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.dim() >= 3
            and value.shape[:2] == x.shape[:2]
            and value.is_floating_point()
        )

    if isinstance(out, Tensor):
        return "" if fits(out) else None
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return next((f".{name}" for name in out._fields if fits(getattr(out, name))), None)
    if isinstance(out, list | tuple):
        return next((f"[{k}]" for k, value in enumerate(out) if fits(value)), None)
    if is_dataclass(out):
        names = sorted(
            (each.name for each in fields(out)),
            key=lambda name: _OUTPUTS.index(name) if name in _OUTPUTS else len(_OUTPUTS),
        )
        return next((f".{name}" for name in names if fits(getattr(out, name, None))), None)
    if isinstance(out, dict):
        keys = sorted(
            out, key=lambda key: _OUTPUTS.index(key) if key in _OUTPUTS else len(_OUTPUTS)
        )
        return next((f"[{key!r}]" for key in keys if fits(out[key])), None)
    return next((f".{name}" for name in _OUTPUTS if fits(getattr(out, name, None))), None)


def _arguments(module: nn.Module) -> tuple[list[str], list[str]]:
    """Arguments after the input: text of those that are required, and names of masks."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (ValueError, TypeError):
        return [], []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    after = [p for p in parameters if p.kind not in kinds][1:]
    required, masks = [], []
    for parameter in after:
        name, optional = parameter.name, parameter.default is not parameter.empty
        if name in _MASK_NAMES:
            if not optional or parameter.default is None:
                masks.append(name)
        elif not optional:
            value = _argument(name)
            if value is None:
                raise CannotCheckError(
                    f"its forward needs {name}; wrap it in a module whose forward takes x alone"
                )
            required.append(f"{name}={value}")
    return required, masks


def _argument(name: str) -> str | None:
    if name in _POSITION_NAMES:
        return f"{_POSITIONS}[None].expand(len(x), -1)"
    if name in _STEPS:
        return _POSITIONS
    if name in _MEMORIES:
        return "torch.zeros_like(x)"
    return "x" if name in _KEYS else None


def _leaks(caller: Caller, call: str, x: Tensor) -> bool:
    """Whether a call reads later tokens, or nothing of the earlier ones, at one short input."""
    other = caller.like(call=call)
    cut = x.shape[1] // 2
    y = x.clone()
    y[:, cut:] = caller.converted(drawn(6, *x.shape))[:, cut:]
    z = x.clone()
    z[:, :cut] = caller.converted(drawn(7, *x.shape))[:, :cut]
    try:
        base, future, past = other(x), other(y), other(z)
    except CannotCheckError:
        raise
    except FAILURES:
        return True
    near = 1e-6 * float(base.abs().max())
    ahead = apart(base, future)[:, :cut]
    behind = apart(base, past)[:, cut:]
    return bool((~(ahead <= near)).any()) or not bool((behind > near).any())
