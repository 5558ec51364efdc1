"""A user's layer as a family: its functions are held to the same properties as the six, and to what
version 0.1 trained."""

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support import every_token
from tests.support.paths import ROOT, TOY_LAYERS

import ithbit
from ithbit.errors import LayerError
from ithbit.models import classifier, own_layer
from ithbit.models.layer_source import family_of, layer_of, load_layer
from ithbit.models.stacked import Sequence, part
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

CPU = torch.device("cpu")
EXAMPLES = ROOT / "examples" / "layers.py"
RECORD = json.loads(TOY_LAYERS.with_name("toy_layers_0_1.json").read_text())
SHORT = Protocol(epoch_examples=1100, held_out_examples=200, max_epochs=3)


def model(name: str, task: str = "lhi", n: int = 3, layers: int = 2, width: int = 4, **more):
    family, code = family_of(name if ":" in name else f"{TOY_LAYERS}:{name}")
    return ModelSpec(task, family, n, layers, width, code=code, **more)


def digest(tensors) -> str:
    row = torch.cat([tensor.flatten() for tensor in tensors])
    return hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16]


def trained(store: Path, spec: ModelSpec, seeds: list[int], **more):
    return ithbit.train(
        spec.task,
        more.pop("family", f"{TOY_LAYERS}:{spec.family.partition(':')[2]}"),
        n=spec.n_bits,
        layers=spec.n_layers,
        width=spec.d_model,
        seeds=seeds,
        protocol=SHORT,
        store=store,
        device="cpu",
        workers=1,
        **more,
    )


@pytest.mark.parametrize("key", RECORD)
def test_first_weights_are_those_of_0_1(key: str) -> None:
    """Bit for bit: embedding, positions and head from the seed, block k from 1000 seed + k."""
    name, task, n, layers, width, seed = key.split()
    spec = model(name, task, int(n[1:]), int(layers[1:]), int(width[1:]))
    start = classifier.init(spec, int(seed[1:]))
    assert digest(start.values()) == RECORD[key]["first_weights"]


@pytest.mark.parametrize("name", ["RunningMean", "LoopCell", "OneByOne"])
@pytest.mark.parametrize(("task", "n", "layers", "width"), [("lhi", 3, 2, 4), ("rhi", 6, 1, 16)])
def test_training_gives_the_numbers_of_0_1(tmp_path: Path, name, task, n, layers, width) -> None:
    """On the machine of the record the weights are the same to the bit (`last_weights` is their
    digest); other processors may round otherwise."""
    spec = model(name, task, n, layers, width)
    for result in trained(tmp_path, spec, [0, 1]):
        record = RECORD[f"{name} {task} n{n} L{layers} d{width} s{result.spec.seed}"]
        last = weights(tmp_path, result.spec)
        assert [float(v.double().sum()) for v in last.values()] == pytest.approx(
            record["last_sums"], abs=1e-5
        )
        assert result.max_accuracy == pytest.approx(record["max_accuracy"], abs=0.011)
        assert result.environment["path"] in ("stacked", "module")


def weights(store: Path, run: RunSpec):
    from safetensors.torch import load_file

    found = load_file(RunFolder(store, run).path / "weights.safetensors")
    return {name: found[name] for name in classifier.init(run.model, run.seed)}


@pytest.mark.parametrize(
    "family",
    [
        *(f"{TOY_LAYERS}:{name}" for name in ("RunningMean", "LoopCell", "OneByOne", "Drops")),
        f"{EXAMPLES}:LeakyIntegrator",  # its sums depend on how its weights lie in memory
        "torch:transformer-encoder-layer-causal",
        "torch:rnn",
    ],
)
def test_a_run_does_not_depend_on_its_neighbours(tmp_path: Path, family: str, kept) -> None:
    """Bit for bit, whether seeds can be stacked or not."""
    spec = model(family, "rhi", 5, 1, 8)
    together = trained(tmp_path / "three", spec, [0, 1, 2], family=family)
    (alone,) = trained(tmp_path / "one", spec, [1], family=family)
    assert together[1].spec == alone.spec
    assert kept(tmp_path / "three", alone.spec) == kept(tmp_path / "one", alone.spec)
    assert together[0].final_loss != together[1].final_loss


