"""Quantized ONNX files, as onnxruntime and the program KERNFUSION run them.

    python bench_quantized.py FOLDER NAME... [--rounds N] [--steps N] [--threads N]

Of models that bench_imported.py has exported to FOLDER, the files that onnxruntime's tools make of them: "dynamic" has matrices of bytes, what they
multiply is rounded in each step; "static" has bytes everywhere, with scales that were found before. Both run the same file. Differences are root mean
squares beside onnxruntime without optimizations, which computes each operator as it is written: ours, and that of its optimized form. Times are
medians of rounds in turn, each of steps in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file, save_file

WARMUP = 2


def session(file, threads, is_optimized=True):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if not is_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def inputs_of(model, tensors):
    """Tensors by name, as a model takes them."""
    dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {given.name: tensors[given.name].astype(dtypes[given.type]) for given in model.get_inputs()}


def time_of_onnxruntime(file, inputs, steps, threads):
    """Milliseconds; what the process that is started for it prints."""
    model = session(file, threads)
    given, seconds = inputs_of(model, load_file(inputs)), []
    for _ in range(WARMUP + steps):
        start = time.perf_counter()
        model.run(None, given)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[WARMUP:])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def measure(file, tensors, arguments):
    ours = os.environ["KERNFUSION"]
    try:
        plain, optimized = (session(file, arguments.threads, is_optimized) for is_optimized in (False, True))
    except Exception as error:
        return print(f"{file.stem}: onnxruntime does not run it: {error}")
    given = inputs_of(plain, tensors)
    expected, fused = plain.run(None, given)[0], optimized.run(None, given)[0]
    difference = lambda output: np.linalg.norm(output - expected) / np.linalg.norm(expected)
    with tempfile.TemporaryDirectory() as scratch:
        model, inputs, outputs, row = (f"{scratch}/{name}" for name in ("model", "inputs.safetensors", "outputs.safetensors", "row.json"))
        narrow = lambda value: value.astype(np.int32) if value.dtype == np.int64 else value
        save_file({name: narrow(value) for name, value in given.items()}, inputs)
        run(ours, "import", file, "-o", model)
        run(ours, "run", model, "--inputs", inputs, "--outputs", outputs)
        print(f"{file.stem}: ours {difference(load_file(outputs)['output.0']):.1e}, onnxruntime optimized {difference(fused):.1e}")
        bench = [ours, "bench", "--program", model, "--inputs", inputs, "--mode", "compiled", "--json", row,
                 "--steps", str(arguments.steps), "--threads", str(arguments.threads)]
        peer = [sys.executable, __file__, "--time", file, inputs, "--steps", str(arguments.steps), "--threads", str(arguments.threads)]
        times = {"ours": [], "onnxruntime": []}
        for _ in range(arguments.rounds):
            run(*bench)
            times["ours"].append(1e3 * json.loads(Path(row).read_text())["results"][0]["median_step_s"])
            times["onnxruntime"].append(float(run(*peer)))
    for name, milliseconds in times.items():
        print(f"  {name}: {statistics.median(milliseconds):.1f} ms ({', '.join(f'{each:.1f}' for each in milliseconds)})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time", nargs=2, metavar=("FILE", "INPUTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time:
        return print(time_of_onnxruntime(*arguments.time, arguments.steps, arguments.threads))
    if not arguments.names or "KERNFUSION" not in os.environ:
        parser.error("it takes a folder, names of models, and the path of our program in KERNFUSION")
    from bench_imported import build, onnx_file, quantized, read

    for name in arguments.names:
        tensors, _ = read(name, arguments.folder)
        file = onnx_file(name, arguments.folder, build(name)[0], tensors)
        tensors = {key: value.numpy() for key, value in tensors.items()}
        for file in quantized(file, inputs_of(session(file, arguments.threads), tensors)):
            measure(file, tensors, arguments)


if __name__ == "__main__":
    main()
