"""Writes the layer fixture: inputs, parameters, outputs and gradients of single layers, computed by PyTorch in f64.

    python layer_fixtures.py [--out FILE]        default: tests/fixtures/layers.safetensors of this repository

Each case has tensors `<case>/<role>/<name>`. Roles: `input` (f32, or i32 for indices and masks), `param` (f32, under the
names that the Rust layers give them), `output` and `weight` (f64 and f32, of one shape): the gradients are those of the
sum of output times weight over all outputs; `grad` (f32, computed in f64, for each f32 input and each parameter); `state`
and `new` (f32 and f64: a layer's state before and after). All numbers that go in are exact in f32.
The same PyTorch on the same processor gives the same bytes.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from transformers import (
    BertConfig, BertForMaskedLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaMLP, apply_rotary_pos_emb

from fixture import with_sorted_metadata

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/layers.safetensors"


class Fixtures:
    """All cases so far, and the random numbers for the next one."""

    def __init__(self):
        self.tensors = {}
        self.generator = None

    def start(self, case):
        """Begins a case with a seed of its own, so that a new case changes no other one."""
        self.generator = np.random.default_rng(list(case.encode()))

    def random(self, *shape, scale=1.0):
        """Normal numbers, exact in f32."""
        values = np.asarray(scale * self.generator.normal(size=shape), dtype=np.float32)
        return torch.from_numpy(values.astype(np.float64))

    def integers(self, high, *shape):
        return torch.from_numpy(self.generator.integers(high, size=shape))

    def randomized(self, module, scale=0.4):
        """The module in f64, evaluating, with random parameters: none is trivial, so that no term can be missing."""
        module = module.double().eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                around = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                parameter.copy_(around + self.random(*parameter.shape, scale=scale))
        return module

    def add(self, case, inputs, parameters, forward, states=None, new_states=None):
        """Runs `forward` on the inputs and keeps what it does.

        `parameters` has a tensor for each of our names, or a list of them: then ours is all of them, row under row. A
        `Part` is a view of a tensor.
        `forward` returns a tensor, which is called y, or a dictionary. `new_states` is called after it.
        """
        leaves = {name: tensor for name, tensor in inputs.items() if tensor.is_floating_point()}
        for tensor in leaves.values():
            tensor.requires_grad_(True)
        for name, tensor in (states or {}).items():
            self.put(case, "state", name, tensor, np.float32)
        outputs = forward(*inputs.values())
        outputs = outputs if isinstance(outputs, dict) else {"y": outputs}
        loss = torch.zeros((), dtype=torch.float64)
        for name, output in outputs.items():
            weight = self.random(*output.shape)
            loss = loss + (output * weight).sum()
            self.put(case, "output", name, output, np.float64)
            self.put(case, "weight", name, weight, np.float32)
        if loss.requires_grad:
            loss.backward()
        for name, tensor in inputs.items():
            kind = np.float32 if name in leaves else np.int32
            self.put(case, "input", name, tensor, kind)
        for name, tensor in leaves.items():
            self.put(case, "grad", name, tensor.grad, np.float32)
        for name, tensors in parameters.items():
            tensors = [as_part(tensor) for tensor in (tensors if isinstance(tensors, list) else [tensors])]
            self.put(case, "param", name, torch.cat([part.view(part.of.detach()) for part in tensors]), np.float32)
            self.put(case, "grad", name, torch.cat([part.view(part.of.grad) for part in tensors]), np.float32)
        for name, tensor in (new_states() if new_states else {}).items():
            self.put(case, "new", name, tensor, np.float64)

    def put(self, case, role, name, tensor, kind):
        # The file's writer takes memory as it lies, so that a transposed view would be written untransposed.
        self.tensors[f"{case}/{role}/{name}"] = np.asarray(tensor.detach().numpy().astype(kind), order="C")


@dataclass
class Part:
    """A view of a parameter, and of its gradient."""

    of: torch.Tensor
    view: Callable = lambda tensor: tensor


def as_part(tensor):
    return tensor if isinstance(tensor, Part) else Part(tensor)


def transposed(tensor):
    return Part(tensor, lambda t: t.T)


def activations(f):
    x = f.random(3, 7, scale=2.0)
    functions = {
        "relu": torch.relu,
        "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "swish": torch.nn.functional.silu,
        "softplus": torch.nn.functional.softplus,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    f.add("activations", {"x": x}, {}, lambda x: {name: g(x) for name, g in functions.items()})


def linear_and_embedding(f):
    linear = f.randomized(torch.nn.Linear(5, 3))
    names = {"linear.weight": linear.weight, "linear.bias": linear.bias}
    f.add("linear", {"x": f.random(2, 4, 5)}, names, linear)
    # Few rows, so that indices occur more than once and gradients add up.
    table = f.randomized(torch.nn.Embedding(4, 3))
    f.add("embedding", {"ids": f.integers(4, 2, 6)}, {"embedding.weight": table.weight}, lambda ids: table(ids))


def norms(f):
    layer = f.randomized(torch.nn.LayerNorm(6))
    f.add("layer_norm", {"x": f.random(2, 3, 6)}, {"norm.weight": layer.weight, "norm.bias": layer.bias}, layer)
    rms = f.randomized(torch.nn.RMSNorm(6, eps=1e-5))
    f.add("rms_norm", {"x": f.random(2, 3, 6)}, {"norm.weight": rms.weight}, rms)


def batch_norms(f):
    for training, case in [(True, "batch_norm_training"), (False, "batch_norm_evaluating")]:
        norm = f.randomized(torch.nn.BatchNorm1d(4)).train(training)
        norm.running_mean.copy_(f.random(4))
        norm.running_var.copy_(1.0 + f.random(4).square().float().double())
        states = {f"norm.{name}": getattr(norm, name).clone() for name in ("running_mean", "running_var")}
        new = lambda: {name: getattr(norm, name.removeprefix("norm.")) for name in states}
        names = {"norm.weight": norm.weight, "norm.bias": norm.bias}
        f.add(case, {"x": f.random(3, 4, 5)}, names, norm, states, new if training else None)


def sinusoid_table(length, width):
    """Vaswani et al., section 3.5, dimension by dimension."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            table[position, 2 * i] = np.sin(angle)
            table[position, 2 * i + 1] = np.cos(angle)
    return table


