"""Prints one table of medians from the JSON files of compare.sh (ours and PyTorch's have the same keys).

    python table.py DIR [--heading TEXT] [--markdown FILE]

DIR holds `<dtype>-<allocator>/<round>-<peer>.json`. A line's numbers are medians over the rounds; its range is
the rounds' least and greatest s/step; tokens/s is a step's tokens over the median s/step; the ratio is
tokens/s over ours (compiled) with the same dtype and allocator, so below 1 where ours is faster.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

BASELINE = "compiled"
NAMES = {"compiled": "kernfusion-compiled", "eager": "kernfusion-eager"}


def read(folder: Path):
    """Rows by (dtype, allocator, mode), and the problems met."""
    rows, problems = defaultdict(list), []
    for path in sorted(folder.glob("*/*.json")):
        try:
            results = json.loads(path.read_text())["results"]
            for row in results:
                # A row without a time is of no use, and is better found here than in a median.
                float(row["median_step_s"]), float(row["tokens_per_s"])
                dtype, allocator = path.parent.name.split("-", 1)
                rows[dtype, allocator, row["mode"]].append(row)
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


def peak(rows):
    """Memory of the device if it is a GPU, else of the process."""
    return median(rows, "peak_device_mib") or median(rows, "peak_rss_mib")


def shown(value, pattern):
    return "-" if value is None else pattern.format(value)


def line(dtype, allocator, mode, rows, baseline):
    times = [row["median_step_s"] for row in rows]
    return [
        NAMES.get(mode, mode), dtype, allocator, str(len(rows)), f"{speed(rows):,.0f}",
        shown(median(rows, "median_step_s"), "{:.4g}"), f"{min(times):.4g}-{max(times):.4g}",
        shown(peak(rows), "{:,.0f}"), shown(speed(rows) / baseline if baseline else None, "{:.2f}"),
    ]


# How many columns are words, which stand left.
WORDS = 3


def padded(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    cells = lambda row: [c.ljust(w) if i < WORDS else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
    return [cells(row) for row in lines], widths


def as_text(lines):
    rows, widths = padded(lines)
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(row).rstrip() for row in rows) + "\n"


def as_markdown(lines):
    rows, widths = padded(lines)
    rows.insert(1, ["-" * w if i < WORDS else "-" * (w - 1) + ":" for i, w in enumerate(widths)])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def disagreements(rows):
    """What makes the lines no comparison of the same work."""
    for key in ("preset", "work", "device", "threads"):
        values = {str(row.get(key)) for group in rows.values() for row in group}
        if len(values) > 1:
            yield f"warning: rows differ in {key}: {', '.join(sorted(values))}"
    tokens = [tokens_per_step(row) for group in rows.values() for row in group]
    # The product of two rounded figures is only nearly whole.
    if tokens and max(tokens) > 1.005 * min(tokens):
        yield f"warning: rows differ in tokens per step: {min(tokens):.0f} to {max(tokens):.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--heading", default="", help="text above the table")
    parser.add_argument("--markdown", type=Path, help="file to write the same to, as Markdown")
    arguments = parser.parse_args()
    rows, problems = read(arguments.folder)
    if not rows:
        sys.exit("\n".join([*problems, "no results"]))
    lines = [[
        "mode", "dtype", "allocator", "rounds", "tokens/s", "s/step", "range", "peak MiB", "x ours",
    ]]
    # f32 before bf16, then by allocator; the fastest first.
    for key, group in sorted(rows.items(), key=lambda item: (item[0][0] != "f32", item[0][1], -speed(item[1]))):
        dtype, allocator, mode = key
        ours = rows.get((dtype, allocator, BASELINE))
        lines.append(line(dtype, allocator, mode, group, speed(ours) if ours else None))
    notes = [*disagreements(rows), *problems]
    print("\n".join(part for part in (arguments.heading, as_text(lines), *notes) if part))
    if arguments.markdown:
        heading = arguments.heading.replace("\n", "\\\n")
        parts = [heading, as_markdown(lines), *(f"- {note}" for note in notes)]
        arguments.markdown.write_text("\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
