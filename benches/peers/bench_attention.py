"""Times causal attention alone in PyTorch: scaled_dot_product_attention, forward and forward with backward.

    python bench_attention.py --shapes 384x256x64 24x2048x64 --json attention.json

A shape is heads (of all sequences together) x positions x width of a head. Times are medians; inputs are random and
made before the clock starts. The operations counted are those below the diagonal: 2 products forward, 5 backward (the
scores are computed again there).
"""

import argparse
import json
import statistics
import time

from bench_torch import machine, use_allocator


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["384x256x64", "24x2048x64"], metavar="HxTxD")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--steps", type=int, default=10, help="timed runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--allocator", default="tuned", choices=["default", "tuned"])
    parser.add_argument("--json", help="file to write as well")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.threads < 1:
        parser.error("--steps and --threads must be at least 1")
    try:
        arguments.shapes = [tuple(int(part) for part in shape.split("x")) for shape in arguments.shapes]
    except ValueError:
        parser.error("a shape is three numbers, as 384x256x64")
    if any(len(shape) != 3 or min(shape) < 1 for shape in arguments.shapes):
        parser.error("a shape is three numbers, as 384x256x64")
    return arguments


def measure(shape, arguments):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    heads, positions, width = shape
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    draw = lambda: torch.randn(1, heads, positions, width).to(dtype)
    q, k, v, gradient = draw(), draw(), draw(), draw()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    forward, both = [], []
    for _ in range(arguments.steps + 2):
        start = time.perf_counter()
        output = scaled_dot_product_attention(q, k, v, is_causal=True)
        middle = time.perf_counter()
        output.backward(gradient)
        end = time.perf_counter()
        forward.append(middle - start)
        both.append(end - start)
        q.grad = k.grad = v.grad = None
    product = 2 * heads * width * positions * (positions + 1) // 2
    rows = [("forward", forward, 2), ("forward-backward", both, 7)]
    return [{
        "mode": "torch-sdpa", "work": work, "heads": heads, "positions": positions, "width": width,
        "dtype": arguments.dtype, "threads": arguments.threads, "allocator": arguments.allocator,
        "median_s": statistics.median(seconds[2:]), "gflops": count * product / statistics.median(seconds[2:]) / 1e9,
    } for work, seconds, count in rows]


def main():
    arguments = parse_arguments()
    use_allocator(arguments.allocator)
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [row for shape in arguments.shapes for row in measure(shape, arguments)]
    print(f"{'heads x positions x width':<26} {'work':<17} {'dtype':<5} {'ms':>9} {'GFLOP/s':>9}")
    for row in rows:
        shape = f"{row['heads']} x {row['positions']} x {row['width']}"
        figures = f"{1e3 * row['median_s']:>9.2f} {row['gflops']:>9.1f}"
        print(f"{shape:<26} {row['work']:<17} {row['dtype']:<5} {figures}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine(), "results": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