def sinusoids(f):
    f.add("sinusoids", {"x": f.random(2, 7, 6)}, {}, lambda x: x + sinusoid_table(7, 6))


def turned(x, base=10000.0):
    """RoFormer, equation 34, by complex numbers: the pair (2i, 2i + 1) is a number that turns."""
    length, width = x.shape[-2:]
    speed = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * speed
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], width // 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).reshape(x.shape)


def turned_halves(x, base=10000.0):
    """The same with pairs (i, i + width/2), by transformers' own function."""
    length, width = x.shape[-2:]
    speed = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * speed
    angle = torch.cat([angle, angle], dim=-1)
    return apply_rotary_pos_emb(x, x, angle.cos()[None], angle.sin()[None])[0]


def ropes(f):
    f.add("rope_adjacent", {"x": f.random(2, 3, 5, 8)}, {}, turned)
    f.add("rope_halves", {"x": f.random(2, 3, 5, 8)}, {}, lambda x: turned_halves(x, 500.0))


def feed_forwards(f):
    """The gated one is transformers' LlamaMLP."""
    config = LlamaConfig(hidden_size=6, num_attention_heads=1, intermediate_size=10, mlp_bias=False, hidden_act="silu")
    gated = f.randomized(LlamaMLP(config))
    names = {f"mlp.{ours}.weight": getattr(gated, f"{ours}_proj").weight for ours in ("gate", "up", "down")}
    f.add("swiglu", {"x": f.random(2, 3, 6)}, names, gated)
    plain = f.randomized(torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 6)))
    f.add("feed_forward", {"x": f.random(2, 3, 6)}, affine({"mlp.up": plain[0], "mlp.down": plain[2]}), plain)
    layers = [torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)]
    mlp = f.randomized(torch.nn.Sequential(*layers))
    f.add("mlp", {"x": f.random(4, 5)}, affine({f"layers.{i}": mlp[2 * i] for i in range(3)}), mlp)


