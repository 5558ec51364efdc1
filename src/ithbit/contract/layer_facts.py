"""What a probe knows of a layer before it measures: the precision it computes in, what it declares,
and how it keeps its contract.

Everything here is *observed* at random inputs; of causality, whatever `ithbit check` tries.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.contract.building import Subject
from ithbit.contract.check import check_contract
from ithbit.contract.findings import CheckSettings, ContractReport, Finding
from ithbit.errors import LayerError
from ithbit.models.layer_source import LayerSource
from ithbit.models.own_layer import TOLERANCE, check_layer, check_outputs, drawn

CHECK_SECONDS = 4.0
_DRAWS = 3


@dataclass(frozen=True)
class LayerFacts:
    """Observed facts of a usable layer."""

    contract: ContractReport
    ignores_input: bool
    declared_state: int | None
    n_parameters: int
    dtype: str  # that it is measured in

    @property
    def leak(self) -> Finding | None:
        """An output that changes with a later token, if one was seen."""
        return self._found("causal")

    @property
    def obstacle(self) -> str | None:
        """Why nothing follows from what the layer keeps, or None: it leaks, loses its state at some
        place, or could not be checked."""
        if self.leak is not None:
            return "the layer is not causal, so no state carries the past"
        if lost := self._found("carries"):
            return f"not all of the past is carried on: {lost.sentence}"
        if self.contract.cannot or self.contract.outcome("causal") != "kept":
            return f"causality could not be checked: {self.contract.cannot or 'nothing was tried'}"
        return None

    def _found(self, clause: str) -> Finding | None:
        return next((f for f in self.contract.findings() if f.clause == clause), None)

    def sentence(self, name: str) -> str:
        """Causal or not, in words."""
        if self.ignores_input:
            return f"{name} ignores its input: the outputs are the same whatever it reads"
        if self.leak is not None:
            return f"{name} is not causal: {self.leak.sentence}"
        if self.contract.outcome("causal") != "kept":
            return f"{name}: {self.obstacle}"
        return f"{name}: {self.contract.coverage.sentence()}"

    def to_json(self, name: str) -> dict[str, Any]:
        """Plain data."""
        leak = self.leak and {"token": self.leak.output, "later": self.leak.later}
        data = {key: value for key, value in asdict(self).items() if key != "contract"}
        causal = self.contract.outcome("causal") == "kept"
        return data | {"leak": leak, "causal": causal, "sentence": self.sentence(name)}


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


def layer_facts(layer: LayerSource, module: nn.Module, width: int, n_tokens: int) -> LayerFacts:
    """The facts of a layer, of which `module` is the one that is measured."""
    like = next(module.parameters(), torch.zeros(0, dtype=torch.float64))
    subject = Subject(layer.name, width, lambda _: layer.build(width), ("layer = build()",))
    settings = CheckSettings(seconds=CHECK_SECONDS, width=width, device=like.device.type)
    declared = getattr(module, "state_size", None)
    return LayerFacts(
        check_contract(subject, settings),
        _ignores_input(module, width, n_tokens, like),
        declared if isinstance(declared, int) and not isinstance(declared, bool) else None,
        sum(p.numel() for p in module.parameters()),
        str(like.dtype).removeprefix("torch."),
    )


@torch.no_grad()
def _ignores_input(module: nn.Module, width: int, n_tokens: int, like: Tensor) -> bool:
    """Whether no output differs between two random inputs."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(_DRAWS):
        x, other = (each[None] for each in drawn(2, n_tokens, width, generator).to(like))
        base, tolerance = module(x), TOLERANCE.get(like.dtype, 1e-2)
        if bool(((module(other) - base).abs() > tolerance * (1 + base.abs())).any()):
            return False
    return True
