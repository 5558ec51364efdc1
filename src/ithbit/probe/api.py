"""`ithbit.probe(factory)`: the command `ithbit probe` in Python."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ithbit.engine.spec import Protocol
from ithbit.probe.layer import layer_of, load_layer
from ithbit.probe.report import RANK_LENGTH, Plan, ProbeReport, probe_layer


def probe(
    factory: Callable[..., Any] | str,
    *,
    name: str | None = None,
    width: int = 16,
    n: int | Iterable[int] = 8,
    layers: int | Iterable[int] = (1, 2),
    seeds: Iterable[int] = range(5),
    rank_n: int = RANK_LENGTH,
    train: bool = True,
    protocol: Protocol | None = None,
    minutes: float = math.inf,
    store: str | Path = "runs",
    device: str = "auto",
    workers: int = 1,
    said: Callable[[str], None] = lambda text: None,
) -> ProbeReport:
    """Probe a layer: a factory, or what the command line takes in its place.

    More than one worker needs a name such as `"layers.py:Mine"`, which another process can load,
    and a script whose own work is under `if __name__ == "__main__"`. After so many `minutes`
    the runs that are still going end where they are, which the report says. `said` is called with a
    line of progress now and then.
    """
    plan = Plan(
        width,
        (n,) if isinstance(n, int) else tuple(n),
        (layers,) if isinstance(layers, int) else tuple(layers),
        tuple(seeds),
        rank_n,
        train,
        protocol or Protocol(),
        minutes,
    )
    layer = load_layer(factory) if isinstance(factory, str) else layer_of(factory, name)
    return probe_layer(layer, plan, Path(store), device, workers, said)