def affine(modules):
    """Names of weights and biases."""
    return {f"{name}.{kind}": getattr(module, kind)
            for name, module in modules.items() for kind in ("weight", "bias")}


class Heads(torch.nn.Module):
    """Attention by scaled_dot_product_attention, with shared keys and values, rotation, window and padding."""

    def __init__(self, width, heads, kv_heads, bias, turn=None, window=None, causal=True):
        super().__init__()
        self.head_width, self.turn, self.window, self.causal = width // heads, turn, window, causal
        inner = kv_heads * self.head_width
        self.q, self.proj = torch.nn.Linear(width, width, bias=bias), torch.nn.Linear(width, width)
        self.k, self.v = torch.nn.Linear(width, inner, bias=bias), torch.nn.Linear(width, inner, bias=bias)

    def forward(self, x, memory=None, real=None):
        source = x if memory is None else memory
        heads = lambda y: y.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = heads(self.q(x)), heads(self.k(source)), heads(self.v(source))
        if self.turn:
            q, k = self.turn(q), self.turn(k)
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
        seen = columns <= rows if self.causal else torch.ones(len(rows), columns.shape[1], dtype=torch.bool)
        if self.window:
            seen = seen & (columns > rows - self.window)
        if real is not None:
            seen = seen & (real[:, None, None, :] != 0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.proj(y.transpose(1, 2).flatten(2))

    def names(self, cross=False):
        names = affine({"attn.proj": self.proj})
        for kind in ("weight", "bias") if self.q.bias is not None else ("weight",):
            q, k, v = (getattr(linear, kind) for linear in (self.q, self.k, self.v))
            names |= {f"attn.q.{kind}": q, f"attn.kv.{kind}": [k, v]} if cross else {f"attn.qkv.{kind}": [q, k, v]}
        return names


def attentions(f):
    def self_attention(case, **shape):
        heads = f.randomized(Heads(**shape))
        f.add(case, {"x": f.random(2, 7, shape["width"])}, heads.names(), heads)

    self_attention("attention_causal", width=12, heads=3, kv_heads=3, bias=True)
    self_attention("attention_grouped_window", width=16, heads=4, kv_heads=2, bias=False, window=3)
    self_attention("attention_multi_query", width=12, heads=3, kv_heads=1, bias=True)
    self_attention("attention_rope", width=16, heads=2, kv_heads=2, bias=False, turn=turned)
    self_attention("attention_rope_halves", width=16, heads=4, kv_heads=2, bias=False, turn=turned_halves)
    padded = f.randomized(Heads(width=12, heads=3, kv_heads=3, bias=True, causal=False))
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    f.add("attention_padded", {"x": f.random(2, 6, 12), "real": real}, padded.names(),
          lambda x, real: padded(x, real=real))
    cross = f.randomized(Heads(width=12, heads=3, kv_heads=3, bias=True, causal=False))
    inputs = {"x": f.random(2, 4, 12), "memory": f.random(2, 6, 12), "real": real}
    f.add("attention_cross", inputs, cross.names(cross=True), cross)


def latent_attentions(f):
    """transformers' DeepseekV3Attention, whose equations are those of DeepSeek-V2."""
    for case, rank in [("latent_attention", 10), ("latent_attention_full_query", None)]:
        config = DeepseekV3Config(
            hidden_size=12, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=rank, kv_lora_rank=6,
            qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=5, attention_bias=False, attention_dropout=0.0,
            rope_interleave=True, max_position_embeddings=16,
        )
        config._attn_implementation = "eager"
        attention = f.randomized(DeepseekV3Attention(config, 0))
        x = f.random(2, 7, 12)
        rotary = DeepseekV3RotaryEmbedding(config).double()
        f.add(case, {"x": x}, latent_names(attention, "attn"),
              lambda x: attention(x, rotary(x, torch.arange(7)[None]), future(7))[0])


def future(length):
    """What is added to scores, [1, 1, length, length]."""
    return torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)[None, None]


