"""Does a layer keep its contract? The check as a function, and as a line of a test."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import Layer, as_list, checked
from ithbit.contract.findings import CheckSettings, ContractReport
from ithbit.engine.options import device_problem
from ithbit.errors import SpecError

if TYPE_CHECKING:
    from torch import nn

_SECONDS = CheckSettings().seconds


@checked
def check(
    layer: "str | Layer | nn.Module | None" = None,
    *,
    model: "str | Layer | nn.Module | None" = None,
    width: int = 16,
    seconds: float = _SECONDS,
    seed: int = 0,
    allow: str | Iterable[str] | None = None,
    dtype: str = "float64",
    device: str = "auto",
    name: str | None = None,
) -> ContractReport:
    """Check whether a layer keeps its contract, or show the input that breaks it.

    No output may depend on later tokens, on other examples of the batch or on earlier calls; a
    prefix must give what it gives in the whole, and step by step what all at once give. The layer
    maps (batch, token, width) to (batch, token, …). Each finding comes with Python that shows it
    alone. Clauses in `allow` may be broken. A layer that is named is checked in a process of its
    own, with limits.

    A whole causal language model, token ids to logits, is given as `model`: a factory without
    arguments, transformers:LlamaForCausalLM, a family or a run. Decoding with its cache, chunks and
    padding on the left are checked too.

    >>> import torch
    >>> report = check(lambda width: torch.nn.Linear(width, width), width=4, seconds=1)
    >>> report.verdict, report.exit_code
    ('keeps', 0)
    """
    subject = layer if model is None else model
    if subject is None or None not in (layer, model):
        raise SpecError("give either a layer or a model to check")
    settings = settings_of(subject, width, seconds, seed, allow, dtype, device)
    if isinstance(subject, str):
        from ithbit.contract.child import check_in_child

        is_model = model is not None or subject.startswith("transformers:")
        return check_in_child(subject, settings, kind="model" if is_model else "layer")
    from ithbit.contract.model_sources import is_whole_model

    if model is not None or is_whole_model(subject):
        from ithbit.contract.whole_models import check_model

        return check_model(subject, settings, name or "")
    from ithbit.contract.check import check_contract

    return check_contract(subject, settings, name or "")


def settings_of(
    layer: Any,
    width: int,
    seconds: float,
    seed: int,
    allow: str | Iterable[str] | None,
    dtype: str,
    device: str,
) -> CheckSettings:
    """Settings as a user gives them; `auto` is the GPU for layers that need one."""
    problem = device_problem(device)
    if problem is not None:
        raise problem
    if device == "auto":
        device = "cuda" if isinstance(layer, str) and layer.startswith("fla:") else "cpu"
    allowed = tuple(as_list(allow)) if allow is not None else ()
    return CheckSettings(seconds, seed, allowed, dtype, device, width)


def assert_contract(
    layer: "str | Layer | nn.Module | None" = None,
    *,
    model: "str | Layer | nn.Module | None" = None,
    width: int = 16,
    seconds: float = _SECONDS,
    seed: int = 0,
    allow: str | Iterable[str] | None = None,
    dtype: str = "float64",
    device: str = "auto",
    name: str | None = None,
) -> None:
    """Raise an `AssertionError` with the report if a layer breaks its contract.

    So it does for a layer that cannot be checked. One line of a test, for pytest and unittest.

    >>> import torch
    >>> assert_contract(lambda width: torch.nn.LayerNorm(width), width=4, seconds=1)
    """
    report = check(
        layer, model=model, width=width, seconds=seconds, seed=seed, allow=allow, dtype=dtype,
        device=device, name=name,
    )  # fmt: skip
    if report.exit_code:
        raise AssertionError(report.text())
