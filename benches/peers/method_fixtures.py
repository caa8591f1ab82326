"""Writes the fixture of training methods: adapters and losses of fine-tuning, computed by PyTorch in f64.

    python method_fixtures.py [--out FILE]        default: tests/fixtures/methods.safetensors of this repository

Cases have the form that layer_fixtures.py describes.
"""

import argparse
from pathlib import Path

import torch
from safetensors.numpy import save

from fixture import with_sorted_metadata
from layer_fixtures import DEFAULT_OUT, Fixtures

OUT = DEFAULT_OUT.with_name("methods.safetensors")


def lora(f):
    """Hu et al., 2021, section 4.1: h = W x + b + (alpha / r) B A x, with alpha 8 and rank 2."""
    linear = f.randomized(torch.nn.Linear(6, 5))
    a, b = (torch.nn.Parameter(f.random(*shape, scale=0.5)) for shape in [(2, 6), (5, 2)])
    names = {"up.weight": linear.weight, "up.bias": linear.bias, "up.lora_a": a, "up.lora_b": b}
    f.add("lora", {"x": f.random(2, 3, 6)}, names, lambda x: linear(x) + 8 / 2 * (x @ a.T) @ b.T)


def pairwise(f):
    """The loss of reward models: Ouyang et al., 2022, equation 1, for pairs."""
    f.add("pairwise", {"chosen": f.random(6, scale=2.0), "rejected": f.random(6, scale=2.0)}, {},
          lambda chosen, rejected: -torch.nn.functional.logsigmoid(chosen - rejected).mean().reshape(1))


def ppo(f):
    """Schulman et al., 2017, equation 7, and half the mean squared error of the values; over masked tokens."""
    shape, clip = (3, 5), 0.2
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0]])
    inputs = {"new": f.random(*shape, scale=0.3), "old": f.random(*shape, scale=0.3), "advantages": f.random(*shape),
              "values": f.random(*shape), "returns": f.random(*shape), "mask": mask}

    def losses(new, old, advantages, values, returns, mask):
        ratio = torch.exp(new - old)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        mean = lambda x: (x * mask).sum() / mask.sum()
        losses = {"policy": -mean(surrogate), "value": 0.5 * mean((values - returns).square())}
        return {name: loss.reshape(1) for name, loss in losses.items()}

    f.add("ppo", inputs, {}, losses)


def supervised(f):
    """The loss on responses alone; -100 is what PyTorch ignores."""
    logits, targets = f.random(2, 5, 7), f.integers(7, 2, 5)
    mask = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]])
    f.add("supervised", {"logits": logits, "targets": targets, "mask": mask}, {},
          lambda x, y, mask: torch.nn.functional.cross_entropy(
              x.flatten(0, 1), torch.where(mask == 1, y, -100).flatten()).reshape(1))


CASES = [lora, pairwise, ppo, supervised]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    fixtures = Fixtures()
    for case in CASES:
        fixtures.start(case.__name__)
        case(fixtures)
    metadata = {
        "about": "Methods of training computed by PyTorch in f64; made by benches/peers/method_fixtures.py.",
        "torch": torch.__version__.split("+")[0],
    }
    out.write_bytes(with_sorted_metadata(save(dict(sorted(fixtures.tensors.items()))), metadata))


if __name__ == "__main__":
    main()