def latent_names(attention, path):
    theirs = {"kv_down": "kv_a_proj_with_mqa", "kv_norm": "kv_a_layernorm", "kv_up": "kv_b_proj", "proj": "o_proj"}
    if attention.q_lora_rank is None:
        theirs |= {"q_up": "q_proj"}
    else:
        theirs |= {"q_down": "q_a_proj", "q_norm": "q_a_layernorm", "q_up": "q_b_proj"}
    return {f"{path}.{ours}.weight": getattr(attention, name).weight for ours, name in theirs.items()}


def convolutions(f):
    def convolution(case, module, x):
        module = f.randomized(module)
        f.add(case, {"x": x}, affine({"conv": module}), module)

    nn = torch.nn
    convolution("conv1d", nn.Conv1d(3, 4, 3, stride=2, padding=2, dilation=2), f.random(2, 3, 9))
    convolution("conv2d", nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), f.random(2, 2, 6, 5))
    convolution("conv_transposed1d", nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1), f.random(2, 3, 5))
    convolution("conv_transposed2d", nn.ConvTranspose2d(2, 3, (3, 2), stride=(1, 3), padding=(2, 0), dilation=(2, 1)),
                f.random(2, 2, 3, 4))
    f.add("max_pool1d", {"x": f.random(2, 3, 9)}, {}, nn.MaxPool1d(3, stride=2, padding=1))
    f.add("max_pool2d", {"x": f.random(2, 2, 6, 7)}, {}, nn.MaxPool2d((2, 3), stride=2, dilation=(1, 2)))


def losses(f):
    cross_entropy = torch.nn.functional.cross_entropy
    logits, targets = f.random(2, 4, 7), f.integers(7, 2, 4)
    f.add("label_smoothing", {"logits": logits, "targets": targets}, {},
          lambda x, y: cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.1))
    # -100 is what PyTorch ignores.
    targets = torch.where(torch.tensor([[1, 0, 1, 0], [0, 0, 1, 1]]) == 1, f.integers(7, 2, 4), -100)
    f.add("ignored_targets", {"logits": f.random(2, 4, 7), "targets": targets}, {},
          lambda x, y: cross_entropy(x.flatten(0, 1), y.flatten()))
    f.add("activity", {"h": f.random(2, 5, 3)}, {}, lambda h: {
        "ar": 2.0 * h.pow(2).mean(),
        "tar": 0.5 * (h[:, 1:] - h[:, :-1]).pow(2).mean(),
    })


def gpt2(f):
    config = GPT2Config(vocab_size=13, n_positions=8, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, activation_function="gelu_new")
    model = f.randomized(GPT2LMHeadModel(config))
    body = model.transformer
    # Its linear layers keep [in, out].
    layers = {}
    for i, block in enumerate(body.h):
        parts = {"attn.qkv": block.attn.c_attn, "attn.proj": block.attn.c_proj,
                 "mlp.up": block.mlp.c_fc, "mlp.down": block.mlp.c_proj}
        for name, linear in parts.items():
            layers |= {f"blocks.{i}.{name}.weight": transposed(linear.weight), f"blocks.{i}.{name}.bias": linear.bias}
        layers |= affine({f"blocks.{i}.ln1": block.ln_1, f"blocks.{i}.ln2": block.ln_2})
    names = layers | affine({"ln_f": body.ln_f}) | {"wte.weight": body.wte.weight, "wpe.weight": body.wpe.weight}
    f.add("gpt2", {"tokens": f.integers(13, 2, 8)}, names, lambda tokens: model(tokens).logits)


