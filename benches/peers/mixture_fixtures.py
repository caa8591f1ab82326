"""Writes the fixture of mixtures of experts; see layer_fixtures.py for what its tensors are.

    python mixture_fixtures.py [--out FILE]        default: tests/fixtures/mixture.safetensors of this repository
"""

from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

from layer_fixtures import decoder_ends, write

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/mixture.safetensors"


def config(experts, active):
    return MixtralConfig(
        vocab_size=13, hidden_size=8, intermediate_size=6, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=experts, num_experts_per_tok=active, max_position_embeddings=8,
        rms_norm_eps=1e-5, attn_implementation="eager", experts_implementation="eager", sliding_window=None,
    )


def names(block, path):
    return {f"{path}.router.weight": block.gate.weight, f"{path}.experts.gate_up": block.experts.gate_up_proj,
            f"{path}.experts.down": block.experts.down_proj}


def mixture(f):
    """Enough tokens for several blocks of each expert, and one that nobody wants."""
    block = f.randomized(MixtralSparseMoeBlock(config(4, 2)))
    with torch.no_grad():
        block.gate.weight[3] = -20 * block.gate.weight[0].abs()
    x = f.random(3, 50, 8)
    x.abs_()
    f.add("mixture", {"x": x}, names(block, "moe"), lambda x: block(x.clone()))


def mixture_single(f):
    block = f.randomized(MixtralSparseMoeBlock(config(3, 1)))
    f.add("mixture_single", {"x": f.random(2, 5, 8)}, names(block, "moe"), lambda x: block(x.clone()))


def balance(f):
    logits = f.random(20, 5)
    f.add("balance", {"logits": logits}, {}, lambda x: load_balancing_loss_func((x,), num_experts=5, top_k=2))


def mixtral(f):
    """A whole decoder; its balancing loss is that of a layer, the mean over all of them."""
    model = f.randomized(MixtralForCausalLM(config(4, 2)))
    model.model.rotary_emb.double()
    layers = {}
    for i, block in enumerate(model.model.layers):
        a, path = block.self_attn, f"blocks.{i}"
        layers |= {f"{path}.attn.qkv.weight": [a.q_proj.weight, a.k_proj.weight, a.v_proj.weight],
                   f"{path}.attn.proj.weight": a.o_proj.weight, f"{path}.ln1.weight": block.input_layernorm.weight,
                   f"{path}.ln2.weight": block.post_attention_layernorm.weight} | names(block.mlp, f"{path}.mlp")
    f.add("mixtral", {"tokens": f.integers(13, 2, 8)}, layers | decoder_ends(model),
          lambda tokens: model(tokens).logits)


if __name__ == "__main__":
    write([mixture, mixture_single, balance, mixtral], DEFAULT_OUT, __doc__)
