"""Trains the model of `kernfusion experiment verification` with PyTorch and writes its losses.

    python verification.py [--run DIR] [--threads N] [--device cpu|cuda] > reference.jsonl

DIR, by default this file's own folder, holds what Kernfusion has written: `run.json`, the settings, and
`start.safetensors`, the initial parameters (`param.<name>`), the tokens and where each step's windows start in
them. Rows go to standard output: first the run that they belong to, then `{"step", "loss", "seconds"}` for each
step, then the most memory that was taken.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

# `python -c` and installed programs leave out the folder of a script; the model lies beside this file.
sys.path.insert(0, str(Path(__file__).resolve().parent))
from model import Gpt, GptConfig  # noqa: E402

DTYPES = {"F32": torch.float32, "I32": torch.int32}


def read_tensors(path):
    """The tensors of a safetensors file: u64 header length, JSON header, data. PyTorch alone suffices."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        place = {"offset": start + begin, "count": (end - begin) // 4}
        tensors[name] = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], **place).view(entry["shape"])
    return tensors


def build(run, tensors, device):
    """The model with the initial parameters, and its optimizer."""
    model = Gpt(GptConfig(**run["model"]))
    prefix = "param."
    model.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
    model.to(device).train()
    rule = run["optimizer"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rule["learning_rate"], betas=tuple(rule["betas"]), eps=rule["epsilon"],
        weight_decay=rule["weight_decay"],
    )
    return model, optimizer


def batches(run, tensors, device):
    """x and y of each step, [batch, context], made before the clock of a step starts."""
    context = run["model"]["context"]
    tokens = tensors["tokens"].long()
    offsets = torch.arange(context + 1)
    for starts in tensors["starts"].long():
        windows = tokens[starts[:, None] + offsets].to(device)
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def peak_memory(device):
    """MiB: on a GPU what tensors have taken at most, else what the process has had resident (VmHWM)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) / 1024


def machine(device):
    """What it runs on, in words."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    name = "unknown processor"
    try:
        with open("/proc/cpuinfo") as info:
            name = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{torch.get_num_threads()} threads, {name}"


def write(row):
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path(__file__).resolve().parent, metavar="DIR")
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    run = json.loads((arguments.run / "run.json").read_text())
    tensors = read_tensors(arguments.run / "start.safetensors")
    device = arguments.device
    write({"run": run, "library": f"PyTorch {torch.__version__}", "place": machine(device)})
    model, optimizer = build(run, tensors, device)
    for number, (x, y) in enumerate(batches(run, tensors, device)):
        start = time.perf_counter()
        loss = model.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # item() waits for all that was queued before it, and on a GPU the update comes after the loss.
        value = loss.item()
        if device == "cuda":
            torch.cuda.synchronize()
        write({"step": number + 1, "loss": value, "seconds": time.perf_counter() - start})
    write({"peak_mib": peak_memory(device)})


if __name__ == "__main__":
    main()
