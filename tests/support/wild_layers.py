"""Layers that do more than compute, each in one way. Loaded by path and imported in the tests."""

import ctypes
import os
import random
import sys
import time

import torch
from torch import nn

if os.environ.get("SPINS_IN_IMPORT") == "True":
    while True:
        pass


class Keeps(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x).cumsum(1)


class Spins(Keeps):
    def forward(self, x):
        while True:
            pass


class SpinsLater(Keeps):
    def forward(self, x):
        while x.shape[1] > 100:
            pass
        return super().forward(x)


class SpinsInImport(Keeps):
    pass


class Sleeps(Keeps):
    def forward(self, x):
        time.sleep(1000)


class ExitsAtOnce(Keeps):
    def forward(self, x):
        os._exit(0)


class Allocates(Keeps):
    def forward(self, x):
        kept = []
        while True:
            kept.append(torch.ones(5_000_000))


class Crashes(Keeps):
    def forward(self, x):
        ctypes.string_at(0)


class Prints(Keeps):
    def forward(self, x):
        print("read a batch")
        return super().forward(x)


class Exits(Keeps):
    def forward(self, x):
        sys.exit(7)


class ExitsWhenBuilt(Keeps):
    def __init__(self, width):
        sys.exit(7)


class SetsDtype(Keeps):
    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        return super().forward(x)


class SetsGradMode(Keeps):
    def forward(self, x):
        torch.set_grad_enabled(True)
        return super().forward(x)


class SetsThreads(Keeps):
    def forward(self, x):
        torch.set_num_threads(3)
        return super().forward(x)


class SetsEnvironment(Keeps):
    def forward(self, x):
        os.environ["A_LAYER_WAS_HERE"] = "1"
        return super().forward(x)


class SetsFolder(Keeps):
    def forward(self, x):
        os.chdir("/")
        return super().forward(x)


class Patches(Keeps):
    def forward(self, x):
        torch.randn = torch.rand
        return super().forward(x)


class Seeds(Keeps):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x) + 0.1 * torch.rand_like(x)


class SeedsPython(Keeps):
    def forward(self, x):
        random.seed(0)
        return super().forward(x) * random.random()


class Raises(Keeps):
    def forward(self, x):
        raise RuntimeError("no kernel for this size\nand a second line")


class Nan(Keeps):
    def forward(self, x):
        return super().forward(x) / 0.0 * 0.0


class NoTensor(Keeps):
    def forward(self, x):
        return "x"


class Shortens(Keeps):
    def forward(self, x):
        return x[:, 1:]


class TakesIds(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(10, width)

    def forward(self, ids):
        return self.table(ids)


class NeedsMore(Keeps):
    def forward(self, x, graph):
        return graph(x)


class InACopy(Keeps):
    """Does something in a copy of the process that has built it, where ON_COPY says so."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.built_in = os.getpid()

    def forward(self, x):
        if os.getpid() != self.built_in:
            what = os.environ["ON_COPY"]
            while what == "spins":
                pass
            if what == "crashes":
                os.kill(os.getpid(), 11)
            if what == "exits":
                sys.exit(3)
        return super().forward(x)


class LeaksInLongChunks(Keeps):
    """What few cuts do not show: every token reads the next one, inside blocks of 50 alone."""

    def forward(self, x):
        k = torch.arange(x.shape[1])
        last = (k % 50 == 33) & (k + 1 < x.shape[1])
        out = super().forward(x)
        return out + x.roll(-1, 1) * last[:, None]