def llama(f):
    config = LlamaConfig(vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, rms_norm_eps=1e-5,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8)
    model = f.randomized(LlamaForCausalLM(config))
    model.model.rotary_emb.double()
    layers = {}
    for i, block in enumerate(model.model.layers):
        a = block.self_attn
        layers |= {f"blocks.{i}.attn.qkv.weight": [a.q_proj.weight, a.k_proj.weight, a.v_proj.weight],
                   f"blocks.{i}.attn.proj.weight": a.o_proj.weight} | rms_and_gated(block, f"blocks.{i}")
    names = layers | decoder_ends(model)
    f.add("llama", {"tokens": f.integers(13, 2, 8)}, names, lambda tokens: model(tokens).logits)


def rms_and_gated(block, path):
    mlp = {f"{path}.mlp.{ours}.weight": getattr(block.mlp, f"{ours}_proj").weight for ours in ("gate", "up", "down")}
    return mlp | {f"{path}.ln1.weight": block.input_layernorm.weight,
                  f"{path}.ln2.weight": block.post_attention_layernorm.weight}


def decoder_ends(model):
    return {"wte.weight": model.model.embed_tokens.weight, "ln_f.weight": model.model.norm.weight,
            "head.weight": model.lm_head.weight}


def deepseek(f):
    """All layers dense: the mixture of experts has a fixture of its own."""
    config = DeepseekV3Config(
        vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, first_k_dense_replace=2,
        num_attention_heads=2, num_key_value_heads=2, q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=4,
        qk_rope_head_dim=2, v_head_dim=3, rms_norm_eps=1e-6, max_position_embeddings=8, rope_interleave=True,
    )
    model = f.randomized(DeepseekV3ForCausalLM(config))
    model.model.rotary_emb.double()
    layers = {}
    for i, block in enumerate(model.model.layers):
        layers |= latent_names(block.self_attn, f"blocks.{i}.attn") | rms_and_gated(block, f"blocks.{i}")
    names = layers | decoder_ends(model)
    f.add("deepseek", {"tokens": f.integers(13, 2, 8)}, names, lambda tokens: model(tokens).logits)


