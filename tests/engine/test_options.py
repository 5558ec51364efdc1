"""Options of training: checked once, all problems in one error, before torch is loaded."""

import subprocess
import sys

import pytest

from ithbit.engine import device
from ithbit.engine.options import TrainingOptions
from ithbit.errors import DeviceError, SpecError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 0}, SpecError, "workers must be at least 1, got 0"),
        ({"workers": 1.5}, SpecError, "workers must be a whole number, got 1.5"),
        ({"device": "tpu"}, DeviceError, "unknown device 'tpu'; choose one of auto, cpu, cuda"),
        ({"device": "cpu:1"}, DeviceError, "unknown device 'cpu:1'; choose one of auto, cpu, cuda"),
        ({"device": 3}, DeviceError, "unknown device 3; choose one of auto, cpu, cuda"),
        (
            {"kernels": "yes"},
            DeviceError,
            "unknown choice of kernels 'yes'; choose one of auto, on, off",
        ),
        (
            {"device": "tpu", "compile": "yes"},
            DeviceError,
            "unknown device 'tpu'; choose one of auto, cpu, cuda; "
            "unknown choice of compile 'yes'; choose one of auto, on, off",
        ),
    ],
)
def test_problems_are_reported_at_once(options, error, message) -> None:
    with pytest.raises(error) as raised:
        TrainingOptions(**options)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_names_of_devices(name: str) -> None:
    assert TrainingOptions(name).device == name  # whether or not this machine has it


def test_the_device_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    choose = device.choose_device
    monkeypatch.setattr(device, "choose_device", lambda name: names.append(name) or choose(name))
    options = TrainingOptions("cpu")
    assert names == []
    assert options.chosen_device is options.chosen_device
    assert names == ["cpu"]


@pytest.mark.parametrize(
    "call",
    [
        'ithbit.train("rhi", "gru", device="tpu")',
        'ithbit.sweep("smoke", kernels="yes")',
        'ithbit.probe("layers.py:Mine", workers=0)',
        'ithbit.capacity("rhi", "gru", compile="yes")',
    ],
)
def test_mistakes_are_reported_before_torch_is_loaded(call: str) -> None:
    program = (
        f"import sys, ithbit\ntry:\n    {call}\nexcept ithbit.IthbitError as error:\n"
        "    print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" False\n")
