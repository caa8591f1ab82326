"""Prints one table of medians from the JSON files of compare.sh (ours and PyTorch's have the same keys).

    python table.py DIR

DIR holds `<allocator>/<round>-<peer>.json`. A line's numbers are medians over the rounds; its range is
the rounds' least and greatest s/step; tokens/s is a step's tokens over the median s/step; the ratio is
tokens/s over the baseline's under the same allocator.
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

BASELINE = "torch-eager-sdpa"


def read(folder: Path):
    """Rows by (allocator, mode), and the problems met."""
    rows, problems = defaultdict(list), []
    for path in sorted(folder.glob("*/*.json")):
        try:
            results = json.loads(path.read_text())["results"]
            for row in results:
                # A row without a time is of no use, and is better found here than in a median.
                float(row["median_step_s"]), float(row["tokens_per_s"])
                rows[path.parent.name, row["mode"]].append(row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"skipped {path.parent.name}/{path.name}: {type(error).__name__}: {error}")
    return rows, problems


def median(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def tokens_per_step(row):
    return row["tokens_per_s"] * row["median_step_s"]


def speed(rows):
    """Tokens/s at the median time, so that both columns tell of the same step."""
    return median([{"tokens": tokens_per_step(row)} for row in rows], "tokens") / median(rows, "median_step_s")


def shown(value, pattern):
    return "-" if value is None else pattern.format(value)


def line(allocator, mode, rows, baseline):
    times = [row["median_step_s"] for row in rows]
    return [
        mode, allocator, str(len(rows)), f"{speed(rows):,.0f}", shown(median(rows, "median_step_s"), "{:.4g}"),
        f"{min(times):.4g}-{max(times):.4g}", shown(median(rows, "peak_rss_mib"), "{:,.0f}"),
        shown(speed(rows) / baseline if baseline else None, "{:.2f}"),
    ]


def print_aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    for index, cells in enumerate(lines):
        first, rest = cells[:2], cells[2:]
        padded = [c.ljust(w) for c, w in zip(first, widths)] + [c.rjust(w) for c, w in zip(rest, widths[2:])]
        print("| " + " | ".join(padded) + " |")
        if index == 0:
            rules = ["-" * w for w in widths[:2]] + ["-" * (w - 1) + ":" for w in widths[2:]]
            print("| " + " | ".join(rules) + " |")


def disagreements(rows):
    """What makes the lines no comparison of the same work."""
    for key in ("preset", "work", "dtype", "device", "threads"):
        values = {str(row.get(key)) for group in rows.values() for row in group}
        if len(values) > 1:
            yield f"warning: rows differ in {key}: {', '.join(sorted(values))}"
    tokens = [tokens_per_step(row) for group in rows.values() for row in group]
    # The product of two rounded figures is only nearly whole.
    if tokens and max(tokens) > 1.005 * min(tokens):
        yield f"warning: rows differ in tokens per step: {min(tokens):.0f} to {max(tokens):.0f}"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python table.py DIR")
    rows, problems = read(Path(sys.argv[1]))
    if rows:
        lines = [["mode", "allocator", "rounds", "tokens/s", "s/step", "range", "peak RSS MiB", f"x {BASELINE}"]]
        for (allocator, mode), group in sorted(rows.items()):
            base = rows.get((allocator, BASELINE))
            baseline = speed(base) if base else None
            lines.append(line(allocator, mode, group, baseline))
        print_aligned(lines)
    for message in [*disagreements(rows), *problems]:
        print(message)
    if not rows:
        sys.exit("no results")


if __name__ == "__main__":
    main()
