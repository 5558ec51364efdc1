"""Time of the kernels per useful product at each width and length, compared with width 16.

    python experiments/kernel_widths.py                      # on a GPU; compiled ahead, in parallel
    python experiments/kernel_widths.py --family gru --n 64 --seeds 5 40

Several runs of each model train together; steps are captured in a CUDA graph, and the median of the
repetitions counts. Useful products are those that a step cannot do without (`bench/work.py`). A
time is one run's share of a step; the last column is the time per useful product relative to width
16 at the same length, depth and number of runs. Times are only printed; nothing is checked.
"""

import argparse
import statistics
import time

import torch

from ithbit.bench.work import step_flops
from ithbit.families import FAMILIES
from ithbit.kernels.compile_ahead import KernelPrecompiler
from ithbit.kernels.step import Step, refusal
from ithbit.spec import ModelSpec, Protocol
from ithbit.tasks.sampling import stream_keys

WIDTHS, LENGTHS = (16, 4, 8, 32), (64, 128, 256, 512)  # 16 first: the others are compared with it
FIRST = ("gru", "mamba2", "linear-causal")
STEPS, REPETITIONS, BATCH = 8, 20, 256


def step_seconds(model: ModelSpec, seeds: int, device: torch.device) -> float:
    """The median time of a training step of this many runs together."""
    step = Step(model, seeds, BATCH, device)
    values = 0.2 * torch.randn(seeds, step.plan.n_parameters, device=device)
    mean, square = torch.zeros_like(values), torch.zeros_like(values)
    keys = stream_keys(list(range(seeds)), device)
    first, steps = (torch.zeros(seeds, 1, dtype=torch.int64, device=device) for _ in range(2))
    loss_sum = torch.zeros(seeds, dtype=torch.float64, device=device)
    rate = torch.full((seeds, 1), 1e-3, dtype=torch.float64, device=device)

    def one() -> None:
        step.gradients(values, keys, first, BATCH, loss_sum, steps)
        step.adamw(values, mean, square, steps, rate, Protocol())

    one()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            one()
    taken = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize(device)
        taken.append((time.perf_counter() - began) / STEPS)
    assert values.isfinite().all(), "the weights are not finite after the timed steps"
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="*", default=FIRST, choices=list(FAMILIES))
    parser.add_argument("--width", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--n", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seeds", type=int, nargs="*", default=[5, 20], help="runs together")
    options = parser.parse_args()
    device = torch.device("cuda")
    models = [
        ModelSpec("rhi", family, n, layers, d_model=width)
        for family in options.family
        for layers in options.layers
        for n in options.n
        for width in options.width
    ]
    served = [model for model in models if not refusal(model)]
    with KernelPrecompiler(served, BATCH, device, print) as ahead:
        while not all(map(ahead.ready, served)):
            time.sleep(0.2)
    print(
        f"{'rhi':16}{'L':>3}{'n':>5}{'runs':>6}{'width':>7}{'us/run':>9}{'Gflop/s':>9}{'to 16':>7}"
    )
    for family in options.family:
        for layers in options.layers:
            for n in options.n:
                for seeds in options.seeds:
                    at_16 = None
                    for width in options.width:
                        model = ModelSpec("rhi", family, n, layers, d_model=width)
                        where = f"{family:16}{layers:3}{n:5}{seeds:6}{width:7}"
                        try:
                            if why := refusal(model):
                                raise ValueError(why)
                            taken = step_seconds(model, seeds, device) / seeds
                        except Exception as error:
                            print(
                                f"{where}  {type(error).__name__}: {str(error)[:120]}", flush=True
                            )
                            continue
                        product = taken / step_flops(model, BATCH)
                        at_16 = product if width == 16 else at_16
                        ratio = f"{product / at_16:7.2f}" if at_16 else ""
                        line = f"{taken * 1e6:9.1f}{1e-9 / product:9.0f}{ratio}"
                        print(where + line, flush=True)
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
