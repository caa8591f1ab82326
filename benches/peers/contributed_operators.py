"""A model with a node for each operator of onnxruntime itself (`com.microsoft`) that the import knows, and what onnxruntime computes of it.

    python contributed_operators.py FOLDER      contributed.onnx.z and contributed.safetensors.z

Its optimizer puts them in the place of several others, and its quantization tools write them. Written with onnxruntime 1.32, without optimizations.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import helper
from onnx_operators import Nodes, numbers
from safetensors.numpy import save

OPSET = 17


class Contributed(Nodes):
    """Nodes of `com.microsoft`, and of ONNX where the name says so."""

    def add(self, operator, *inputs, domain="com.microsoft", **attributes):
        return super().add(operator, *inputs, domain=domain, **attributes)

    def hidden(self, *arguments, **attributes):
        return self.add(*arguments, hidden=True, **attributes)

    def of_onnx(self, *arguments, **attributes):
        return self.add(*arguments, domain="", **attributes)


def activations(g, x, bias):
    g.add("Gelu", x)
    g.add("BiasGelu", x, bias)
    g.add("FastGelu", x, bias)
    g.add("FastGelu", x)
    g.add("QuickGelu", x)
    g.add("QuickGelu", x, alpha=1.0)


def normalizations(g, x, skip, bias):
    weight = numbers(4)
    g.of_onnx("SimplifiedLayerNormalization", x, weight)
    g.of_onnx("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=0.25)
    g.add("SkipLayerNormalization", x, skip, weight, bias, numbers(4), epsilon=0.125)
    g.add("SkipLayerNormalization", x, numbers(2, 4), weight)
    *_, sum_ = g.hidden("SkipLayerNormalization", x, skip, weight, bias, count=4)
    # What backward alone would read is not computed there.
    g.nodes[-1].output[1] = g.nodes[-1].output[2] = ""
    g.outputs.append(sum_)
    g.add("SkipSimplifiedLayerNormalization", x, skip, weight, epsilon=0.125)
    g.add("SkipSimplifiedLayerNormalization", x, skip, weight, bias)


def products(g, x, skip):
    g.add("FusedMatMul", x, numbers(4, 3), alpha=0.25)
    g.add("FusedMatMul", x, skip, transA=1, alpha=-2.0)
    g.add("FusedMatMul", x, skip, transB=1)


def half_bytes(g, x):
    """Blocks of rows of 40 numbers, the last one of which is not full."""
    random = np.random.default_rng(37)
    unsigned = lambda *shape: random.integers(0, 256, shape, dtype=np.uint8)
    wide = g.hidden("MatMul", x, numbers(4, 40), domain="")
    scales, attributes = numbers(9), dict(K=40, N=3, bits=4)
    g.add("MatMulNBits", wide, unsigned(3, 3, 8), scales, block_size=16, **attributes)
    g.add("MatMulNBits", wide, unsigned(3, 3, 8), scales, unsigned(6), "", numbers(3), block_size=16, **attributes)
    g.add("MatMulNBits", wide, unsigned(3, 2, 16), numbers(6), block_size=32, accuracy_level=1, **attributes)
    # Whole groups of 32.
    wider, attributes = g.hidden("MatMul", x, numbers(4, 192), domain=""), dict(K=192, N=3, bits=4)
    g.add("MatMulNBits", wider, unsigned(3, 6, 16), numbers(18), block_size=32, **attributes)
    g.add("MatMulNBits", wider, unsigned(3, 6, 16), numbers(18), unsigned(9), block_size=32, **attributes)
    g.add("MatMulNBits", wider, unsigned(3, 3, 32), numbers(9), unsigned(6), "", numbers(3), block_size=64, **attributes)
    g.add("MatMulNBits", wider, unsigned(3, 3, 32), numbers(9), np.abs(numbers(9)) + 7, block_size=64, **attributes)
    # A matrix that two products read stays as it is.
    shared, scales = g.constant(unsigned(3, 6, 16)), g.constant(numbers(18))
    g.add("MatMulNBits", wider, shared, scales, block_size=32, **attributes)
    g.add("MatMulNBits", wider, shared, scales, unsigned(9), block_size=32, **attributes)


def quantized(g, x, condition, image):
    random = np.random.default_rng(31)
    unsigned = lambda *shape: random.integers(0, 256, shape, dtype=np.uint8)
    signed = lambda *shape: random.integers(-128, 128, shape, dtype=np.int8)
    scale, zero = np.float32(0.0307), np.uint8(100)
    scales = np.array([0.0203, 0.0507, 0.0101], dtype=np.float32)
    bytes_ = g.hidden("QuantizeLinear", x, scale, zero, domain="")
    real = lambda value, *of: g.of_onnx("DequantizeLinear", value, *of)
    # Bytes with a scale and a zero point.
    first = [bytes_, scale, zero]
    second = [unsigned(2, 2, 4), np.float32(0.0207), np.uint8(90)]
    result = [np.float32(0.041), np.uint8(131)]
    for name in ["QLinearAdd", "QLinearMul"]:
        real(g.hidden(name, *first, *second, *result), *result)
    # No result is near the middle of two bytes.
    chars = [signed(2, 2, 4), np.float32(0.0503), np.int8(-3)]
    for name in ["QLinearAdd", "QLinearMul"]:
        real(g.hidden(name, *chars, signed(4), np.float32(0.02), np.int8(9), np.float32(0.0613), np.int8(-20)), np.float32(0.0613), np.int8(-20))
    real(g.hidden("QLinearWhere", condition, *first, *second, *result), *result)
    real(g.hidden("QLinearConcat", *result, *first, *second, axis=1), *result)
    real(g.hidden("QLinearSigmoid", *first, np.float32(1 / 256), np.uint8(0)), np.float32(1 / 256), np.uint8(0))
    real(g.hidden("QLinearLeakyRelu", *first, *result, alpha=0.2), *result)
    real(g.hidden("QLinearSoftmax", *first, np.float32(1 / 256), np.uint8(0), axis=-1, opset=OPSET), np.float32(1 / 256), np.uint8(0))
    pixels = g.hidden("QuantizeLinear", image, scale, zero, domain="")
    real(g.hidden("QLinearGlobalAveragePool", pixels, scale, zero, *result), *result)
    rows = g.hidden("Reshape", bytes_, np.array([4, 4]), domain="")
    g.add("QGemm", rows, scale, zero, signed(4, 3), np.float32(0.02), np.int8(0), random.integers(-900, 900, 3, dtype=np.int32))
    by_columns = [signed(3, 4), scales, np.zeros(3, dtype=np.int8)]
    real(g.hidden("QGemm", rows, scale, zero, *by_columns, random.integers(-900, 900, 3, dtype=np.int32), np.float32(0.3), np.uint8(128), transB=1, alpha=0.5), np.float32(0.3), np.uint8(128))
    g.add("MatMulIntegerToFloat", bytes_, signed(4, 3), scale, scales, zero, np.array([1, 0, -2], dtype=np.int8), numbers(3))
    g.add("MatMulIntegerToFloat", bytes_, unsigned(4, 3), scale, np.float32(0.01), zero, np.uint8(120))
    g.add("DynamicQuantizeMatMul", x, signed(4, 3), np.float32(0.02), np.int8(4), numbers(3))
    g.add("DynamicQuantizeMatMul", x, signed(4, 3), scales)


def main():
    folder = Path(sys.argv[1])
    g = Contributed()
    x, skip = g.input("x", numbers(2, 2, 4)), g.input("skip", numbers(2, 2, 4))
    bias = g.constant(numbers(4))
    condition = g.input("condition", numbers(2, 2, 4) > 0)
    activations(g, x, bias)
    normalizations(g, x, skip, bias)
    products(g, x, skip)
    half_bytes(g, x)
    quantized(g, x, condition, g.input("image", numbers(2, 3, 2, 3)))
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in g.inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in g.outputs]
    graph = helper.make_graph(g.nodes, "operators of onnxruntime", declared, results, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.SerializeToString(deterministic=True)
    outputs = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, g.inputs)
    tensors = {f"input.{at}": value for at, value in enumerate(g.inputs.values())}
    tensors |= {f"output.{at}": np.ascontiguousarray(value) for at, value in enumerate(outputs)}
    (folder / "contributed.onnx.z").write_bytes(zlib.compress(content, 9))
    (folder / "contributed.safetensors.z").write_bytes(zlib.compress(save(tensors), 9))
    print(len(g.nodes), "nodes")


if __name__ == "__main__":
    main()
