"""Seconds to try all 1,048,576 inputs of two-layer models at n = 16, family by family.

    python bench/verify.py                  # on this machine's CPU cores
    python bench/verify.py --device cuda
    python bench/verify.py --device cuda --fla   # also: which of fla's layers can be probed

Weights are untrained: the time does not depend on them. The first call on a GPU loads kernels, so a
small warm-up comes before the clock.
"""

import argparse
import json
import time

import torch
from safetensors.torch import save

from ithbit.engine.device import choose_device, describe_environment
from ithbit.engine.spec import RunSpec
from ithbit.errors import LayerError
from ithbit.families import FAMILIES
from ithbit.models.classifier import init
from ithbit.models.spec import ModelSpec
from ithbit.probe.behaviour import behaviour, usable
from ithbit.probe.layer import load_layer
from ithbit.probe.margins import Model
from ithbit.probe.rank import causal_rank
from ithbit.probe.verify import examine, model_of

FLA = ("GLA", "DeltaNet", "GatedDeltaNet", "RWKV6", "RWKV7", "RetNet", "HGRN", "HGRN2", "Mamba2")
FLA = (*FLA, "LinearAttention", "BasedLinearAttention", "Attention", "KimiDeltaAttention")


def model(family: str, n_bits: int, device: torch.device) -> Model:
    run = RunSpec(ModelSpec("lhi", family, n_bits, n_layers=2), seed=0)
    return model_of(run, save(init(run.model, 0)), device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--fla", action="store_true")
    options = parser.parse_args()
    device = choose_device(options.device)
    print(json.dumps(describe_environment(device)))
    for family in FAMILIES:
        examine(model(family, 8, device.torch), 8, device.torch)
        started = time.perf_counter()
        found = examine(model(family, 16, device.torch), 16, device.torch)
        assert found.n_evaluated == 1 << 20
        print(f"{family:16} {time.perf_counter() - started:7.2f} s", flush=True)
    for name in FLA if options.fla else ():
        try:
            module = usable(load_layer(f"fla:{name}"), 16, 10, device.torch)
            seen = behaviour(module, 16, 10)
            rank = causal_rank(module, 16, 12)
        except LayerError as error:
            print(f"fla:{name}: {error}", flush=True)
        except Exception as error:
            print(
                f"fla:{name}: in the rank: {type(error).__name__}: {str(error)[:200]}", flush=True
            )
        else:
            print(f"fla:{name}: {seen.sentence(name)}; {seen.dtype}; {rank.ranks}", flush=True)


if __name__ == "__main__":
    main()
