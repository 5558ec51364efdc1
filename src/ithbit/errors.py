"""The mistakes a user can make, each with one sentence: given, allowed, what to do.

The command line prints that sentence without a traceback and exits with status 2.
"""


class IthbitError(Exception):
    """A mistake of the user's, or a state of the machine that the user can mend."""


class SpecError(IthbitError):
    """A specification that cannot be built; names every problem at once."""


class StoreError(IthbitError):
    """A run folder, record or checkpoint that cannot be used as it stands."""


class BusyError(StoreError):
    """A run that another process is training right now."""


class DeviceError(IthbitError):
    """A device that was asked for and is not there, or that failed."""


class ClusterError(IthbitError):
    """A cluster that is not there, does not answer or refuses what it is asked."""


class LayerError(IthbitError):
    """A user's layer that cannot be loaded, built or probed."""


class OutputError(IthbitError):
    """A file that was asked for and cannot be written."""


def raise_problems(subject: str, problems: list[str]) -> None:
    """Raise one `SpecError` that lists all problems of `subject`; do nothing if there are none.

    >>> raise_problems("ModelSpec", [])
    >>> raise_problems("ModelSpec", ["n must be at least 1, got 0", "heads must be ..."])
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: ModelSpec: n must be at least 1, got 0; heads must be ...
    """
    if problems:
        raise SpecError(f"{subject}: {'; '.join(problems)}")
