"""Can a sequence model read the i-th bit? Theory with certificates, training under one protocol.

Every command is also a function here, with the same names and defaults.

>>> import ithbit
>>> print(ithbit.verdict("rhi", "rnn", layers=1, n=1000).because)
no weights do it past n* = 487; proved here: the counting theorem (A)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` re-exports a name for type checkers; see `_HOMES`
    from ithbit.api.bounds import bound as bound
    from ithbit.api.bounds import complexity as complexity
    from ithbit.api.bounds import verdict as verdict
    from ithbit.api.checking import assert_contract as assert_contract
    from ithbit.api.checking import check as check
    from ithbit.api.probing import capacity as capacity
    from ithbit.api.probing import probe as probe
    from ithbit.api.records import compare as compare
    from ithbit.api.records import export as export
    from ithbit.api.records import histories as histories
    from ithbit.api.records import plot as plot
    from ithbit.api.records import report as report
    from ithbit.api.records import runs as runs
    from ithbit.api.records import table as table
    from ithbit.api.sweeps import merge as merge
    from ithbit.api.sweeps import status as status
    from ithbit.api.sweeps import sweep as sweep
    from ithbit.api.theory import certify as certify
    from ithbit.api.theory import check_certificate as check_certificate
    from ithbit.api.theory import construct as construct
    from ithbit.api.theory import explain as explain
    from ithbit.api.trained import data as data
    from ithbit.api.trained import explore as explore
    from ithbit.api.trained import load as load
    from ithbit.api.trained import score as score
    from ithbit.api.trained import verify as verify
    from ithbit.api.training import params as params
    from ithbit.api.training import sample as sample
    from ithbit.api.training import train as train
    from ithbit.errors import IthbitError as IthbitError
    from ithbit.spec import ModelSpec as ModelSpec
    from ithbit.spec import Protocol as Protocol
    from ithbit.spec import RunSpec as RunSpec
    from ithbit.store.records import Epoch as Epoch
    from ithbit.store.records import Failure as Failure
    from ithbit.store.records import Result as Result

__version__ = "0.3.0"  # only here: the build reads it

_HOMES = {
    "api.checking": ("assert_contract", "check"),
    "api.bounds": ("bound", "complexity", "verdict"),
    "api.probing": ("capacity", "probe"),
    "api.records": ("compare", "export", "histories", "plot", "report", "runs", "table"),
    "api.sweeps": ("merge", "status", "sweep"),
    "api.theory": ("certify", "check_certificate", "construct", "explain"),
    "api.trained": ("data", "explore", "load", "score", "verify"),
    "api.training": ("params", "sample", "train"),
    "errors": ("IthbitError",),
    "spec": ("ModelSpec", "Protocol", "RunSpec"),
    "store.records": ("Epoch", "Failure", "Result"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import on first use, so that neither `import ithbit` nor the command line waits for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'ithbit' has no attribute {name!r}")
    return getattr(import_module(f"ithbit.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The names that completion offers, including those not imported yet."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
