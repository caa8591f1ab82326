"""Writes the replay fixture: a small GPT, its data, and what 200 AdamW steps of PyTorch make of it.

    python fixture.py [--out FILE]        default: tests/fixtures/gpt_replay.safetensors of this repository

Tensors: `param.<name>` f32 (before step 0), `grad.<name>` f32 (of step 0, computed in f64, then cast),
`tokens` i32 [STEPS*B*T + 1], `losses` f32 [STEPS] and `losses_f64` f64 [STEPS] (the loss before each
step's update). Step s reads, flattened, x = tokens[s*B*T .. (s+1)*B*T] and y = the same shifted by one.
The same PyTorch on the same processor gives the same bytes.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cli/src/experiment/pytorch"))
from model import Gpt, GptConfig, adamw  # noqa: E402

# No QKV bias: adding a constant to the keys leaves softmax unchanged, so the gradient of a key bias is
# rounding noise, which AdamW would blow up to full steps: nothing a replay could be held to.
CONFIG = GptConfig(vocabulary=29, context=16, layers=2, heads=4, width=32)
BATCH, STEPS, LEARNING_RATE, SEED = 8, 200, 1e-3, 20240607
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/gpt_replay.safetensors"


def markov_stream(generator: np.random.Generator, length: int) -> np.ndarray:
    """A random order-2 Markov chain: the next symbol's logits are a[last] + b[last but one] + c[both]."""
    symbols = CONFIG.vocabulary
    last, before = generator.normal(size=(2, symbols, symbols))
    both = generator.normal(size=(symbols, symbols, symbols))
    logits = 2.5 * last[None, :, :] + 1.5 * before[:, None, :] + 0.5 * both
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    cumulative = (odds / odds.sum(axis=-1, keepdims=True)).cumsum(axis=-1)
    stream = np.zeros(length, dtype=np.int32)
    stream[:2] = generator.integers(symbols, size=2)
    draws = generator.random(length)
    for i in range(2, length):
        row = cumulative[stream[i - 2], stream[i - 1]]
        stream[i] = min(np.searchsorted(row, draws[i], side="right"), symbols - 1)
    return stream


def initial_parameters(generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Larger than GPT-2's, and no bias or norm trivial, so that no term can be missing unnoticed."""
    values = {}
    for name, parameter in Gpt(CONFIG).named_parameters():
        noise = generator.normal(size=tuple(parameter.shape))
        if parameter.dim() == 2:
            value = 0.15 * noise
        else:
            value = (1.0 if name.endswith("weight") else 0.0) + 0.1 * noise
        values[name] = value.astype(np.float32)
    return values


def replay(parameters, tokens, dtype):
    """Trains in `dtype`; returns the losses before each update and the gradients of step 0."""
    model = Gpt(CONFIG, attention="written").to(dtype)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    optimizer = adamw(model, lr=LEARNING_RATE)
    shape, size = (BATCH, CONFIG.context), BATCH * CONFIG.context
    losses, gradients = [], {}
    for start in range(0, STEPS * size, size):
        x = torch.from_numpy(tokens[start : start + size]).long().view(shape)
        y = torch.from_numpy(tokens[start + 1 : start + 1 + size]).long().view(shape)
        loss = model.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        if not gradients:
            gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), gradients


def metadata() -> dict:
    return {
        "about": "Replay of a small GPT trained by PyTorch; made by benches/peers/fixture.py.",
        "config": asdict(CONFIG),
        "batch": BATCH,
        "steps": STEPS,
        "optimizer": {
            "name": "AdamW", "lr": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8,
            "weight_decay": 0.01, "decayed": "all parameters",
        },
        "windows": "step s, flattened [batch, context]: x = tokens[s*B*T .. (s+1)*B*T], "
                   "y = tokens[s*B*T + 1 .. (s+1)*B*T + 1]",
        "param": "f32, before step 0",
        "grad": "of step 0, computed in f64 from the f32 parameters, then cast to f32",
        "losses": "mean cross-entropy in nats before each update, trained in f32",
        "losses_f64": "the same, trained in f64 from the same f32 parameters",
        "seed": SEED,
        "torch": torch.__version__.split("+")[0],
    }


def with_sorted_metadata(file: bytes, values: dict) -> bytes:
    """Puts the metadata into a safetensors file with sorted keys: the library's own order is a hash map's.

    The format: u64 header length, JSON header padded with spaces to 8 bytes, data.
    """
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    header = {"__metadata__": dict(sorted(texts.items())), **header}
    packed = json.dumps(header, separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    return len(packed).to_bytes(8, "little") + packed + file[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    # One thread and deterministic kernels: sums are then always taken in one order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = np.random.default_rng(SEED)
    tokens = markov_stream(generator, STEPS * BATCH * CONFIG.context + 1)
    parameters = initial_parameters(generator)
    losses, _ = replay(parameters, tokens, torch.float32)
    losses_f64, gradients = replay(parameters, tokens, torch.float64)
    tensors = {f"param.{name}": value for name, value in parameters.items()}
    tensors |= {f"grad.{name}": value.astype(np.float32) for name, value in gradients.items()}
    tensors |= {"tokens": tokens, "losses": losses.astype(np.float32), "losses_f64": losses_f64}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(with_sorted_metadata(save(tensors), metadata()))
    drift = np.abs(losses - losses_f64).max()
    print(f"{out.name}: {out.stat().st_size} bytes, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"f32 is within {drift:.1e} of f64")


if __name__ == "__main__":
    main()
