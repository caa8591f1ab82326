"""Writes the layer fixture: inputs, parameters, outputs and gradients of single layers, computed by PyTorch in f64.

    python layer_fixtures.py [--out FILE]        default: tests/fixtures/layers.safetensors of this repository

Each case has tensors `<case>/<role>/<name>`. Roles: `input` (f32, or i32 for indices and masks), `param` (f32, under the
names that the Rust layers give them), `output` and `weight` (f64 and f32, of one shape): the gradients are those of the
sum of output times weight over all outputs; `grad` (f32, computed in f64, for each f32 input and each parameter); `state`
and `new` (f32 and f64: a layer's state before and after). All numbers that go in are exact in f32.
The same PyTorch on the same processor gives the same bytes.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save

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
        values = (scale * self.generator.normal(size=shape)).astype(np.float32)
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

        `parameters` has a tensor for each of our names, or a list of them: then ours is all of them, row under row.
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
            tensors = tensors if isinstance(tensors, list) else [tensors]
            self.put(case, "param", name, torch.cat([tensor.detach() for tensor in tensors]), np.float32)
            self.put(case, "grad", name, torch.cat([tensor.grad for tensor in tensors]), np.float32)
        for name, tensor in (new_states() if new_states else {}).items():
            self.put(case, "new", name, tensor, np.float64)

    def put(self, case, role, name, tensor, kind):
        self.tensors[f"{case}/{role}/{name}"] = tensor.detach().numpy().astype(kind)


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


CASES = [activations, linear_and_embedding]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    # One thread and deterministic kernels: sums are then always taken in one order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    fixtures = Fixtures()
    for case in CASES:
        fixtures.start(case.__name__)
        case(fixtures)
    metadata = {
        "about": "Layers and small models computed by PyTorch in f64; made by benches/peers/layer_fixtures.py.",
        "torch": torch.__version__.split("+")[0],
    }
    tensors = dict(sorted(fixtures.tensors.items()))
    out.write_bytes(with_sorted_metadata(save(tensors), metadata))
    cases = {name.split("/")[0] for name in tensors}
    print(f"{out.name}: {out.stat().st_size} bytes, {len(cases)} cases")


if __name__ == "__main__":
    main()
