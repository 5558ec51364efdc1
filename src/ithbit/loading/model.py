"""The modules that `ithbit.load` returns: call them on bits and an index, or get attention maps."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.errors import DeviceError, SpecError, one_of
from ithbit.families import family_named
from ithbit.loading.constructed import params_of_solution
from ithbit.loading.formal import FormalModel
from ithbit.loading.single_seed import SingleSeedModel
from ithbit.models import classifier
from ithbit.models.classifier import stack
from ithbit.models.magnitudes import is_bounded, stays_finite
from ithbit.models.softmax_attention import softmax_weights
from ithbit.models.stacked import Params, part
from ithbit.reference import weights
from ithbit.reference.models import Reference, build, has_reference
from ithbit.spec import ModelSpec, RunSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.theory.solution import Solution, TrainedSolution
from ithbit.verification.run_verification import params_of
from ithbit.verification.stored_run import read_stored_run

Bits = str | Sequence[Any] | np.ndarray[Any, Any] | Tensor
Index = int | Sequence[int] | np.ndarray[Any, Any] | Tensor

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Model(nn.Module):
    """A model that takes bits and an index in any form: strings, lists, arrays, tensors.

    `module` is the network itself, for hooks and other tools.
    """

    module: nn.Module

    def forward(self, bits: Bits, index: Index) -> Tensor:
        """The logit of answer 1: positive where the model answers 1. A number, or one per row; NaN
        and infinity are no answer."""
        rows, indices, single = self._read(bits, index)
        logit = self._logit(rows, indices)
        return logit[0] if single else logit

    def _logit(self, bits: Tensor, index: Tensor) -> Tensor:
        logit: Tensor = self.module(bits, index)
        return logit

    def attention(self, bits: Bits, index: Index) -> Tensor:
        """Attention maps: (batch) layer head query key. Raises `SpecError` if it has none."""
        rows, indices, single = self._read(bits, index)
        with torch.no_grad():
            maps = self._maps(rows, indices)
        return maps[0] if single else maps

    def _read(self, bits: Bits, index: Index) -> tuple[Tensor, Tensor, bool]:
        rows, indices, single = read_inputs(bits, index)
        self._check_length(rows.shape[1])
        device = next(self.parameters()).device
        return rows.to(device), indices.to(device), single

    def _check_length(self, n: int) -> None:
        raise NotImplementedError

    def _maps(self, bits: Tensor, index: Tensor) -> Tensor:
        raise NotImplementedError


class TrainedModel(Model):
    """The model of a finished run, with its final weights.

    A library's attention may drop NaN, and sums overflow in one order and not in another. Where the
    weights as loaded allow that (`models/magnitudes.py`), the logit is NaN unless the models that
    are trained give a finite one of the same sign.
    """

    def __init__(
        self, run: RunSpec, params: Params, dtype: torch.dtype, device: str, library: bool
    ) -> None:
        super().__init__()
        self.run, self._loaded = run, params
        self._safe: dict[int, bool] = {}  # by number of bits
        own = not library or not has_reference(run.model)
        module = SingleSeedModel(run, params).to(device) if own else build(run.model, device)
        self.module = module.double() if dtype == torch.float64 else module
        if not own:  # only now, so that float64 weights are not rounded
            weights.load(module, run.model, params)

    @property
    def network(self) -> Reference | SingleSeedModel:
        """The whole model: embedding, positions, body and head."""
        assert isinstance(self.module, Reference | SingleSeedModel)
        return self.module

    @property
    def body(self) -> nn.Module:
        """The layers alone, as the library's module: BertModel, nn.GRU, Mamba2Model, …"""
        body = self.network.body
        inner = getattr(body, "model", body)
        assert isinstance(inner, nn.Module)
        return inner

    def extra_repr(self) -> str:
        return self.run.name

    def _logit(self, bits: Tensor, index: Tensor) -> Tensor:
        logit, spec, n = super()._logit(bits, index), self.run.model, bits.shape[1]
        if not is_bounded(spec):  # then the module is our own already
            return logit
        if n not in self._safe:
            self._safe[n] = bool(stays_finite(stack([self._loaded]), spec, n))
        if self._safe[n]:
            return logit
        params = {name: value.unsqueeze(0).to(logit) for name, value in self._loaded.items()}
        with torch.no_grad():
            table = token_table(spec.task, n, logit.dtype, logit.device)
            stacked = classifier.logits(params, spec, table, Examples(bits[None], index[None]))[0]
        agreed = stacked.isfinite() & logit.isfinite() & (stacked.sign() == logit.sign())
        return torch.where(agreed, logit, math.nan)

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
        if family_named(spec.family).kind not in ("softmax", "linear"):
            raise SpecError(f"{spec.family} has no attention maps")
        # The library's fused attention keeps no maps: they are computed from what each block reads.
        inputs: list[Tensor] = []
        encoder = getattr(self.body, "encoder", None)
        hooks = [
            block.register_forward_pre_hook(lambda block, args: inputs.append(args[0].detach()))
            for block in (self.body.children() if encoder is None else encoder.layer)
        ]
        try:
            self.module(bits, index)
        finally:
            for hook in hooks:
                hook.remove()
        net = self.network
        own = net.block_params() if isinstance(net, SingleSeedModel) else None
        params = weights.export(net, spec) if own is None else own
        return torch.stack(
            [_attention_map(part(params, f"blocks.{k}"), spec, x) for k, x in enumerate(inputs)], 1
        )


