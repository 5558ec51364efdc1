"""Can a sequence model read the i-th bit? Theory with certificates, and training under one
protocol.

>>> import ithbit
>>> ithbit.ModelSpec("rhi", "gru", n_bits=8).d_model
16
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ithbit import probe
    from ithbit.api import train
    from ithbit.engine.record import Epoch, Failure, Result
    from ithbit.engine.spec import Protocol, RunSpec
    from ithbit.errors import IthbitError
    from ithbit.models.spec import ModelSpec
    from ithbit.theory.certificate import certify
    from ithbit.theory.constructions import construct
    from ithbit.theory.verdicts import verdict

__version__ = "0.1.0"
__all__ = [
    "Epoch",
    "Failure",
    "IthbitError",
    "ModelSpec",
    "Protocol",
    "Result",
    "RunSpec",
    "certify",
    "construct",
    "probe",
    "train",
    "verdict",
]

_HOME = {
    "train": "api",
    "Epoch": "engine.record",
    "Failure": "engine.record",
    "Result": "engine.record",
    "Protocol": "engine.spec",
    "RunSpec": "engine.spec",
    "IthbitError": "errors",
    "ModelSpec": "models.spec",
    "certify": "theory.certificate",
    "construct": "theory.constructions",
    "verdict": "theory.verdicts",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import ithbit` and the command line do not wait for torch."""
    if name == "probe":  # the package is itself the function
        return import_module("ithbit.probe")
    if name not in _HOME:
        raise AttributeError(f"module 'ithbit' has no attribute {name!r}")
    return getattr(import_module(f"ithbit.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """What completion offers: also the names that are not imported yet."""
    return sorted({*globals(), *__all__})