def bert(f):
    config = BertConfig(vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
                        max_position_embeddings=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = f.randomized(BertForMaskedLM(config))
    embeddings, head = model.bert.embeddings, model.cls.predictions
    names = {f"{ours}.weight": getattr(embeddings, f"{theirs}_embeddings").weight
             for ours, theirs in {"wte": "word", "wpe": "position", "wse": "token_type"}.items()}
    names |= affine({"ln_e": embeddings.LayerNorm, "head.dense": head.transform.dense,
                     "head.norm": head.transform.LayerNorm}) | {"head.bias": head.bias}
    for i, block in enumerate(model.bert.encoder.layer):
        a = block.attention
        for kind in ("weight", "bias"):
            parts = (a.self.query, a.self.key, a.self.value)
            names[f"blocks.{i}.attn.qkv.{kind}"] = [getattr(linear, kind) for linear in parts]
        names |= affine({f"blocks.{i}.attn.proj": a.output.dense, f"blocks.{i}.ln1": a.output.LayerNorm,
                         f"blocks.{i}.mlp.up": block.intermediate.dense, f"blocks.{i}.mlp.down": block.output.dense,
                         f"blocks.{i}.ln2": block.output.LayerNorm})
    tokens, segments = f.integers(13, 2, 8), torch.tensor([[0] * 5 + [1] * 3, [0] * 3 + [1] * 5])
    real = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
    f.add("bert", {"tokens": tokens, "segments": segments, "real": real}, names,
          lambda tokens, segments, real: model(tokens, attention_mask=real, token_type_ids=segments).logits)
    # The loss that training makes small, by transformers: -100 is what does not count.
    labels = torch.where(torch.rand(2, 8, generator=torch.Generator().manual_seed(1)) < 0.4, f.integers(13, 2, 8), -100)
    model.zero_grad()
    f.add("bert_loss", {"x": tokens, "y": labels}, names, lambda x, y: model(x, labels=y).loss)


def encoder_decoder(f):
    """torch.nn.Transformer with the paper's embedding; the last two of 13 tokens are the marks of beginning and end."""
    width, length, written = 8, 6, 5
    for case, before in [("encoder_decoder", False), ("encoder_decoder_pre_norm", True)]:
        model = f.randomized(torch.nn.Transformer(width, 2, 2, 2, 12, dropout=0, norm_first=before, batch_first=True))
        table = f.randomized(torch.nn.Embedding(13, width))
        names = {"wte.weight": table.weight}
        for path, layers in [("encoder", model.encoder.layers), ("decoder", model.decoder.layers)]:
            for i, block in enumerate(layers):
                names |= transformer_block(block, f"{path}.{i}", path == "decoder", width)
        names |= affine({"ln_encoder": model.encoder.norm, "ln_decoder": model.decoder.norm})

        def forward(x, x_lengths, y):
            embed = lambda tokens: table(tokens) * np.sqrt(width) + sinusoid_table(tokens.shape[1], width)
            shifted = torch.cat([torch.full((2, 1), 11), y[:, :-1]], dim=1)
            padding = torch.where(torch.arange(length)[None] < x_lengths[:, None], 0.0, -torch.inf).double()
            y = model(embed(x), embed(shifted), tgt_mask=future(written)[0, 0],
                      src_key_padding_mask=padding, memory_key_padding_mask=padding)
            return y @ table.weight.T

        inputs = {"x": f.integers(11, 2, length), "x_lengths": torch.tensor([6, 4]), "y": f.integers(11, 2, written)}
        f.add(case, inputs, names, forward)


def transformer_block(block, path, decodes, width):
    """torch.nn.Transformer{En,De}coderLayer, whose in_proj has rows for q, then k, then v."""
    attention = block.self_attn
    names = {f"{path}.attn.qkv.weight": attention.in_proj_weight, f"{path}.attn.qkv.bias": attention.in_proj_bias}
    last = block.norm3 if decodes else block.norm2
    names |= affine({f"{path}.attn.proj": attention.out_proj, f"{path}.ln1": block.norm1, f"{path}.ln2": last,
                     f"{path}.mlp.up": block.linear1, f"{path}.mlp.down": block.linear2})
    if decodes:
        cross = block.multihead_attn
        for kind, of in [("weight", cross.in_proj_weight), ("bias", cross.in_proj_bias)]:
            names[f"{path}.cross.q.{kind}"] = Part(of, lambda t: t[:width])
            names[f"{path}.cross.kv.{kind}"] = Part(of, lambda t: t[width:])
        names |= affine({f"{path}.cross.proj": cross.out_proj, f"{path}.ln_cross": block.norm2})
    return names


CASES = [
    activations, linear_and_embedding, norms, batch_norms, sinusoids, ropes, feed_forwards, attentions,
    latent_attentions, convolutions, losses, gpt2, llama, deepseek, bert,
    encoder_decoder,
]


def write(cases, default_out, about):
    """What the scripts of fixtures do: runs all cases and writes their tensors."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=default_out)
    out = parser.parse_args().out
    # One thread and deterministic kernels: sums are then always taken in one order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    fixtures = Fixtures()
    for case in cases:
        fixtures.start(case.__name__)
        case(fixtures)
    metadata = {
        "about": "Layers and small models computed by PyTorch in f64; made by a script in benches/peers.",
        "torch": torch.__version__.split("+")[0],
    }
    tensors = dict(sorted(fixtures.tensors.items()))
    out.write_bytes(with_sorted_metadata(save(tensors), metadata))
    names = {name.split("/")[0] for name in tensors}
    print(f"{out.name}: {out.stat().st_size} bytes, {len(names)} cases")


if __name__ == "__main__":
    write(CASES, DEFAULT_OUT, __doc__)
