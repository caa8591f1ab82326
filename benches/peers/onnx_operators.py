"""A model of ONNX with a node for each operator that the import knows, and what the reference evaluator of ONNX computes of it."""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 24


class Nodes:
    """Nodes whose results are all outputs."""

    def __init__(self):
        self.nodes, self.inputs, self.constants, self.outputs = [], {}, [], []

    def input(self, name, value):
        self.inputs[name] = value
        return name

    def constant(self, value):
        name = f"constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator, *inputs, count=1, hidden=False, **attributes):
        """A node; what is no name is a constant. Its first result, if there is but one."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        results = [f"{operator}.{len(self.nodes)}.{at}" for at in range(count)]
        self.nodes.append(helper.make_node(operator, names, results, **attributes))
        self.outputs += [] if hidden else results
        return results[0] if count == 1 else results


def numbers(*shape, random=np.random.default_rng(19), step=16):
    """Normal numbers of few digits, so that they pack."""
    return ((random.standard_normal(shape) * step).round() / step).astype(np.float32)


def whole(*values):
    return np.array(values, dtype=np.int64)


def elementwise(g, x, y, positive, condition, other):
    for name in ["Abs", "Neg", "Sign", "Exp", "Sin", "Cos", "Tan", "Tanh", "Erf", "Floor", "Ceil", "Round", "Identity", "IsNaN", "IsInf",
                 "Sigmoid", "Relu", "Softplus", "Mish", "HardSwish", "HardSigmoid", "Gelu", "Swish", "LeakyRelu", "Elu", "Celu", "Selu",
                 "Softmax", "LogSoftmax"]:
        g.add(name, x)
    for name in ["Log", "Sqrt", "Reciprocal"]:
        g.add(name, positive)
    for name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]:
        g.add(name, x, y)
    for name in ["And", "Or", "Xor"]:
        g.add(name, condition, other)
    g.add("Not", condition)
    g.add("Gelu", x, approximate="tanh")
    g.add("Swish", x, alpha=0.5)
    g.add("HardSigmoid", x, alpha=0.3, beta=0.4)
    g.add("LeakyRelu", x, alpha=0.2)
    g.add("PRelu", x, numbers(3, 1))
    g.add("Softmax", x, axis=1)
    g.add("Pow", x, np.float32(3))
    g.add("Pow", positive, y)
    g.add("Where", condition, x, y)
    g.add("Clip", x, np.float32(-0.5), np.float32(0.75))
    g.add("Clip", x, "", np.float32(0.25))
    g.add("Dropout", x)
    g.add("Mod", x, positive, fmod=1)
    g.add("Max", x, y, np.float32(0.5))


def of_whole_numbers(g, x, i, j):
    for name in ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mod", "Add"]:
        g.add(name, i, j)
    g.add("BitwiseNot", i)
    g.add("Mod", i, j, fmod=1)
    g.add("Cast", i, to=TensorProto.FLOAT)
    g.add("Cast", x, to=TensorProto.INT64)
    g.add("Cast", x, to=TensorProto.BOOL)
    g.add("CastLike", i, x)
    g.add("ConstantOfShape", whole(2, 3), value=numpy_helper.from_array(np.array([1.5], dtype=np.float32)))
    g.add("ConstantOfShape", whole(2))
    g.add("Range", np.int64(2), np.int64(11), np.int64(3))
    g.add("Range", np.float32(1), np.float32(-1), np.float32(-0.5))
    g.add("CumSum", x, np.int64(1))
    g.add("CumSum", i, whole(-1)[0])


def movement(g, x):
    shape = g.add("Shape", x)
    g.add("Shape", x, start=1, end=-1)
    g.add("Size", x)
    last = g.add("Gather", shape, np.int64(-1))
    rows = g.add("Concat", whole(-1), g.add("Unsqueeze", last, whole(0)), axis=0)
    g.add("Reshape", x, rows)
    g.add("Reshape", x, whole(0, -1))
    g.add("Flatten", x)
    g.add("Flatten", x, axis=-1)
    wide = g.add("Unsqueeze", x, whole(0, -1))
    g.add("Squeeze", wide)
    g.add("Squeeze", wide, whole(-1))
    g.add("Expand", x, whole(2, 1, 3, 1))
    g.add("Transpose", x)
    g.add("Transpose", x, perm=[1, 0, 2])
    g.add("Slice", x, whole(1), whole(2**63 - 1), whole(-1))
    g.add("Slice", x, whole(0, -1), whole(2, -(2**63)), whole(1, 2), whole(1, -2))
    g.add("Slice", x, whole(0), whole(4), whole(2), whole(3))
    g.add("Split", x, whole(1, 3), axis=2, count=2)
    g.add("Split", x, axis=1, num_outputs=2, count=2)
    parts = g.add("SplitToSequence", x, whole(3, 1), axis=-1, hidden=True)
    g.add("SequenceAt", parts, np.int64(-1))
    g.add("Tile", x, whole(1, 2, 3))
    g.add("Pad", x, whole(0, 1, 0, 0, 0, 2), np.float32(0.5))
    g.add("Pad", x, whole(1, 2), "", whole(2), mode="edge")
    g.add("Pad", x, whole(2, 1), "", whole(-1), mode="reflect")


def indexing(g, x, index):
    g.add("Gather", x, index, axis=1)
    g.add("GatherElements", x, g.input("places", np.array([[[0, -1, 1, 2]], [[1, 1, 0, 0]]])), axis=1)
    g.add("GatherND", x, g.input("corners", np.array([[0, -1], [1, 1]])))
    g.add("ScatterND", x, g.input("cells", np.array([[0, 1], [1, -1]])), numbers(2, 4))
    g.add("ScatterND", x, np.array([[0], [0]]), numbers(2, 3, 4), reduction="add")
    g.add("ScatterElements", x, np.array([[[0, 2, -2, 1]]]), numbers(1, 1, 4), axis=1)
    g.add("ScatterElements", x, np.array([[[0, 0, 1, 1]]]), numbers(1, 1, 4), axis=2, reduction="add")
    g.add("OneHot", index, np.int64(4), numbers(2))
    g.add("OneHot", index, np.int64(4), numbers(2), axis=0)
    g.add("Trilu", x)
    g.add("Trilu", x, np.int64(-1), upper=0)
    g.add("TopK", x, whole(2), count=2)
    g.add("TopK", x, whole(1), axis=1, largest=0, count=2)


def reductions(g, x):
    for name in ["Sum", "Mean", "Max", "Min", "SumSquare", "L1", "L2", "LogSumExp"]:
        g.add(f"Reduce{name}", x, whole(-1, 0))
    g.add("ReduceSum", x, keepdims=0)
    g.add("ReduceMean", x, whole(1), keepdims=0)
    for name in ["ArgMax", "ArgMin"]:
        g.add(name, x)
        g.add(name, x, axis=-1, keepdims=0)


def products(g, x):
    g.add("MatMul", x, numbers(4, 2))
    g.add("MatMul", x, numbers(4))
    g.add("MatMul", numbers(3), x)
    g.add("MatMul", numbers(3), numbers(3))
    g.add("Gemm", numbers(3, 2), numbers(4, 3), numbers(4), transA=1, transB=1, alpha=0.5, beta=2.0)
    g.add("Gemm", numbers(2, 3), numbers(3, 4))
    g.add("Einsum", x, numbers(3, 5), equation="bij,ik->bkj")


def attentions(g):
    query, key, value = numbers(2, 4, 3, 2), numbers(2, 2, 5, 2), numbers(2, 2, 5, 2)
    g.add("Attention", query, key, value)
    g.add("Attention", query, key, value, numbers(3, 5), scale=0.5)
    g.add("Attention", query, key, value, np.arange(15).reshape(3, 5) % 4 > 0)
    g.add("Attention", query, query, query, is_causal=1)
    g.add("Attention", numbers(2, 3, 8), numbers(2, 5, 4), numbers(2, 5, 4), q_num_heads=4, kv_num_heads=2)


def normalizations(g, x, image):
    g.add("LayerNormalization", x, numbers(4), numbers(4), count=3)
    g.add("LayerNormalization", x, numbers(3, 4), axis=1, epsilon=1e-3)
    g.add("RMSNormalization", x, numbers(4), epsilon=1e-3)
    g.add("GroupNormalization", image, numbers(4), numbers(4), num_groups=2)
    g.add("InstanceNormalization", image, numbers(4), numbers(4), epsilon=1e-3)
    statistics = [numbers(4), numbers(4), numbers(4), numbers(4) ** 2 + np.float32(0.5)]
    g.add("BatchNormalization", image, *statistics)
    g.add("BatchNormalization", image, *statistics, training_mode=1, momentum=0.8, count=3)


def windows(g, image):
    g.add("Conv", image, numbers(2, 4, 3, 3), numbers(2), pads=[1, 1, 1, 1], strides=[2, 1])
    g.add("Conv", image, numbers(4, 2, 2, 2), group=2, pads=[0, 1, 1, 0], dilations=[1, 2])
    g.add("Conv", image, numbers(2, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
    g.add("ConvTranspose", image, numbers(4, 2, 3, 3), numbers(2), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    g.add("MaxPool", image, kernel_shape=[2, 3], strides=[2, 2])
    g.add("MaxPool", image, kernel_shape=[3, 3], pads=[0, 1, 1, 0])
    g.add("MaxPool", image, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    g.add("AveragePool", image, kernel_shape=[2, 3])
    g.add("AveragePool", image, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    g.add("AveragePool", image, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    g.add("GlobalAveragePool", image)
    g.add("GlobalMaxPool", image)
    g.add("DepthToSpace", image, blocksize=2)
    g.add("DepthToSpace", image, blocksize=2, mode="CRD")
    nearest = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    g.add("Resize", image, "", np.array([1, 1, 2, 3], dtype=np.float32), **nearest)
    g.add("Resize", image, "", "", whole(2, 4, 8, 3), **nearest)
    g.add("Resize", image, "", "", whole(2, 4, 9, 4), mode="linear")
    g.add("Resize", image, "", np.array([1, 1, 2, 2], dtype=np.float32), mode="linear", coordinate_transformation_mode="align_corners")
    g.add("Resize", image, "", np.array([1, 1, 2, 2], dtype=np.float32), mode="cubic", cubic_coeff_a=-0.75)


def layers(g, words, classes):
    gates = lambda count: (numbers(1, count * 2, 4), numbers(1, count * 2, 2), numbers(1, count * 4))
    g.add("LSTM", words, *gates(4), hidden_size=2, count=3)
    g.add("LSTM", words, *gates(4), "", numbers(1, 2, 2), numbers(1, 2, 2), hidden_size=2, count=3)
    g.add("GRU", words, *gates(3), hidden_size=2, linear_before_reset=1, count=2)
    scores = g.add("LogSoftmax", numbers(3, 4), hidden=True)
    for reduction in ["mean", "sum", "none"]:
        g.add("NegativeLogLikelihoodLoss", scores, classes, reduction=reduction)
        g.add("SoftmaxCrossEntropyLoss", numbers(3, 4), classes, reduction=reduction)
    g.add("SoftmaxCrossEntropyLoss", numbers(3, 4), classes, numbers(4) ** 2, ignore_index=1)


def quantization(g, x, image):
    """Bytes with and without a sign, between operators that take and give floats."""
    random = np.random.default_rng(23)
    unsigned = lambda *shape: random.integers(0, 256, shape, dtype=np.uint8)
    signed = lambda *shape: random.integers(-128, 128, shape, dtype=np.int8)
    hidden = lambda *arguments, **attributes: g.add(*arguments, hidden=True, **attributes)
    # No quotient is near the middle of two bytes.
    scale, zero = np.float32(0.0307), np.uint8(100)
    scales = np.array([0.0203, 0.0507, 0.0101, 0.0409], dtype=np.float32)
    bytes_ = hidden("QuantizeLinear", x, scale, zero)
    g.add("DequantizeLinear", bytes_, scale, zero)
    g.add("DequantizeLinear", hidden("Transpose", bytes_), scale)
    g.add("DequantizeLinear", hidden("QuantizeLinear", x, scale), scale, np.uint8(3))
    of_rows = hidden("QuantizeLinear", x, scales, np.array([3, 0, -7, 0], dtype=np.int8), axis=2)
    g.add("DequantizeLinear", of_rows, scales, np.array([3, 0, -7, 0], dtype=np.int8), axis=-1)
    g.add("DequantizeLinear", hidden("QuantizeLinear", x, scale, output_dtype=TensorProto.INT8), scale)
    g.add("DequantizeLinear", np.array([70000, -3], dtype=np.int32), scale)
    found = hidden("DynamicQuantizeLinear", x, count=3)
    g.add("DequantizeLinear", *found)
    g.add("MatMulInteger", bytes_, unsigned(4, 5), zero, np.uint8(7))
    g.add("MatMulInteger", of_rows, signed(4, 5))
    g.add("MatMulInteger", found[0], signed(4, 5), found[2])
    product = [unsigned(4, 5), np.float32(0.01), np.uint8(120)]
    g.add("DequantizeLinear", hidden("QLinearMatMul", bytes_, scale, zero, *product, np.float32(0.1), np.uint8(128)), np.float32(0.1), np.uint8(128))
    g.add("MatMul", g.add("DequantizeLinear", bytes_, scale, zero), hidden("DequantizeLinear", *product))
    pixels, weight = hidden("QuantizeLinear", image, scale, zero), signed(2, 4, 3, 3)
    g.add("DequantizeLinear", hidden("MaxPool", pixels, kernel_shape=[2, 3], strides=[2, 2]), scale, zero)
    g.add("ConvInteger", pixels, weight, zero, strides=[2, 1], pads=[1, 1, 1, 1])
    kernel = [weight, scales[:2], np.zeros(2, dtype=np.int8)]
    window = dict(pads=[1, 1, 1, 1], strides=[1, 2])
    linear = hidden("QLinearConv", pixels, scale, zero, *kernel, np.float32(0.2), np.uint8(99), np.array([500, -900], dtype=np.int32), **window)
    g.add("DequantizeLinear", linear, np.float32(0.2), np.uint8(99))
    g.add("Conv", hidden("DequantizeLinear", pixels, scale, zero), hidden("DequantizeLinear", *kernel, axis=0), numbers(2), **window)


def corners(g, x, image):
    """What differs from PyTorch where numbers are extreme, or an attribute is left out."""
    hidden = lambda *arguments, **attributes: g.add(*arguments, hidden=True, **attributes)
    query, key = numbers(2, 2, 3, 4), numbers(2, 2, 5, 4)
    g.add("Attention", query, key, key, softcap=0.5)
    g.add("Attention", query, key, key, np.array([[1, 0, 1, 1, 0], [0] * 5, [1] * 5], dtype=bool))
    g.add("Attention", query, key, key, np.where(np.arange(15).reshape(3, 5) < 5, -np.inf, 0).astype(np.float32), softcap=2.0)
    g.add("RMSNormalization", hidden("Mul", x, np.float32(1e-3)), numbers(4))
    g.add("SequenceAt", hidden("SplitToSequence", x, axis=1), np.int64(2))
    cubic = dict(mode="cubic", cubic_coeff_a=-0.5)
    g.add("Resize", image, "", np.array([1, 1, 2, 2], dtype=np.float32), **cubic)
    g.add("Resize", image, "", "", whole(2, 4, 1, 1), mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
    g.add("MaxPool", hidden("Slice", image, whole(0), whole(4), whole(3)), kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1)
    g.add("MaxPool", image, kernel_shape=[5, 3], strides=[2, 3], pads=[3, 0, 4, 1], ceil_mode=1)
    far = hidden("Add", whole(2**31 - 1), whole(1))
    g.add("Slice", x, whole(1), far, whole(1))
    g.add("Slice", x, whole(1), hidden("Div", hidden("Mul", whole(10**5), whole(10**5)), whole(5 * 10**9)), whole(2))
    large = hidden("Cast", hidden("Add", hidden("Mul", hidden("Cast", x, to=TensorProto.INT64), np.int64(0)), np.int64(2**24 + 1)), to=TensorProto.INT64)
    g.add("CumSum", large, np.int64(1))
    divisors = np.array([0.1, 3, np.inf, -np.inf], dtype=np.float32)
    g.add("Mod", hidden("Mul", x, np.float32(1e7)), divisors, fmod=1)
    g.add("Cast", hidden("Add", hidden("Mul", hidden("Cast", x, to=TensorProto.INT32), np.int32(100)), np.int32(50)), to=TensorProto.INT8)
    g.add("Squeeze", hidden("Unsqueeze", x, whole(0)), np.array([], dtype=np.int64))
    g.add("ArgMin", hidden("Sub", hidden("Cast", x, to=TensorProto.INT32), np.int32(2**31 - 2)), axis=-1)


def operators():
    """The model, its inputs and its outputs; of `int64` what has none is of `int32` there."""
    g = Nodes()
    x, y = g.input("x", numbers(2, 3, 4)), g.input("y", numbers(3, 1) + np.float32(1 / 32))
    image = g.input("image", numbers(2, 4, 4, 5))
    condition = g.input("condition", np.array([True, False, True, True]))
    elementwise(g, x, y, g.input("positive", numbers(2, 3, 4) ** 2 + np.float32(0.25)), condition, g.input("other", np.array([[True], [False]])))
    of_whole_numbers(g, x, g.input("i", whole(7, -7, 12, -5)), g.input("j", whole(3, 3, -5, -2)))
    movement(g, x)
    indexing(g, x, g.input("index", np.array([[0, 2], [-1, 1]])))
    reductions(g, x)
    products(g, x)
    normalizations(g, x, image)
    attentions(g)
    windows(g, image)
    layers(g, g.input("words", numbers(3, 2, 4)), g.input("classes", whole(0, 3, 1)))
    quantization(g, x, image)
    corners(g, x, image)
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in g.inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in g.outputs]
    graph = helper.make_graph(g.nodes, "operators", declared, results, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    outputs = ReferenceEvaluator(model).run(None, g.inputs)
    narrow = lambda value: np.array(value, dtype=np.int32 if value.dtype == np.int64 else value.dtype, order="C")
    return model, [narrow(value) for value in g.inputs.values()], [narrow(np.asarray(value)) for value in outputs]
