"""The GPT of the presets in PyTorch: same config fields, same parameter names, same shapes.

Weights are kept as [out, in]. The rows of `attn.qkv.weight` are q, then k, then v, and the d rows of
each are heads x head_dim. Dropout is applied to the embedding sum, the attention weights and the
output of each branch.
"""

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F

INITIAL_STD = 0.02


@dataclass(frozen=True)
class GptConfig:
    """A model shape; `batch` is not part of it."""

    vocabulary: int = 65
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    qkv_bias: bool = False
    tied: bool = False
    gelu: str = "erf"
    norm: str = "pre"

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.gelu not in ("erf", "tanh"):
            raise ValueError(f"gelu must be erf or tanh, not {self.gelu!r}")
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm must be pre or post, not {self.norm!r}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "GptConfig":
        return GptConfig(**json.loads(text))


@dataclass(frozen=True)
class Preset:
    config: GptConfig
    batch: int


PRESETS = {
    "tiny": Preset(GptConfig(), batch=12),
    "thesis": Preset(GptConfig(context=256, layers=6, heads=6, width=384), batch=64),
    "gpt2-small": Preset(
        GptConfig(
            vocabulary=50257, context=1024, layers=12, heads=12, width=768,
            qkv_bias=True, tied=True, gelu="tanh",
        ),
        batch=1,
    ),
}


class Attention(nn.Module):
    """Causal self-attention, [B, T, d] -> [B, T, d]."""

    def __init__(self, config: GptConfig, kind: str):
        super().__init__()
        self.heads, self.dropout, self.kind = config.heads, config.dropout, kind
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.proj = nn.Linear(config.width, config.width)
        # One row of bools per position, true where looking is forbidden; not part of the state dict.
        future = torch.ones(config.context, config.context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        if self.kind == "sdpa":
            # Its default scale is 1/sqrt(head_dim).
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(self.future[:length, :length], -math.inf)
            y = F.dropout(scores.softmax(dim=-1), dropout) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """down(gelu(up x)) with four times the width inside."""

    def __init__(self, config: GptConfig):
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.approximate = "tanh" if config.gelu == "tanh" else "none"

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Pre-norm: x + branch(norm x). Post-norm: norm(x + branch x)."""

    def __init__(self, config: GptConfig, attention: str):
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width, eps=1e-5)
        self.attn = Attention(config, attention)
        self.ln2 = nn.LayerNorm(config.width, eps=1e-5)
        self.mlp = Mlp(config)
        self.drop = nn.Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x):
        if self.pre:
            x = x + self.drop(self.attn(self.ln1(x)))
            return x + self.drop(self.mlp(self.ln2(x)))
        x = self.ln1(x + self.drop(self.attn(x)))
        return self.ln2(x + self.drop(self.mlp(x)))


class Gpt(nn.Module):
    """Ids [B, T] -> logits [B, T, V]. `attention` is "sdpa" or "written" (the same function of x)."""

    def __init__(self, config: GptConfig, attention: str = "sdpa"):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=1e-5)
        if not config.tied:
            self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.initialise()

    def initialise(self):
        """GPT-2's: N(0, 0.02), residual projections divided by sqrt(2 L), biases 0, norms 1 and 0."""
        residual_std = INITIAL_STD / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith(("attn.proj.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=INITIAL_STD)
            else:
                nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)

    def forward(self, x):
        h = self.drop(self.wte(x) + self.wpe.weight[: x.shape[1]])
        for block in self.blocks:
            h = block(h)
        return F.linear(self.ln_f(h), self.wte.weight if self.config.tied else self.head.weight)

    def loss(self, x, y):
        """Mean cross-entropy over all tokens of x, y [B, T], in nats."""
        return F.cross_entropy(self(x).flatten(0, 1), y.flatten())


def adamw(model: nn.Module, lr: float = 3e-4, fused: bool = False) -> torch.optim.AdamW:
    """AdamW of the thesis; the decay is on every parameter, norms and biases too."""
    # None leaves the choice of kernels to PyTorch, which is what a user gets.
    return torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
        fused=True if fused else None,
    )
