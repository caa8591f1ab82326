"""An archive with the operators of quantized models of PyTorch, and what PyTorch makes of them.

    python quantized_fixture.py FOLDER      quantized.pt2.z and quantized.safetensors.z

torchao's quantizers write these operators (`prepare_pt2e`, `convert_pt2e`). Here each stands with numbers of its own; bytes have a sign, or none.
Written with PyTorch 2.15 and torchao 0.18.
"""

import sys
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e  # noqa: F401 (it registers the operators)

BYTE, CHAR = torch.uint8, torch.int8


class Quantized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(8))
        self.register_buffer("weight", torch.randint(-128, 128, (8, 3, 3, 3), dtype=CHAR))
        self.register_buffer("scales", torch.rand(8) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.long))
        self.register_buffer("others", torch.randint(-9, 9, (8,)))

    def forward(self, x):
        o = torch.ops.quantized_decomposed
        image = o.quantize_per_tensor(x, 0.0307, 114, 0, 255, BYTE)
        image = o.dequantize_per_tensor(image, 0.0307, 114, 0, 255, BYTE)
        weight = o.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, CHAR)
        y = F.relu(F.conv2d(image, weight, self.bias, padding=1, stride=2))
        channels = o.quantize_per_channel(y, self.scales, self.others, 1, -127, 127, CHAR)
        channels = o.dequantize_per_channel(channels, self.scales, self.others, 1, -127, 127, CHAR)
        scale, zero = o.choose_qparams(y, 0, 255, 1e-4, BYTE)
        found = o.quantize_per_tensor(y, scale, zero, 0, 255, BYTE)
        found = o.dequantize_per_tensor(found, scale, zero, 0, 255, BYTE)
        return y, channels, scale, zero, found


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(29)
    model, x = Quantized().eval(), torch.randn(2, 3, 9, 10)
    archive = folder / "quantized.pt2"
    torch.export.save(torch.export.export(model, (x,)), archive)
    with torch.no_grad():
        outputs = model(x)
    narrow = lambda value: value.int() if value.dtype == torch.long else value
    tensors = {"input.0": x} | {f"output.{at}": narrow(output).contiguous() for at, output in enumerate(outputs)}
    (folder / "quantized.pt2.z").write_bytes(zlib.compress(archive.read_bytes(), 9))
    (folder / "quantized.safetensors.z").write_bytes(zlib.compress(save(tensors), 9))
    archive.unlink()


if __name__ == "__main__":
    main()
