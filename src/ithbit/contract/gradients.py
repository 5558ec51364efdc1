"""The clause gradient: the same argument as for outputs, backward. A gradient of an earlier output
at a later token is rounding if it is drawn anew when later tokens move by a thousandth."""

import torch
from torch import Tensor

from ithbit.contract.calling import Caller
from ithbit.contract.causality import longest_of
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import JITTER, jittered, unit_of
from ithbit.contract.findings import Finding
from ithbit.contract.inputs import drawn
from ithbit.contract.leaks import late_rows

_ABOVE = 1e3  # units: a gradient at later tokens that no rounding gives
_EVERY = (65, 64)  # every cut is tried at the first that the layer takes, in evaluation mode
_STABLE = 0.5  # the share of it that a small move of later tokens may change


def check_gradient(run: CheckRun) -> None:
    """Gradients of sums of earlier outputs, with random signs and sizes, at all tokens."""
    if run.leaks or run.mixes:
        why = "later tokens matter anyway" if run.leaks else "examples depend on each other"
        return run.skip("gradient", why)
    done: list[int] = []
    for training in (False, True):
        caller = run.caller.like(training=training) if training else run.caller
        lengths = [longest_of(run, (130, 128, 64, 32, 16)), longest_of(run, (257, 256))]
        if not training and longest_of(run, _EVERY):  # which leaves the far cuts alone
            lengths = [longest_of(run, _EVERY), lengths[1] or lengths[0]]
        for length in dict.fromkeys(each for each in lengths if each):
            if run.clock.left < 0 and done:
                break
            with run.attempt("gradient"):
                finding = _gradient(run, caller, length, _cuts(run, length, training))
                if finding is not None:
                    return run.report(finding)
                done.append(length)
    if done and not run.is_broken("gradient"):
        run.results.pop("gradient", None)
        run.keep("gradient", f"lengths {', '.join(map(str, dict.fromkeys(done)))}")
    run.skip("gradient", "no length was tried")
    return None


def _cuts(run: CheckRun, length: int, training: bool) -> list[int]:
    """Every cut at one length, else those of usual chunks; fewer where fewer rows go into one
    call."""
    rows = run.rows(length)
    if length in _EVERY and not training:
        return list(range(1, length))[:: -(-length // (2 * rows))]
    cuts = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, length // 2, length - 2, length - 1}
    if length > _EVERY[0] and not training and longest_of(run, _EVERY):
        cuts = {80, 96, 100, 128, 129, 192, 200, length - 1}
    some = sorted(cut for cut in cuts if 0 < cut < length)
    return some[:: -(-2 * len(some) // max(2, rows))]  # backward needs more memory


def _gradient(run: CheckRun, caller: Caller, length: int, some: list[int]) -> Finding | None:
    late = late_rows(length, torch.tensor(some))[..., None]
    seeds = [run.seed(place, length) for place in ("gradient", "weights")]
    x = drawn(seeds[0], len(some), length, run.width)
    # Weights of earlier outputs alone; of any output's own width.
    given = _at(caller, x, late, seeds[1])
    ahead = torch.where(late, given, 0.0)
    if not ahead.any() or not given.isfinite().all():
        return None
    g = torch.Generator().manual_seed(run.seed("gradient jitter"))
    moved = torch.where(late, jittered(x, JITTER, g), x)
    again = torch.where(late, _at(caller, moved, late, seeds[1]), 0.0)
    size, change = float(ahead.abs().max()), float((again - ahead).abs().max())
    past = float(given.abs().max())
    unit = max(run.unit, unit_of(caller.dtype))
    if change > _STABLE * size or size <= _ABOVE * unit * past:
        return None
    row = int(ahead.abs().flatten(1).amax(1).argmax())
    token = int(ahead[row].abs().amax(-1).argmax())
    mode = ", in training mode" if caller.training else ""
    code = [
        *caller.lines(length),
        f"cuts = torch.tensor({some})",
        "late = (torch.arange(T) >= cuts[:, None])[..., None]",
        f"g = torch.Generator().manual_seed({seeds[0]})",
        "x = torch.randn(len(cuts), T, D, generator=g, dtype=torch.float64)",
        f"x = x.to({caller.device!r}, {caller.dtype}).requires_grad_()",
        "torch.manual_seed(1)",
        f"out = {caller.call}",
        f"g = torch.Generator().manual_seed({seeds[1]})",
        "w = torch.randn(out.shape, generator=g, dtype=torch.float64) * ~late",
        "(out * w.to(out)).sum().backward()",
        'print("the gradient of earlier outputs at later tokens is up to",',
        "      float((x.grad.cpu() * late).abs().max()))",
    ]
    return Finding(
        "gradient",
        f"outputs 1 to {some[row]} of {length} have a gradient at token {token + 1}{mode}: up to "
        f"{size / past:.1e} of the largest",
        length, some[row], token + 1, size / past, change / past, "\n".join(code),
    )  # fmt: skip


def _at(caller: Caller, x: Tensor, late: Tensor, seed: int) -> Tensor:
    """The gradient at the input of a weighted sum of earlier outputs; row token dim."""
    module = caller.module(x.shape[1])
    leaf = caller.converted(x).requires_grad_()
    with torch.enable_grad():
        out = caller.raw(module, leaf * 1)  # a copy, which may be changed in place
        if not out.requires_grad:
            return torch.zeros_like(x)
        g = torch.Generator().manual_seed(seed)
        weight = torch.randn(out.shape, generator=g, dtype=torch.float64)
        weight = weight * ~late.reshape(*late.shape[:2], *[1] * (out.dim() - 2))
        total = (out * weight.to(out)).sum()
        (given,) = torch.autograd.grad(total, [leaf], materialize_grads=True)
    return given.double().cpu()
