"""Small causal language models of Hugging Face's transformers, built from configurations of ours
without any download.

Every field of a default configuration that sets a size gets a small one, in nested configurations
too; `_EXCEPTIONS` has what this rule gets wrong, by model type. Windows and chunks are kept below
the lengths that are tried, so that their borders are crossed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ithbit.errors import LayerError

WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST = 32, 2, 4, 64, 1030
MODEL_SOURCE = "from ithbit.contract.tiny_models import tiny_model\nmodel = tiny_model({!r})"
MOST_PARAMETERS = 20_000_000


def _all(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


_SMALL: dict[str, Any] = {
    **_all("vocab_size vocab_size_per_layer_input text_vocab_size", VOCABULARY),
    **_all("hidden_size n_embd d_model embed_dim word_embed_proj_dim emb_dim dim_model", WIDTH),
    **_all("hidden_dim embedding_size lru_width attention_hidden_size", WIDTH),
    **_all("num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers", LAYERS),
    **_all("num_decoder_layers num_encoder_layers depth", LAYERS),
    **_all("num_attention_heads n_head n_heads num_heads decoder_attention_heads", HEADS),
    **_all("encoder_attention_heads num_decoder_attention_heads", HEADS),
    **_all("num_encoder_attention_heads", HEADS),
    **_all("num_key_value_heads num_kv_heads", 2),
    **_all("intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim d_inner", 48),
    **_all("ffn_hidden_size feed_forward_size dim_ff dff encoder_intermediate_size", 48),
    **_all("head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim", 8),
    **_all("moe_intermediate_size shared_expert_intermediate_size", 16),
    **_all("moe_shared_expert_intermediate_size expert_ffn_hidden_size", 16),
    **_all("q_lora_rank kv_lora_rank", 16),
    **_all("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
    **_all("num_experts_per_tok num_experts_per_token moe_topk moe_k", 2),
    **_all("n_group topk_group n_shared_experts moe_num_shared_experts", 1),
    **_all("first_k_dense_replace hidden_size_per_layer_input", 1),
    "hidden_size_per_layer_input": 8,
    **_all("max_position_embeddings n_positions n_ctx seq_length max_seq_len", LONGEST),
    **_all("context_length max_sequence_length", LONGEST),
    **_all("hidden_dropout_prob attention_probs_dropout_prob attention_dropout", 0.0),
    **_all("hidden_dropout resid_pdrop embd_pdrop attn_pdrop dropout embed_dropout", 0.0),
    **_all("activation_dropout", 0.0),
    **_all("sliding_window attention_window_size attention_chunk_size", 24),
    **_all("rotary_dim", 4),
    **_all("type_vocab_size", 2),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
    "is_decoder": True,
    "image_size": 28,
    "patch_size": 14,
}
_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
_HYBRID |= {"mamba_chunk_size": 16}
_LINEAR_THEN_FULL = ["linear_attention", "full_attention"]

# What the rule gets wrong. None: the default stays.
_EXCEPTIONS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "bamba": {**_HYBRID, "attn_layer_indices": [1], "num_hidden_layers": 3},
    "falcon_h1": {**_HYBRID, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **_HYBRID,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "shared_intermediate_size": 32,
    },
    "zamba": {
        **{"mamba_d_state": 8, "mamba_dt_rank": 4, "n_mamba_heads": 2, "num_hidden_layers": 4},
        **{"attention_hidden_size": 64, "attention_head_dim": 16, "layers_block_type": None},
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
    },
    "zamba2": {
        **{"mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1},
        **{"chunk_size": 16, "num_hidden_layers": 4, "num_mem_blocks": 1},
        **{"layers_block_type": ["mamba", "hybrid"] * 2, "use_shared_attention_adapter": False},
        **{"attention_head_dim": 16, "attention_hidden_size": 64, "num_key_value_heads": 4},
    },
    "nemotron_h": {
        **{"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1},
        **{"chunk_size": 16, "num_hidden_layers": 4},
        "layers_block_type": ["mamba", "attention", "mamba", "moe"],
    },
    "jamba": {
        **{"mamba_d_state": 8, "mamba_dt_rank": 4, "num_hidden_layers": 4},
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
        **{"expert_layer_period": 2, "expert_layer_offset": 1},
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "layers_block_type": None, "layer_types": None},
    "rwkv": {"rescale_every": 0},
    "qwen3_next": {
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_hidden_layers": 4},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    },
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "minimax": {"block_size": 16, "layer_types": _LINEAR_THEN_FULL},
    "xlstm": {"num_blocks": 2, "chunk_size": 16, "mode": "inference"},
    "reformer": {
        **{"num_attention_heads": 2, "attention_head_size": 16, "attn_layers": ["local"] * 2},
        **{"axial_pos_embds": False, "local_attn_chunk_length": 8},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "xlnet": {"max_position_embeddings": None},
    "prophetnet": {"num_hidden_layers": None, "max_position_embeddings": 140},
    "zaya": {"num_experts_per_tok": 1, "num_hidden_layers": 4},
    "gemma3n_text": {
        **{"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4},
        **{"laurel_rank": 8, "num_kv_shared_layers": 0, "altup_num_inputs": 2},
        **{"activation_sparsity_pattern": [0.0] * 4, "intermediate_size": [48] * 4},
    },
    "gemma4_text": {
        **{"layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 8},
        **{"num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0},
        "num_kv_shared_layers": 0,
    },
    "openai-gpt": {"n_positions": 512},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "xmod": {"default_language": "en_XX"},
}
_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type")
_RULED = ("bamba", "falcon_h1", "granitemoehybrid")  # they compute their own lists


def model_class(name: str) -> Any:
    """The model class of transformers of that name, such as LlamaForCausalLM."""
    import transformers

    found = getattr(transformers, name, None)
    if getattr(found, "config_class", None) is None or not hasattr(found, "_from_config"):
        raise LayerError(
            f"transformers {transformers.__version__} has no model class {name}; name one such as "
            "transformers:LlamaForCausalLM"
        )
    return found


def tiny_model(name: str) -> nn.Module:
    """A small model of that class of transformers, with its own initial weights for torch's current
    seed."""
    made = model_class(name)
    config = tiny_config(made.config_class)
    with torch.device("meta"):
        size = sum(p.numel() for p in made._from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise LayerError(f"the smallest {name} that we can configure has {size:,} parameters")
    model = made._from_config(config)
    assert isinstance(model, nn.Module)
    return model


def tiny_config(config_class: type) -> Any:
    """A small configuration of that class."""
    return config_class(**_small_fields(config_class()))


def causal_models() -> dict[str, str]:
    """Class names of all causal language models of the installed transformers, by model type."""
    from transformers.models.auto import modeling_auto

    return dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _small_fields(default: Any) -> dict[str, Any]:
    """Fields of a configuration that get other values than by default."""
    kind = str(getattr(default, "model_type", ""))
    own = _EXCEPTIONS.get(kind, {})
    settable = {name for name in {*_SMALL, *own} if _is_field(default, name)}
    fields = {
        name: int(value) if value == 0.0 and type(getattr(default, name, None)) is int else value
        for name, value in _SMALL.items()
        if name in settable and name not in own
    }
    if "qk_rope_head_dim" in fields:  # latent attention: one head dimension, from its parts
        fields.pop("head_dim", None)
        fields["num_key_value_heads"] = HEADS
    fields |= {name: value for name, value in own.items() if value is not None}
    if kind not in _RULED:
        fields |= _per_layer(default, fields, own)
    for name in getattr(type(default), "sub_configs", {}):
        inner = getattr(default, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            fields[name] = {"model_type": inner.model_type, **_small_fields(inner)}
    return fields


def _per_layer(default: Any, fields: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Lists with an entry per layer: every kind of layer once, as many as there are layers."""
    found: dict[str, Any] = {}
    n_layers = fields.get("num_hidden_layers", LAYERS)
    for name in _PER_LAYER:
        entries = getattr(default, name, None) if _is_field(default, name) else None
        if isinstance(entries, list | tuple) and entries and name not in own:
            kinds = list(dict.fromkeys(entries))
            n_layers = found["num_hidden_layers"] = max(n_layers, len(kinds))
            found[name] = (kinds * n_layers)[:n_layers]
    return found


def _is_field(config: Any, name: str) -> bool:
    """Whether a configuration has that field and lets it be set."""
    made = getattr(type(config), name, None)
    if isinstance(made, property) and made.fset is None:
        return False
    try:
        return hasattr(config, name)
    except Exception:  # a property that a default configuration does not allow
        return True
