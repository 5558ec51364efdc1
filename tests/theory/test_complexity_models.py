"""The programs whose operations are counted are the blocks that are trained."""

import numpy as np
import pytest
import torch
from tests.support.completions import trained

from ithbit.models.classifier import BLOCKS
from ithbit.models.stacked import Sequence
from ithbit.spec import ModelSpec

TOKENS = 6


def program(family, spec, p):
    """The program with the weights of one block, as plain lists."""
    d = spec.d_model
    w = {name: value[0].tolist() for name, value in p.items()}
    if family == "gru":
        return trained.GruLayer(w["ih.weight"], w["hh.weight"], w["ih.bias"], w["hh.bias"])
    if family == "mamba2":
        return trained.Mamba2Block(
            norm=trained.RmsNorm(w["norm.weight"], 1e-5),
            in_proj=w["in.weight"],
            conv=p["conv.weight"][0].T.tolist(),
            conv_bias=w["conv.bias"],
            dt_bias=w["dt_bias"],
            A_log=w["a_log"],
            D=w["skip"],
            gated_norm=trained.RmsNorm(w["gate_norm.weight"], 1e-5),
            out_proj=w["out.weight"],
        )
    eps = 1e-12 if family.startswith("softmax") else 1e-5
    norm1, norm2 = (
        trained.Norm(w[f"{name}.weight"], w[f"{name}.bias"], eps) for name in ("norm1", "norm2")
    )
    ff = trained.FeedForward(w["up.weight"], w["up.bias"], w["down.weight"], w["down.bias"], "gelu")
    q, k, v = (w["qkv.weight"][j * d : (j + 1) * d] for j in range(3))
    if family.startswith("linear"):
        return trained.PreLnLinearBlock(
            norm1, k, q, v, w["out.weight"], norm2, ff, spec.n_heads, 1e-6
        )
    qb, kb, vb = (w["qkv.bias"][j * d : (j + 1) * d] for j in range(3))
    return trained.BertBlock(
        *(k, kb, q, qb, v, vb, w["out.weight"], w["out.bias"], norm1, ff, norm2, spec.n_heads)
    )


@pytest.mark.parametrize("family", ["softmax-causal", "linear-causal", "gru", "mamba2"])
def test_completion_equals_the_trained_block(family):
    spec = ModelSpec("rhi", family, n_bits=TOKENS, d_model=4, d_ff=6, d_state=3)
    generator = torch.Generator().manual_seed(1)
    start = BLOCKS[family].init_block(spec, generator)
    # Larger than at the start of training, so that no part of the block is negligible.
    params = {
        name: (value + torch.randn(value.shape, generator=generator))[None].double()
        for name, value in start.items()
    }
    x = torch.randn(1, 1, TOKENS, 4, generator=generator, dtype=torch.float64)
    expected = BLOCKS[family].block(params, spec, Sequence(x), False)[0, 0]
    layer = program(family, spec, params)
    for k in range(2, TOKENS + 1):
        fingerprint = layer.fingerprint(x[0, 0, : k - 1].tolist())
        output = layer.completion(fingerprint, x[0, 0, k - 1].tolist())
        np.testing.assert_allclose(output, expected[k - 1], rtol=1e-9, atol=1e-11)
