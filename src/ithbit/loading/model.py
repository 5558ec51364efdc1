"""The modules that `ithbit.load` returns: call them on bits and an index, or get attention maps."""

from pathlib import Path

import torch
from torch import Tensor, nn

from ithbit.errors import DeviceError, SpecError
from ithbit.families import family_named
from ithbit.loading.attention import attention_maps
from ithbit.loading.constructed import params_of_solution
from ithbit.loading.formal import Formal
from ithbit.loading.inputs import Bits, Index, read_inputs
from ithbit.loading.plain import Plain
from ithbit.models.stacked import Params
from ithbit.reference import weights
from ithbit.reference.double import InDouble
from ithbit.reference.models import Reference, build, missing_library
from ithbit.spec import RunSpec
from ithbit.theory.solution import Solution, TrainedSolution
from ithbit.verify.verify import params_of, read_run

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Model(nn.Module):
    """A model that takes bits and an index in any form: strings, lists, arrays, tensors.

    `module` is the network itself, for hooks and other tools.
    """

    module: nn.Module

    def forward(self, bits: Bits, index: Index) -> Tensor:
        """The logit of answer 1: positive where the model answers 1. A number, or one per row."""
        rows, wanted, single = self._read(bits, index)
        logit: Tensor = self.module(rows, wanted)
        return logit[0] if single else logit

    def attention(self, bits: Bits, index: Index) -> Tensor:
        """Attention maps: (batch) layer head query key. Raises `SpecError` if it has none."""
        rows, wanted, single = self._read(bits, index)
        with torch.no_grad():
            maps = self._maps(rows, wanted)
        return maps[0] if single else maps

    def _read(self, bits: Bits, index: Index) -> tuple[Tensor, Tensor, bool]:
        rows, wanted, single = read_inputs(bits, index)
        self._check_length(rows.shape[1])
        device = next(self.parameters()).device
        return rows.to(device), wanted.to(device), single

    def _check_length(self, n: int) -> None:
        raise NotImplementedError

    def _maps(self, bits: Tensor, index: Tensor) -> Tensor:
        raise NotImplementedError


class Trained(Model):
    """The model of a finished run, with its final weights."""

    def __init__(
        self, run: RunSpec, params: Params, dtype: torch.dtype, device: str, library: bool
    ) -> None:
        super().__init__()
        self.run = run
        if run.model.code or not library or missing_library(run.model):
            plain = Plain(run, params).to(device)
            self.module = plain.double() if dtype == torch.float64 else plain
            return
        module = build(run.model, device)
        self.module = InDouble(module) if dtype == torch.float64 else module
        weights.load(module, run.model, params)  # only now, so that float64 weights are not rounded

    @property
    def network(self) -> Reference | Plain:
        """The whole model: embedding, positions, body and head."""
        found = self.module.module if isinstance(self.module, InDouble) else self.module
        assert isinstance(found, Reference | Plain)
        return found

    @property
    def body(self) -> nn.Module:
        """The layers alone, as the library's module: BertModel, nn.GRU, Mamba2Model, …"""
        body = self.network.body
        inner = getattr(body, "model", body)
        assert isinstance(inner, nn.Module)
        return inner

    def extra_repr(self) -> str:
        return self.run.name

    def _check_length(self, n: int) -> None:
        spec = self.run.model
        tables = (
            spec.positions in ("learned", "sinusoidal")
            or family_named(spec.family).kind == "softmax"
        )
        limited = tables if isinstance(self.network, Reference) else spec.positions == "learned"
        if limited and n > 2 * spec.n_bits:
            raise SpecError(f"this model has positions for up to {2 * spec.n_bits} bits, got {n}")

    def _maps(self, bits: Tensor, index: Tensor) -> Tensor:
        spec = self.run.model
        if not family_named(spec.family).attention:
            raise SpecError(f"{spec.family} has no attention maps")
        return attention_maps(self.module, self.network, spec, bits, index)


class Construction(Model):
    """A construction: formal layers in float64. Its logit is α₁ − α₀."""

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        self.solution, self.module = solution, Formal(solution)

    def _check_length(self, n: int) -> None:
        if n != self.solution.n_bits:
            raise SpecError(f"these weights are for n = {self.solution.n_bits}, got {n} bits")

    def _maps(self, bits: Tensor, index: Tensor) -> Tensor:
        assert isinstance(self.module, Formal)
        return self.module.attention(bits, index)


def from_run(
    folder: Path, dtype: str | torch.dtype = "float32", device: str = "cpu", library: bool = True
) -> Trained:
    """The model of a run folder."""
    run, stored = read_run(folder)
    return Trained(run, params_of(run, stored), _dtype(dtype), _device(device), library).eval()


def _dtype(name: str | torch.dtype) -> torch.dtype:
    chosen = _DTYPES.get(str(name).removeprefix("torch."))
    if chosen is None:
        raise SpecError(f"unknown dtype {name!r}; choose one of {', '.join(_DTYPES)}")
    return chosen


def _device(name: str | torch.device) -> str:
    """The device, if torch can use it here."""
    try:
        return str(torch.empty(0, device=name).device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"torch has no device {name!r} here; use cpu or, if any, cuda") from error


def from_solution(solution: Solution, device: str = "cpu") -> Construction:
    """A construction as a module."""
    return Construction(solution).to(_device(device)).eval()


def from_trained_solution(
    solution: TrainedSolution, dtype: str, device: str = "cpu", library: bool = True
) -> Trained:
    """Explicit weights for trained blocks as the model of a run."""
    chosen = _dtype(dtype)
    params = params_of_solution(solution, chosen)
    return Trained(RunSpec(solution.spec, 0), params, chosen, _device(device), library).eval()