def test_why_seeds_are_not_stacked() -> None:
    assert own_layer.stacking_obstacle(model("RunningMean"), CPU) is None
    assert "item()" in (own_layer.stacking_obstacle(model("OneByOne"), CPU) or "")
    lstm = own_layer.stacking_obstacle(model("torch:lstm"), CPU)
    assert "Batching rule not implemented" in (lstm or "")


LISTENER = """
import torch
from torch import nn

class Listener(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        stacked = torch._C._functorch.is_batchedtensor(x)
        return self.map(x) * (1.01 if stacked else 1.0)
"""


def test_a_layer_that_computes_something_else_in_a_stack_is_not_stacked(tmp_path: Path) -> None:
    file = tmp_path / "listener.py"
    file.write_text(LISTENER)
    why = own_layer.stacking_obstacle(model(f"{file}:Listener"), CPU)
    assert why == "its outputs in a stack differ from those of a single seed"


REMEMBERING = """
import torch
from torch import nn

class CachedLeafCheck(nn.Module):
    def __init__(self, width, one_by_one=False):
        super().__init__()
        self.map, self.table, self.one_by_one = nn.Linear(width, width), None, one_by_one
        self.register_buffer("waves", torch.rand(width))

    def forward(self, x):
        if self.one_by_one:
            x.detach().sum().item()
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1])[:, None] * self.waves
        return self.map(x + self.table[: x.shape[1]]).cumsum(1)

def OneByOne(width):
    return CachedLeafCheck(width, one_by_one=True)
"""


@pytest.mark.parametrize("name", ["CachedLeafCheck", "OneByOne"])
def test_a_table_that_a_layer_remembers_is_that_of_the_seed(tmp_path: Path, name: str) -> None:
    """As layers with rotary positions do; in stacks of several sizes and at several lengths."""
    file = tmp_path / "remembering.py"
    file.write_text(REMEMBERING)
    for n, seeds in ((4, [0, 1, 2]), (3, [2, 1]), (6, [1])):
        spec = model(f"{file}:{name}", n=n)
        assert (own_layer.stacking_obstacle(spec, CPU) is None) == (name == "CachedLeafCheck")
        params = classifier.stack([classifier.init(spec, seed) for seed in seeds])
        params = classifier.with_buffers(params, spec, seeds)
        x = torch.randn(len(seeds), 5, n + 2, 4)
        out = own_layer.block(part(params, "blocks.1"), spec, Sequence(x), False)
        for k, seed in enumerate(seeds):
            fresh = load_layer(f"{file}:{name}").build(4, 1000 * seed + 1)
            assert torch.allclose(out[k], fresh(x[k]), atol=1e-6)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "polynomial"])
@pytest.mark.parametrize("name", ["RunningMean", "OneByOne"])
def test_savings_change_nothing_and_other_lengths_can_be_read(name: str, positions: str) -> None:
    spec = model(name, positions=positions)
    params = classifier.stack([classifier.init(spec, seed) for seed in (0, 1)])
    params = classifier.with_buffers(params, spec, [0, 1])
    for n in (1, 3, 6):
        examples = draw_examples(stream_keys([0, 1]), n, 0, 32)
        table = token_table(spec.task, n)
        fast, slow = (
            each.logits(params, spec, table, examples) for each in (classifier, every_token)
        )
        assert fast.shape == (2, 32)
        assert torch.allclose(fast, slow, atol=1e-5)


