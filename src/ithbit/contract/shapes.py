"""Clauses that compare calls of different shapes: length (a prefix gives what it gives in the
whole), step (one token at a time, or in chunks, gives what all at once give), and state.

Sums are taken in another order there, so rounding is estimated from the layer itself: from how far
its outputs move when its inputs do, and from the precision in which it computes.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ithbit.contract.calling import Caller
from ithbit.contract.causality import longest_of
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import SMALL_STEP, apart, jittered, tolerance, unit_of
from ithbit.contract.findings import Finding
from ithbit.contract.watching import CannotCheckError, watched
from ithbit.models.user_code import FAILURES, error_text

PREFIXES = (
    *(1, 2, 3, 7, 16, 17, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 200, 255, 256, 257, 300),
    *(400, 511, 512, 513, 768, 1000, 1024),
)
_FEWEST = 8  # prefixes that are tried even if time is over
_WHOLE = (513, 512, 257, 256, 130, 128, 64, 32, 16)
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
class Allowed:
    """How far outputs of the same tokens in another shape may be apart, by token."""

    whole: Tensor
    by_token: Tensor
    scale: Tensor  # the largest output so far, by token


def allowed_at(run: CheckRun, caller: Caller, x: Tensor) -> Allowed:
    """What rounding may do to the outputs of x, from two small moves of it."""
    whole = caller(x)
    g = torch.Generator().manual_seed(run.seed("small step"))
    response = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(2):
        moved = apart(caller(jittered(x, SMALL_STEP, g)), whole).nan_to_num(0.0, 0.0, 0.0)
        response = response.maximum(_by_token(moved))
    finite = torch.where(whole.isfinite(), whole.abs(), 0.0)
    scale = _by_token(finite).cummax(0).values
    unit = max(run.unit, unit_of(caller.dtype))
    return Allowed(whole, tolerance(response.cummax(0).values, scale, unit), scale)


def _by_token(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).amax(1)


def check_length(run: CheckRun) -> None:
    """A prefix gives what it gives in the whole."""
    if run.is_random:
        return run.skip("length", "random in evaluation mode")
    if run.leaks:
        return run.skip("length", "later tokens matter anyway")
    with run.attempt("length"):
        made = run.caller.subject.by_length
        whole = (
            longest_of(run, (1025, *_WHOLE)) if run.clock.left > 0.6 * run.clock.seconds else None
        )
        whole = whole or longest_of(run, _WHOLE)
        if whole is None:
            return run.skip("length", "no usual length is taken")
        rows = 1 if run.mixes else 2
        done: list[int] = []
        for draw in ("prefix", "prefix again"):
            x = run.draw(draw, rows, whole)
            expected = allowed_at(run, run.caller, x)
            finding = _prefixes(run, x, expected, done, draw, whole if made else None)
            if finding is None:
                break
            if draw == "prefix again":  # the second input shows it too
                return run.report(finding)
        shown = ", ".join(map(str, sorted(set(done))))
        if not done:
            return run.skip("length", f"nothing shorter than {whole} tokens is taken")
        run.keep("length", f"prefixes of {shown} of {whole} tokens")
    return None


def _prefixes(
    run: CheckRun, x: Tensor, expected: Allowed, done: list[int], draw: str, made: int | None
) -> Finding | None:
    rows, whole = x.shape[:2]
    for k in PREFIXES:
        if k >= whole or (run.clock.left < 0 and len(done) >= _FEWEST):
            continue
        try:
            part = run.caller(x[:, :k], made)
        except CannotCheckError:
            raise
        except FAILURES as error:
            run.refused.setdefault(k, error_text(error))
            continue
        done.append(k)
        change = _by_token(apart(part, expected.whole[:, :k]).nan_to_num(0.0, torch.inf, 0.0))
        over = (change > expected.by_token[:k]).nonzero()
        if len(over) and _jumps(run, x, change, int(over[0, 0])):
            continue
        if len(over):
            token = int(over[0, 0])
            scale = float(expected.scale[k - 1])
            size, noise = (float(each[token]) / scale for each in (change, expected.by_token))
            code = [
                *run.caller.run_lines(whole),
                f"g = torch.Generator().manual_seed({run.seed(draw, rows, whole)})",
                f"x = torch.randn({rows}, T, D, generator=g, dtype=torch.float64)",
                f"a, b = run(x)[:, :{k}], run(x[:, :{k}])",
                f'print("the first {k} outputs change by", float((a - b).abs().max()))',
            ]
            return Finding(
                "length",
                f"output {token + 1} of {k} tokens differs from that of the same tokens at the "
                f"start of {whole}: by {size:.1e} of the largest output; rounding allows "
                f"{noise:.1e}",
                k, token + 1, k + 1, size, noise, "\n".join(code),
            )  # fmt: skip
    return None


def _jumps(run: CheckRun, x: Tensor, change: Tensor, token: int) -> bool:
    """Whether an output lies where rounding moves it to another step: moves of its inputs by a few
    units of float32 change it as much, and moves sixteen times as large no more."""
    g = torch.Generator().manual_seed(run.seed("jump"))
    base, most = run.caller(x), []
    for size in (2.0**-21, 2.0**-17):
        moved = [apart(run.caller(jittered(x, size, g)), base)[:, token] for _ in range(4)]
        most.append(float(torch.stack(moved).nan_to_num(0.0, 0.0, 0.0).max()))
    return float(change[token]) <= 2 * most[0] and most[1] < 4 * most[0]


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
    length = (
        longest_of(run, (300, 256) if cheap else ()) or longest_of(run, _WHOLE[4:]) or run.short
    )
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
        change = _by_token(apart(out, expected.whole).nan_to_num(0.0, torch.inf, 0.0))
        over = (change > expected.by_token).nonzero()
        if len(over):
            token = int(over[0, 0])
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
