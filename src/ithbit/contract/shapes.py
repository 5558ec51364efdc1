"""The clauses step (one token at a time, or in chunks, gives what all at once give) and state."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ithbit.contract.calling import Caller
from ithbit.contract.causality import longest_of
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import apart
from ithbit.contract.findings import Finding
from ithbit.contract.prefixes import allowed_at, largest_by_token
from ithbit.contract.watching import CannotCheckError, watched
from ithbit.models.user_code import FAILURES, error_text

_WHOLE = (130, 128, 64, 32, 16)
_STATE_NAMES = (
    *("state", "hx", "hidden", "h", "h0", "hidden_state", "cache", "past", "past_key_value"),
    *(
        "past_key_values",
        "kv_cache",
        "initial_state",
        "prev_state",
        "last_state",
        "recurrent_state",
    ),
    *("past_kv", "layer_past", "memory_state", "carry", "init_state", "ssm_state", "states"),
)
_FIRST_STATES = (
    *("init_state", "initial_state", "zero_state", "new_state", "init_cache", "get_initial_state"),
    *("initial_states", "begin_state", "empty_state", "start_state", "allocate_state"),
)


@dataclass(frozen=True)
class PartReader:
    """How a layer reads token by token: Python that binds `state` first, and `y, state` for a part
    of the tokens, `part`; whether `part` may have several tokens."""

    first: str
    advance: str
    several: bool
    name: str


def check_step(run: CheckRun) -> None:
    """The clauses step and state."""
    declared = _declared(run.caller.module(run.short))
    if run.is_random:
        run.skip("step", "random in evaluation mode")
    else:
        with run.attempt("step"):
            reader, why = find_reader(run)
            if reader is None:
                run.skip("step", why)
            else:
                _step(run, reader, declared)
    run.skip(
        "state",
        "no state_size is declared" if declared is None else "the state cannot be looked at",
    )


def _declared(module: nn.Module) -> int | None:
    value = getattr(module, "state_size", None)
    try:
        value = value() if callable(value) else value
    except TypeError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def find_reader(run: CheckRun) -> tuple[PartReader | None, str]:
    """How this layer reads token by token, found by trying; or why it cannot be said."""
    module = run.caller.module(run.short)
    x = run.caller.converted(run.draw("step", 2, run.short))
    tried, why = _candidates(module), ""
    for reader in tried:
        try:
            with torch.no_grad():
                _read(run.caller, module, reader, x, [1, 1, 1])
        except CannotCheckError:
            raise
        except FAILURES as error:
            why = why or f"{reader.name} is not understood: {error_text(error)}"
            continue
        return reader, ""
    return None, why or "it has neither a step method nor a state to pass on"


def _candidates(module: nn.Module) -> list[PartReader]:
    found: list[PartReader] = []
    step = getattr(module, "step", None)
    if callable(step):
        firsts = ["state = None"]
        for name in _FIRST_STATES:
            if callable(getattr(module, name, None)):
                calls = (f"layer.{name}({given})" for given in (
                    "len(x)", "", "len(x), dtype=x.dtype", "len(x), x.dtype", "len(x), x.device",
                    "len(x), x.device, x.dtype", "len(x), x.shape[1]", "x", "x[:, 0]",
                ))  # fmt: skip
                firsts = [f"state = {call}" for call in calls] + firsts
                break
        for first in firsts:
            found += [
                PartReader(
                    first, "y, state = layer.step(part[:, 0], state); y = y[:, None]", False, "step"
                ),
                PartReader(first, "y, state = layer.step(part, state)", False, "step"),
                PartReader(
                    first, "state, y = layer.step(state, part[:, 0]); y = y[:, None]", False, "step"
                ),
                PartReader(
                    first, "state, y = layer.step(part[:, 0], state); y = y[:, None]", False, "step"
                ),
            ]
        resets = [
            name
            for name in ("reset", "reset_state", "reset_cache", "clear_cache")
            if callable(getattr(module, name, None))
        ]
        first = f"state = layer.{resets[0]}()" if resets else "state = None"
        found += [
            PartReader(first, "y = layer.step(part[:, 0])[:, None]", False, "step"),
            PartReader(first, "y = layer.step(part)", False, "step"),
        ]
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return found
    for parameter in parameters:
        if parameter.name in _STATE_NAMES and parameter.default is None:
            name = parameter.name
            cached = [
                f", {p.name}=True" for p in parameters if p.name in ("use_cache", "return_state")
            ]
            call = f"layer(part, {name}=state{''.join(cached)})"
            found += [
                PartReader("state = None", f"y, state = {call}", True, f"the argument {name}"),
                PartReader("state = None", f"y, _, state = {call}", True, f"the argument {name}"),
            ]
    return found


def _read(
    caller: Caller, module: nn.Module, reader: PartReader, x: Tensor, parts: list[int]
) -> tuple[Tensor, list[int]]:
    """The outputs of x read in parts of so many tokens, and how many numbers the state of one
    example has after each; 0 where it cannot be seen."""
    names: dict[str, Any] = {"torch": torch, "layer": module, "x": x}
    outs, sizes, start = [], [], 0
    with watched("it reads token by token"):
        torch.manual_seed(1)
        exec(reader.first, names)
        for part in parts:
            names["part"] = x[:, start : start + part].clone()
            caller.beat("it reads token by token")
            exec(reader.advance, names)
            y = names["y"]
            if not isinstance(y, Tensor) or y.shape[:2] != (len(x), part):
                raise ValueError(f"{reader.name} does not give an output for each token")
            outs.append(y.double().cpu())
            sizes.append(_numbers(names["state"], len(x)))
            start += part
    return torch.cat(outs, 1), sizes


def _numbers(state: Any, batch: int) -> int:
    leaves = [each for each in tree_leaves(state) if isinstance(each, Tensor)]
    return sum(
        each.numel() * (2 if each.is_complex() else 1) // batch
        for each in leaves
        if each.is_floating_point() or each.is_complex()
    )


def _step(run: CheckRun, reader: PartReader, declared: int | None) -> None:
    cheap = run.clock.left > 0.5 * run.clock.seconds
    length = longest_of(run, (300, 256) if cheap else ()) or longest_of(run, _WHOLE) or run.short
    rows = 1 if run.mixes else 2
    ways = [("one token at a time", [1] * length)]
    if reader.several:
        for part in (length // 2, 7, 64):
            rest = [part] * (length // part) + [length % part] * bool(length % part)
            ways.append((f"in parts of {part} tokens", rest))
        ways.append(("in one part and single tokens", [length - 8, *[1] * 8]))
    else:
        reader = replace(reader)
    done, sizes = list[str](), [0]
    x = run.draw("steps", rows, length)
    expected = allowed_at(run, run.caller, x)
    for what, parts in ways:
        if run.clock.left < 0 and done:
            break
        module = run.caller.build(length)
        with torch.no_grad():
            try:
                out, counted = _read(run.caller, module, reader, run.caller.converted(x), parts)
            except CannotCheckError:
                raise
            except FAILURES as error:
                if done:
                    run.remarks.append(f"{reader.name} refuses x {what}: {error_text(error)}")
                    continue
                raise
        sizes = counted if not done else sizes
        done.append(what)
        if out.dim() != expected.whole.dim():
            out = out.reshape(expected.whole.shape)
        change = largest_by_token(apart(out, expected.whole).nan_to_num(0.0, torch.inf, 0.0))
        over = expected.exceeded(change)
        if over:
            token = over[0]
            scale = float(expected.scale[-1])
            size, noise = (float(each[token]) / scale for each in (change, expected.by_token))
            run.report(
                Finding(
                    "step",
                    f"{what}, output {token + 1} of {length} differs from all at once by "
                    f"{size:.1e} of the largest output; rounding allows {noise:.1e}",
                    length, token + 1, None, size, noise,
                    _step_code(run, reader, x, parts),
                )
            )  # fmt: skip
            break
    run.keep("step", f"{length} tokens, {'; '.join(done)}")
    grows = len(set(sizes[-3:])) > 1
    if declared is None or not sizes[-1]:
        return
    if grows:
        return run.skip("state", "the state grows from token to token")
    if declared == sizes[-1]:
        return run.keep("state", f"{declared} numbers, as declared")
    code = "\n".join(
        (*_step_code(run, reader, x, [1, 1, 1]).splitlines()[:-1],
         "import torch.utils._pytree as tree",
         "leaves = [each for each in tree.tree_leaves(state) if torch.is_tensor(each)]",
         "floats = [each for each in leaves if each.is_floating_point()]",
         'print(layer.state_size, "declared;", sum(each.numel() // len(x) for each in floats))')
    )  # fmt: skip
    run.report(
        Finding(
            "state",
            f"it declares a state of {declared} numbers, and passes on {sizes[-1]}",
            size=abs(declared - sizes[-1]) / max(declared, 1), code=code,
        )
    )  # fmt: skip


def _step_code(run: CheckRun, reader: PartReader, x: Tensor, parts: list[int]) -> str:
    rows, length = x.shape[:2]
    caller = run.caller
    listed = "[1] * T" if parts == [1] * length else str(parts)
    return "\n".join(
        (
            *caller.lines(length),
            f"g = torch.Generator().manual_seed({run.seed('steps', rows, length)})",
            f"x = torch.randn({rows}, T, D, generator=g, dtype=torch.float64)",
            f"x = x.to({caller.device!r}, {caller.dtype})",
            "with torch.no_grad():",
            f"    whole, outs, start = {caller.call}, [], 0",
            f"    {reader.first}",
            f"    for size in {listed}:",
            "        part = x[:, start:start + size].clone()",
            f"        {reader.advance}",
            "        outs.append(y)",
            "        start += size",
            'print("part by part differs by", float((torch.cat(outs, 1) - whole).abs().max()))',
        )
    )
