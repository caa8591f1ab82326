"""Runs what `kernfusion export --format onnx` writes with onnxruntime, and compares it with what `kernfusion run` gives.

    python onnx_judge.py KERNFUSION DIR ..        folders of imported models

Inputs are random: whole numbers below 4, truth values, floats around 0. It prints the largest difference of each model's outputs as a share of the
largest magnitude of the output, and the number of nodes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

DTYPES = {"f32": np.float32, "i32": np.int32, "bool": np.bool_, "f64": np.float64, "i8": np.int8, "u32": np.uint32}


def drawn(random, dtype, shape):
    if dtype == "f32":
        return random.standard_normal(shape, dtype=np.float32)
    # A 1 counts in a mask, and is a token.
    return random.integers(1, 4, shape).astype(DTYPES[dtype]) if dtype != "bool" else np.ones(shape, dtype=np.bool_)


def deviation(found, expected):
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return np.inf
    scale = np.abs(expected[finite]).max(initial=0)
    return np.abs(found[finite] - expected[finite]).max(initial=0) / (scale or 1)


def judged(program, folder):
    signature = json.loads((folder / "signature.json").read_text())
    random = np.random.default_rng(1)
    inputs = {given["name"]: drawn(random, given["dtype"], given["shape"]) for given in signature["inputs"]}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        written = subprocess.run([program, "export", folder, "--format", "onnx", "-o", place / "onnx"], capture_output=True, text=True)
        if written.returncode:
            return written.stderr.strip()
        save_file(inputs, place / "in.safetensors")
        subprocess.run([program, "run", folder, "--inputs", place / "in.safetensors", "--outputs", place / "out.safetensors"], check=True)
        expected = load_file(place / "out.safetensors")
        file = place / "onnx/model.onnx"
        onnx.checker.check_model(file, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        found = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"]).run(None, inputs)
        nodes = len(onnx.load(file, load_external_data=False).graph.node)
    names = [output["name"] for output in signature["outputs"]]
    worst = max(deviation(value, expected[name]) for name, value in zip(names, found, strict=True))
    return f"{worst:.0e}, {nodes} nodes"


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        print(f"{Path(folder).name}: {judged(sys.argv[1], Path(folder))}", flush=True)
