"""What non-uniform examples cost the kernels: microseconds per step, compared with uniform ones.

    python experiments/mixed_cost.py            # on a GPU, a few minutes including compilation

Five runs of each family, all kinds in turn, each captured in a CUDA graph of 16 steps; the median
of the repetitions. Times are only printed; nothing is checked.
"""

import argparse
import statistics
import time

import torch

from ithbit.families import FAMILIES
from ithbit.kernels.step import Step
from ithbit.spec import EXAMPLES, ModelSpec, Protocol
from ithbit.tasks.sampling import stream_keys

STEPS, REPETITIONS, SEEDS, BATCH = 16, 60, 5, 256


def captured(model: ModelSpec, examples: str, device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of STEPS training steps."""
    step = Step(model, SEEDS, BATCH, device, examples)
    values = 0.2 * torch.randn(SEEDS, step.plan.n_parameters, device=device)
    mean, square = torch.zeros_like(values), torch.zeros_like(values)
    keys = stream_keys(list(range(SEEDS)), device)
    first, steps = (torch.zeros(SEEDS, 1, dtype=torch.int64, device=device) for _ in range(2))
    loss_sum = torch.zeros(SEEDS, dtype=torch.float64, device=device)
    rate = torch.full((SEEDS, 1), 1e-3, dtype=torch.float64, device=device)

    def one() -> None:
        step.gradients(values, keys, first, BATCH, loss_sum, steps)
        step.adamw(values, mean, square, steps, rate, Protocol())

    for _ in range(3):
        one()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            one()
    graph.kept = (one,)  # keeps its tensors alive as long as the graph
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, device: torch.device) -> float:
    """The time per step in one replay."""
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="*", default=[8, 64], help="lengths (8 64)")
    lengths = parser.parse_args().n
    device = torch.device("cuda")
    heads = [f"{kind:>10}" for kind in EXAMPLES]
    print(f"{'model':32}" + f"{'more':>8}".join(heads) + f"{'more':>8}")
    for n in lengths:
        for family in FAMILIES:
            model = ModelSpec("lhi", family, n, 2)
            graphs = [captured(model, kind, device) for kind in EXAMPLES]
            times: list[list[float]] = [[] for _ in graphs]
            for _ in range(REPETITIONS):
                for graph, mine in zip(graphs, times, strict=True):
                    mine.append(microseconds(graph, device))
            uniform, *others = map(statistics.median, times)
            line = f"{f'lhi {family} L=2 n={n}':32}{uniform:10.1f}"
            for each in others:
                line += f"{each:10.1f}{each / uniform - 1:8.1%}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
