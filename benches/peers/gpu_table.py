"""Prints one table from the JSON files of benches/gpu.sh.

    python gpu_table.py DIR

DIR holds `<preset>-<batch>-<dtype>/{kernfusion,kernfusion--tune,kernfusion--tune=library,torch,torch--compile,profile}.json`;
whatever is missing is left out. What bench says of cublasLt stands in the last column. Below the table stand the card's ceilings as `kernfusion profile` has measured them; the column "floor" is the
sum of the floors that follow from them over our step, so 100 % cannot be passed.
"""

import json
import sys
from pathlib import Path

PEERS = ["kernfusion", "kernfusion--tune", "kernfusion--tune=library", "torch", "torch--compile"]


def read(path: Path):
    """What a file holds; nothing if it is missing."""
    return json.loads(path.read_text()) if path.exists() else None


def number(value, pattern="{:,.1f}"):
    return "-" if value is None else pattern.format(value)


def lines(folder: Path):
    rows = {peer: document["results"][0] for peer in PEERS if (document := read(folder / f"{peer}.json"))}
    profile = read(folder / "profile.json")
    floor = sum(kernel["floor_s"] for kernel in profile["kernels"]) if profile else None
    ours = rows.get("kernfusion")
    for peer, row in rows.items():
        seconds = row["median_step_s"]
        is_ours = peer.startswith("kernfusion")
        yield [
            folder.name,
            peer.replace("--", " --"),
            number(1e3 * seconds, "{:,.2f}"),
            number(row["tokens_per_s"], "{:,.0f}"),
            number(ours and ours["median_step_s"] / seconds, "{:.2f}"),
            number(row.get("peak_device_mib"), "{:,.0f}"),
            number(100 * floor / seconds if is_ours and floor else None, "{:.0f} %"),
            number(row["loss_last"], "{:.4f}"),
            row.get("library", ""),
        ]


def ceilings(folders):
    """The best of what was measured in all runs."""
    profiles = [profile for folder in folders if (profile := read(folder / "profile.json"))]
    if not profiles:
        return "no ceilings were measured"
    rates = {"copied, GB/s": max(profile["bandwidth_bytes_per_s"] for profile in profiles) / 1e9}
    for profile in profiles:
        wide = "tf32" if profile["dtype"] == "tf32" else "f32"
        for name, key in [(wide, "f32_products_per_s"), ("bf16", "bf16_products_per_s")]:
            name = f"products in {name}, TFLOP/s"
            rates[name] = max(rates.get(name, 0.0), profile[key] / 1e12)
    listed = "; ".join(f"{name}: {rate:,.3g}" for name, rate in rates.items())
    return f"ceilings of {profiles[0]['machine']['gpu']}, measured: {listed}"


def main():
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/kernfusion.json"))
    if not folders:
        sys.exit(f"there are no results in {sys.argv[1]}")
    head = ["preset-batch-dtype", "program", "ms/step", "tokens/s", "speed", "peak MiB", "floor", "last loss", ""]
    table = [head] + [line for folder in folders for line in lines(folder)]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    for line in table:
        texts = [cell.ljust(width) if at < 2 or at == len(head) - 1 else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths))]
        print("  ".join(texts).rstrip())
    print(ceilings(folders))


if __name__ == "__main__":
    main()
