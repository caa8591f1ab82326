"""Exports plain modules with the installed version of PyTorch, and compares what it makes of them with what Kernfusion does.

    python export_versions.py KERNFUSION

It needs torch and safetensors alone, so that it runs with old versions. For each module, as it is exported and of core ATen operators alone, it
prints the largest difference of the output as a share of its largest magnitude, and the losses after 50 steps of AdamW of both.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export import Dim


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(24, 16), nn.Embedding(8, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask[:length, :length], need_weights=False)[0]
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.norm2 = nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.a(x))), 2)
        x = torch.relu_(self.norm2(self.b(x)))
        return self.head(x.mean((2, 3)))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 6)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


# The module, the input of the export, its open extents, that of the run, and whether it is in training.
BATCH, LENGTH = Dim("batch", min=2, max=64), Dim("length", min=2, max=7)
MODULES = {
    "block": (Block, torch.ones(3, 5, dtype=torch.long), {0: BATCH, 1: LENGTH}, torch.randint(0, 24, (2, 6)), False),
    "convolutions": (Convolutions, torch.randn(3, 3, 12, 12), {0: BATCH}, torch.randn(2, 3, 12, 12), False),
    "convolutions in training": (Convolutions, torch.randn(2, 3, 12, 12), {}, torch.randn(2, 3, 12, 12), True),
    "tagger": (Tagger, torch.ones(2, 6, dtype=torch.long), {}, torch.randint(0, 20, (2, 6)), False),
}


def trained(model, x, target):
    """The loss of the last of 50 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(50):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
    return loss.item()


def judged(kernfusion, place, name, is_core):
    build, example, open_extents, x, training = MODULES[name]
    torch.manual_seed(1)
    model = build().train(training)
    program = torch.export.export(model, (example,), dynamic_shapes=(open_extents or None,))
    program = program.run_decompositions() if is_core else program
    torch.export.save(program, str(place / "model.pt2"))
    model.load_state_dict(program.state_dict, strict=False)
    call = lambda *arguments: subprocess.run([kernfusion, *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    given = next(iter(program.graph_signature.user_inputs))
    extents = [f"--dim={given}.{axis}={x.shape[axis]}" for axis in open_extents]
    call("import", place / "model.pt2", "-o", place / "model", "--overwrite", *extents)
    narrow = lambda value: value.int() if value.dtype == torch.long else value
    target = torch.randint(0, 5, model(x).shape[:-1])
    model.load_state_dict(program.state_dict, strict=False)
    expected = model(x).detach()
    save_file({given: narrow(x)}, place / "in.safetensors")
    call("run", place / "model", "--inputs", place / "in.safetensors", "--outputs", place / "out.safetensors")
    found = load_file(place / "out.safetensors")["output.0"]
    save_file({given: narrow(x)[None], "target": narrow(target)[None]}, place / "batch.safetensors")
    model.load_state_dict(program.state_dict, strict=False)
    training = "--loss cross-entropy --clip 0 --lr 0.001 --optimizer adamw --steps 50 --overwrite".split()
    said = call("train", "--program", place / "model", "--data", place / "batch.safetensors", "--out", place / "trained", *training)
    last = [line for line in said.splitlines() if line.startswith("step     50")][0].split()[-1]
    return (found - expected).abs().max().item() / expected.abs().max().item(), last, trained(model, x, target)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in MODULES:
        for is_core in [False, True]:
            with tempfile.TemporaryDirectory() as place:
                outputs, found, expected = judged(sys.argv[1], Path(place), name, is_core)
            form = "core" if is_core else "exported"
            print(f"{torch.__version__} {name}, {form}: outputs {outputs:.0e}, loss {found} and {expected:.5f}", flush=True)