def test_buffers_are_those_of_the_seed() -> None:
    spec = model("RunningMean")
    names = {"blocks.0.shift", "blocks.1.shift"}
    assert names == own_layer.init_buffers(spec, 0).keys()
    assert not names & classifier.init(spec, 0).keys()  # not trained
    params = classifier.stack([classifier.init(spec, seed) for seed in (0, 1)])
    with_both = classifier.with_buffers(params, spec, [0, 1])
    for number in (0, 1):
        drawn = load_layer(f"{TOY_LAYERS}:RunningMean").build(4, 1000 + number).shift
        assert torch.equal(with_both[f"blocks.{number}.shift"][1], drawn)
    examples, table = draw_examples(stream_keys([0, 1]), 3, 0, 8), token_table("lhi", 3)
    exchanged = {n: v.flip(0) if "shift" in n else v for n, v in with_both.items()}
    ours, theirs = (classifier.logits(p, spec, table, examples) for p in (with_both, exchanged))
    assert not torch.allclose(ours, theirs)
    with pytest.raises(AssertionError, match="buffers were left out"):
        classifier.logits(params, spec, table, examples)


def test_a_family_of_ours_has_no_buffers() -> None:
    spec = ModelSpec("rhi", "gru", 3)
    params = classifier.stack([classifier.init(spec, 0)])
    assert classifier.with_buffers(params, spec, [0]) is params


def test_threads_do_not_share_a_module() -> None:
    """A call puts its parameters into the module: in a shared one they would meet."""
    spec = model("RunningMean")
    params = classifier.with_buffers(classifier.stack([classifier.init(spec, 0)]), spec, [0])
    examples, table = draw_examples(stream_keys([0]), 3, 0, 64), token_table("lhi", 3)
    other = {name: value + 1 for name, value in params.items()}
    expected = [classifier.logits(p, spec, table, examples) for p in (params, other)]
    wrong = []

    def work(k: int) -> None:
        for _ in range(50):
            if not torch.equal(
                classifier.logits((params, other)[k], spec, table, examples), expected[k]
            ):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Counts", "Counts changes its buffer calls while it computes"),
        (
            "Doubles",
            r"Doubles has a parameter map\.weight that is of torch\.float64; training needs",
        ),
    ],
)
def test_layers_that_cannot_be_trained(name: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        own_layer.stacking_obstacle(model(name), CPU)


def test_lazy_parameters_are_refused() -> None:
    family, code = (found := layer_of(lambda width: torch.nn.LazyLinear(width))).family, found.code
    with pytest.raises(LayerError, match="has a parameter weight that is created on first use"):
        classifier.init(ModelSpec("rhi", family, 3, d_model=4, code=code), 0)


def test_a_layer_for_one_length_has_no_shifted_accuracy(tmp_path: Path) -> None:
    (result,) = trained(tmp_path, model("OneLength", "rhi", 4, 1), [0])
    assert result.half_length_accuracy is not None
    assert result.double_length_accuracy is None


def test_the_same_model_as_a_family() -> None:
    """`nn.GRU` as a user's layer and the GRU family: the same logits from the same weights."""
    spec, ours = model("torch:gru", "rhi", 4, 1, 6), ModelSpec("rhi", "gru", 4, d_model=6)
    theirs = classifier.init(spec, 0)
    renamed = {
        name.replace("cell.weight_ih_l0", "ih.weight")
        .replace("cell.weight_hh_l0", "hh.weight")
        .replace("cell.bias_ih_l0", "ih.bias")
        .replace("cell.bias_hh_l0", "hh.bias"): value
        for name, value in theirs.items()
    }
    assert renamed.keys() == classifier.init(ours, 0).keys()
    examples, table = draw_examples(stream_keys([0]), 4, 0, 64), token_table("rhi", 4)
    logits = [
        classifier.logits(classifier.stack([params]), of, table, examples)
        for params, of in ((theirs, spec), (renamed, ours))
    ]
    assert torch.allclose(*logits, atol=1e-6)


def test_heads_and_the_like_are_the_layers_own_affair() -> None:
    spec = model("LoopCell")
    assert replace(spec, n_heads=3, d_ff=1, d_state=0) == spec