class ConstructionModel(Model):
    """A construction: formal layers in float64. Its logit is α₁ − α₀."""

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        self.solution, self.module = solution, FormalModel(solution)

    def _check_length(self, n: int) -> None:
        if n != self.solution.n_bits:
            raise SpecError(f"these weights are for n = {self.solution.n_bits}, got {n} bits")

    def _maps(self, bits: Tensor, index: Tensor) -> Tensor:
        assert isinstance(self.module, FormalModel)
        return self.module.attention(bits, index)


def load_model(
    source: Path | Solution | TrainedSolution,
    dtype: str = "float32",
    device: str = "cpu",
    library: bool = True,
) -> Model:
    """The model of a run folder, of a construction, or of explicit weights for trained blocks."""
    if isinstance(source, Solution):
        return ConstructionModel(source).to(_device(device)).eval()
    torch_dtype = _DTYPES[one_of("unknown dtype", str(dtype).removeprefix("torch."), _DTYPES)]
    if isinstance(source, TrainedSolution):
        run, params = RunSpec(source.spec, 0), params_of_solution(source, torch_dtype)
    else:
        stored = read_stored_run(source)
        run, params = stored.spec, params_of(stored.spec, stored.weights)
    return TrainedModel(run, params, torch_dtype, _device(device), library).eval()


def _device(name: str | torch.device) -> str:
    """The device, if torch can use it here."""
    try:
        return str(torch.empty(0, device=name).device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"torch has no device {name!r} here; use cpu or, if any, cuda") from error


def _attention_map(params: Params, spec: ModelSpec, x: Tensor) -> Tensor:
    """One layer's map from the states it reads: batch head query key.

    Rows of linear attention sum to a little less than 1, because of the epsilon in its denominator.
    """
    d, family = spec.d_model, family_named(spec.family)
    weight, bias = params["qkv.weight"][: 2 * d], params.get("qkv.bias")
    if family.kind == "linear":
        x = F.layer_norm(x, (d,), params["norm1.weight"], params["norm1.bias"])
    qk = F.linear(x, weight, None if bias is None else bias[: 2 * d])
    q, k = (t.unflatten(-1, (spec.n_heads, -1)).transpose(1, 2) for t in qk.split(d, dim=-1))
    if family.kind == "linear":
        scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        scores = scores.tril() if family.causal else scores
        return scores / (scores.sum(-1, keepdim=True) + 1e-6)
    return softmax_weights(q, k, spec)


def read_inputs(bits: Bits, index: Index) -> tuple[Tensor, Tensor, bool]:
    """Bits (batch, n), index (batch), and whether a single input was given.

    Bits are a string such as "1011", a row of 0 and 1, or several of either; one index can go with
    several rows, and one row with several indices.

    >>> read_inputs("101", 2)
    (tensor([[1, 0, 1]]), tensor([2]), True)
    >>> read_inputs(["10", "01"], 1)[1].tolist(), len(read_inputs("10", [1, 2])[0])
    ([1, 1], 2)
    """
    rows, indices = _bits(bits), _integers(index, "the index")
    if rows.dim() not in (1, 2) or indices.dim() > 1 or not rows.numel():
        raise SpecError(
            f"give bits as (n) or (batch, n) and an index for each, got shapes "
            f"{tuple(rows.shape)} and {tuple(indices.shape)}"
        )
    if not ((rows == 0) | (rows == 1)).all():
        other = rows[(rows != 0) & (rows != 1)][0].item()
        raise SpecError(f"bits must be 0 or 1, got {other}")
    n = rows.shape[-1]
    if not ((indices >= 1) & (indices <= n)).all():
        raise SpecError(f"the index must be in 1..{n}, got {indices.tolist()}")
    single = rows.dim() == 1 and indices.dim() == 0
    rows, indices = torch.atleast_2d(rows), torch.atleast_1d(indices)
    if len(rows) != len(indices) and 1 not in (len(rows), len(indices)):
        raise SpecError(
            f"got {len(rows)} rows of bits and {len(indices)} indices; give one per row"
        )
    size = max(len(rows), len(indices))
    return rows.expand(size, n), indices.expand(size), single


def _bits(bits: Bits) -> Tensor:
    if isinstance(bits, str):
        if set(bits) - {"0", "1"}:
            raise SpecError(f"bits must be a string of 0 and 1 such as 1011, got {bits!r}")
        return torch.tensor([int(bit) for bit in bits], dtype=torch.long)
    if isinstance(bits, Sequence) and bits and isinstance(bits[0], str):
        read = [_bits(row) for row in bits]
        if len({len(row) for row in read}) > 1:
            raise SpecError("all rows of a batch must have the same number of bits")
        return torch.stack(read)
    return _integers(bits, "bits")


def _integers(values: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
        integers = tensor.long()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{what} must be whole numbers, got {values!r:.80}") from error
    if not torch.equal(integers.to(tensor.dtype), tensor):
        raise SpecError(f"{what} must be whole numbers, got {values!r:.80}")
    return integers
