"""Calling a layer so that nothing but its input can matter unless the layer makes it.

A call is the text of a Python expression in `layer` and `x`; `signatures.py` finds it.
"""

import contextlib
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ithbit.contract.building import LONGEST, Subject
from ithbit.contract.watching import watched
from ithbit.errors import LayerError


@dataclass
class Caller:
    """A layer in one dtype and mode. `fresh` builds it for each call, for one that keeps a state;
    `moved` moves its weights away from their first values; `autocast` calls it in bfloat16 where
    torch chooses so."""

    subject: Subject
    seed: int
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    call: str = "layer(x)"
    training: bool = False
    fresh: bool = False
    moved: bool = False
    autocast: bool = False
    beat: Callable[[str], None] = field(default=lambda text: None, repr=False)
    _modules: dict[int, nn.Module] = field(default_factory=dict, repr=False)
    # As built, by the number of tokens: shared by all that are like this one.
    first: dict[int, nn.Module] = field(default_factory=dict, repr=False)
    # The latest inputs and their outputs, which other futures are compared with.
    kept: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def like(self, **changes: Any) -> "Caller":
        """Another one, new, that differs in some ways."""
        return replace(self, _modules={}, kept={}, **changes)

    def build(self, n_tokens: int) -> nn.Module:
        """The layer as new: a copy of that built first, so that its weights are the same, whatever
        drew them; or built again, if it cannot be copied."""
        try:
            if n_tokens not in self.first:
                self.first[n_tokens] = self._made(n_tokens)
            module = copy.deepcopy(self.first[n_tokens])
        except LayerError:
            raise
        except Exception:
            module = self._made(n_tokens)
        module = getattr(module.to(self.device), _CONVERSIONS[self.dtype])().train(self.training)
        if self.moved:
            exec("\n".join(_MOVING), {"torch": torch, "layer": module})
        return module

    def _made(self, n_tokens: int) -> nn.Module:
        self.beat("it is built")
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        np.random.seed(self.seed)
        with watched("it is built", building=True):
            module = self.subject.make(n_tokens)
        if any(nn.parameter.is_lazy(value) for value in module.parameters()):
            x = torch.zeros(2, min(n_tokens, 17), self.subject.width)
            with torch.no_grad():  # weights that are made in the first call
                module(x)
        return module

    def module(self, n_tokens: int) -> nn.Module:
        """The layer that is called with so many tokens."""
        key = n_tokens if self.subject.by_length else 0
        if self.fresh:
            return self.build(key or LONGEST)
        if key not in self._modules:
            if len(self._modules) > 8:
                self._modules.clear()
            self._modules[key] = self.build(key or LONGEST)
        return self._modules[key]

    def __call__(self, x: Tensor, n_tokens: int | None = None) -> Tensor:
        """Outputs in float64, their own copy; `n_tokens` is what the layer is made for. In training
        mode gradients are recorded, as in training."""
        module = self.module(n_tokens or x.shape[1])
        with torch.set_grad_enabled(self.training):
            given = self.converted(x).requires_grad_(self.training)
            out = self.raw(module, given * 1 if self.training else given)
        return out.detach().to("cpu", torch.float64, copy=True)

    def converted(self, x: Tensor) -> Tensor:
        """The input as the layer gets it: its own copy."""
        return x.detach().to(self.device, self.dtype, copy=True)

    def raw(self, module: nn.Module, x: Tensor, seed: int = 1) -> Tensor:
        """One call."""
        self.beat(f"it reads an input of shape {tuple(x.shape)}")
        seed_torch(seed, self.device)
        random.seed(seed)
        np.random.seed(seed)
        with watched(f"it reads an input of shape {tuple(x.shape)}"), self._casting():
            out = eval(self.call, {"torch": torch, "layer": module, "x": x})
        if not isinstance(out, Tensor) or out.dim() < 2 or out.shape[:2] != x.shape[:2]:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"gives shape {shape} for an input of shape {tuple(x.shape)}")
        return out

    @property
    def unit(self) -> float:
        """Of the coarsest type in which it is called."""
        return float(torch.finfo(torch.bfloat16 if self.autocast else self.dtype).eps)

    def _casting(self) -> contextlib.AbstractContextManager[Any]:
        if not self.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, torch.bfloat16)

    @property
    def _device_type(self) -> str:
        return self.device.partition(":")[0]

    def lines(self, n_tokens: int) -> tuple[str, ...]:
        """Python that builds the layer as `layer`, with T and D."""
        conversion = _CONVERSIONS[self.dtype]
        where = "" if self.device == "cpu" else f".to({self.device!r})"
        mode = "train()" if self.training else "eval()"
        shown = (
            LONGEST if not self.subject.by_length and "T" in self.subject.lines[-1] else n_tokens
        )
        sized = (f"T = {shown}",) if shown != n_tokens else ()
        return (
            "import torch",
            *[line for line in self.subject.lines[:-1]],
            f"torch.manual_seed({self.seed})",
            f"T, D = {n_tokens}, {self.subject.width}",
            *sized,
            self.subject.lines[-1] if self.subject.lines else "# layer: the module checked",
            *([f"T = {n_tokens}"] if sized else []),
            f"layer = layer{where}.{conversion}().{mode}",
            *(_MOVING if self.moved else ()),
        )

    def run_lines(self, n_tokens: int, seed: int | None = 1) -> tuple[str, ...]:
        """Python that builds the layer and defines `run(x)`, for x of shape (batch, token, dim)."""
        casting = ""
        if self.autocast:
            casting = f", torch.autocast({self._device_type!r}, torch.bfloat16)"
        convert = f"x.to({self.device!r}, {self.dtype})"
        convert += ".clone().requires_grad_() * 1" if self.training else ""
        if self.fresh:
            built = self.lines(n_tokens)
            cut = next(k for k, line in enumerate(built) if line.startswith("torch.manual_seed"))
            body = [
                *built[:cut],
                f"T, D = {n_tokens}, {self.subject.width}",
                "def run(x):  # builds the layer anew: it keeps a state from call to call",
                *[f"    {line}" for line in built[cut:]],
            ]
            if self.subject.instance:
                body = [line.replace("(layer)", "(given)") for line in body]
                body.insert(1, "given = layer")
        else:
            body = [*self.lines(n_tokens), "def run(x):"]
        return (
            *body,
            f"    x = {convert}",
            *([f"    torch.manual_seed({seed})"] if seed is not None else []),
            f"    with torch.set_grad_enabled({self.training}){casting}:",
            f"        return ({self.call}).detach().double()",
        )


# Not `to(dtype)`, which would make complex weights real.
_CONVERSIONS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "half",
}
_MOVING = (
    "h = torch.Generator().manual_seed(3)",
    "with torch.no_grad():  # weights away from their first values: an initial 0 hides much",
    "    for p in layer.parameters():",
    "        if p.requires_grad and p.is_floating_point():",
    "            step = torch.randn(p.shape, generator=h) * 0.2",
    "            p.add_(step.to(p) / max(p.shape[-1:] or (1,)) ** 0.5)",
)


def seed_torch(seed: int, device: str) -> None:
    """What `torch.manual_seed` does, which notes each call's place for devices not in use."""
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def reseeds(caller: Caller, x: Tensor) -> str | None:
    """The random state that a call sets to a value of its own, if it does."""
    module, ends = caller.module(x.shape[1]), []
    for seed in (11, 12):
        with torch.no_grad():
            caller.raw(module, caller.converted(x), seed)
        ends.append((torch.get_rng_state().tolist(), random.getstate()))
    if ends[0][0] == ends[1][0]:
        return "torch's random seed"
    return "Python's random seed" if ends[0][1] == ends[1][1] else None
