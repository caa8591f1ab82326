"""Times PyTorch on a preset and writes a row with the keys of `kernfusion bench --json`.

    python bench_torch.py --preset thesis --work train --attention sdpa --steps 5 --json torch.json

Tokens are synthetic and made before the clock starts. A training step is forward, backward and a real
AdamW update; a forward step is the loss of an evaluating model without gradients.

With --ddp, several processes train one model, each on its rows of the batch (DistributedDataParallel over gloo):

    torchrun --nproc-per-node 2 bench_torch.py --preset thesis --ddp --threads 1 --json ddp.json
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

# The model is a part of the program, which writes it out for its verification.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cli/src/experiment/pytorch"))

# glibc keeps and reuses its memory and asks for huge pages: without it much of a CPU step is page faults.
TUNED_ALLOCATOR = (
    "glibc.malloc.mmap_threshold=68719476736:"
    "glibc.malloc.trim_threshold=68719476736:"
    "glibc.malloc.hugetlb=1"
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=["tiny", "thesis", "gpt2-small"])
    parser.add_argument("--work", default="train", choices=["train", "forward"])
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "written"])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--fused", action="store_true", help="AdamW as one fused kernel")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"], help="bf16 is autocast")
    parser.add_argument("--tf32", action="store_true", help="on a GPU: products of f32 as TF32")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch-size", type=int, help="default: the preset's")
    parser.add_argument("--context", type=int, help="positions of a window; default: the preset's")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them, not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allocator", default="default", choices=["default", "tuned"])
    parser.add_argument("--ddp", action="store_true", help="one of several processes that torchrun has started")
    parser.add_argument("--json", help="file to write; without it the row goes to standard output")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.warmup < 0 or arguments.threads < 1:
        parser.error("--steps and --threads must be at least 1, --warmup at least 0")
    return arguments


def use_allocator(name):
    """glibc reads its tunables at program start only, so the program starts itself again."""
    wanted = TUNED_ALLOCATOR if name == "tuned" else None
    if os.environ.get("GLIBC_TUNABLES") == wanted:
        return
    environment = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    if wanted:
        environment["GLIBC_TUNABLES"] = wanted
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def peak_rss_mib():
    """The most memory the process has had resident (VmHWM), libraries included; None off Linux."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None
    return round(int(line.split()[1]) / 1024, 1)


def machine():
    model = platform.processor() or "unknown"
    try:
        with open("/proc/cpuinfo") as info:
            model = next((l.split(":")[1].strip() for l in info if l.startswith("model name")), model)
    except OSError:
        pass
    return {"cpu": model, "cores": os.cpu_count(), "os": platform.system()}


def mode_name(arguments):
    parts = ["torch", "compile" if arguments.compile else "eager", arguments.attention]
    return "-".join(parts + (["fused"] if arguments.fused else []) + (["ddp"] if arguments.ddp else []))


def rank_and_world():
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def build_step(arguments, config):
    """Returns step(x, y) -> loss, detached."""
    import torch

    from model import Gpt, adamw

    model = Gpt(config, arguments.attention).to(arguments.device)
    # Compiling through the loss lets it fuse the cross-entropy with the head, too.
    loss_of = torch.compile(model.loss) if arguments.compile else model.loss
    if arguments.ddp:
        loss_of = distributed(model)
    bf16 = arguments.dtype == "bf16"
    autocast = lambda: torch.autocast(arguments.device, torch.bfloat16) if bf16 else nullcontext()
    optimizer = adamw(model, fused=arguments.fused)

    def train(x, y):
        with autocast():
            loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def forward(x, y):
        with torch.no_grad(), autocast():
            return loss_of(x, y)

    model.train(arguments.work == "train")
    return train if arguments.work == "train" else forward


def distributed(model):
    """The loss as a module whose gradients all processes average."""
    import torch

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, y):
            return self.model.loss(x, y)

    return torch.nn.parallel.DistributedDataParallel(Loss())


def measure(arguments):
    import dataclasses

    import torch

    from model import PRESETS

    preset = PRESETS[arguments.preset]
    context = arguments.context or preset.config.context
    config = dataclasses.replace(preset.config, dropout=arguments.dropout, context=context)
    batch = arguments.batch_size or preset.batch
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32
    rank, world = rank_and_world()
    if arguments.ddp:
        torch.distributed.init_process_group("gloo")
    step = build_step(arguments, config)
    count = arguments.warmup + arguments.steps
    windows = torch.randint(config.vocabulary, (count, batch, config.context + 1)).to(arguments.device)
    seconds, losses = [], []
    for window in windows.chunk(world, 1)[rank] if arguments.ddp else windows:
        start = time.perf_counter()
        # The step ends with the update, and item() waits for all that was queued before it.
        losses.append(step(window[:, :-1], window[:, 1:]).item())
        seconds.append(time.perf_counter() - start)
    timed = seconds[arguments.warmup :]
    median = statistics.median(timed)
    row = {
        "mode": mode_name(arguments), "preset": arguments.preset, "work": arguments.work,
        "dtype": "tf32" if arguments.tf32 else arguments.dtype, "device": arguments.device, "threads": arguments.threads,
        "steps": arguments.steps, "warmup": arguments.warmup, "batch_size": batch,
        "allocator": arguments.allocator, "median_step_s": median,
        "fastest_step_s": min(timed), "slowest_step_s": max(timed),
        "tokens_per_s": batch * config.context / median,
        # Only an upper figure: the first step less an ordinary one.
        "compile_s": max(0.0, seconds[0] - median) if arguments.compile and arguments.warmup else None,
        "first_step_s": seconds[0], "peak_rss_mib": peak_rss_mib(),
        "loss_first": losses[0], "loss_last": losses[-1], "torch": torch.__version__,
    }
    if arguments.device == "cuda":
        row["peak_device_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    if arguments.ddp:
        peaks = [None] * world
        torch.distributed.all_gather_object(peaks, row["peak_rss_mib"])
        row |= {"ranks": world, "peak_rss_mib": round(sum(peaks), 1)}
        torch.distributed.destroy_process_group()
    return row


def main():
    arguments = parse_arguments()
    use_allocator(arguments.allocator)
    document = json.dumps({"machine": machine(), "results": [measure(arguments)]}, indent=1)
    if arguments.ddp and rank_and_world()[0] > 0:
        return
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(document + "\n")
    else:
        print(document)


if __name__ == "__main__":
    main()
