"""Prints the medians of imported.sh as a Markdown table.

    python imported_table.py DIR

DIR holds `<model>-<work>/<round>-<peer>.json`. Times are medians over the rounds of each round's median; a ratio is a peer's time over ours, so
above 1 where ours is faster.
"""

import json
import statistics
import sys
from pathlib import Path

PEERS = {"ours": "ours", "eager": "eager", "compile": "torch.compile", "onnxruntime": "onnxruntime", "tract": "tract"}


def medians(folder):
    """Median time of each peer in ms, and our kernels."""
    times, kernels = {}, None
    for peer in PEERS:
        rows = [json.loads(path.read_text())["results"][0] for path in folder.glob(f"*-{peer}.json")]
        if rows:
            times[peer] = 1e3 * statistics.median(row["median_step_s"] for row in rows)
            kernels = rows[0].get("kernels", kernels)
    return times, kernels


def main():
    runs = {folder: medians(folder) for folder in sorted(Path(sys.argv[1]).iterdir())}
    peers = [peer for peer in PEERS if any(peer in times for times, _ in runs.values())]
    others = [peer for peer in peers if peer != "ours"]
    print("| model | work | kernels |", *(f"{PEERS[peer]} ms |" for peer in peers), *(f"{PEERS[peer]} / ours |" for peer in others))
    print("|---|---|--:|" + "--:|" * len(peers + others))
    for folder, (times, kernels) in runs.items():
        if "ours" not in times:
            continue
        model, work = folder.name.rsplit("-", 1)
        shown = [f"{times[peer]:.1f}" if peer in times else "-" for peer in peers]
        ratios = [f"{times[peer] / times['ours']:.2f}" if peer in times else "-" for peer in others]
        print(f"| {model} | {work} | {kernels} | {' | '.join(shown)} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
