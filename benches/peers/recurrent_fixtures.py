"""Writes the fixture of recurrent layers; see layer_fixtures.py for what its tensors are.

    python recurrent_fixtures.py [--out FILE]        default: tests/fixtures/recurrent.safetensors of this repository
"""

from pathlib import Path

import torch

from layer_fixtures import write

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/recurrent.safetensors"


def named(layers):
    return {f"rnn.{name}": parameter for name, parameter in layers.named_parameters()}


def rnn(f):
    layers = f.randomized(torch.nn.RNN(3, 4, num_layers=2, batch_first=True))
    inputs = {"x": f.random(2, 5, 3), "h": f.random(2, 2, 4)}
    f.add("rnn", inputs, named(layers), lambda x, h: dict(zip(("y", "h_last"), layers(x, h))))


def lstm(f):
    layers = f.randomized(torch.nn.LSTM(3, 4, num_layers=2, batch_first=True))
    inputs = {"x": f.random(2, 5, 3), "h": f.random(2, 2, 4), "c": f.random(2, 2, 4)}

    def forward(x, h, c):
        y, (h_last, c_last) = layers(x, (h, c))
        return {"y": y, "h_last": h_last, "c_last": c_last}

    f.add("lstm", inputs, named(layers), forward)


def gru(f):
    layers = f.randomized(torch.nn.GRU(3, 4, num_layers=2, batch_first=True))
    inputs = {"x": f.random(2, 5, 3), "h": f.random(2, 2, 4)}
    f.add("gru", inputs, named(layers), lambda x, h: dict(zip(("y", "h_last"), layers(x, h))))


if __name__ == "__main__":
    write([rnn, lstm, gru], DEFAULT_OUT, __doc__)
