"""Writes what fastai's text rules make of some texts: tests/fixtures/word_rules.json.

    python word_rules.py [--out FILE]

The patterns are those that `fastai.text.core` states, in its order, without `fix_html` and without the mark at the begin.
"""

import argparse
import json
import re
from pathlib import Path

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/word_rules.json"

TEXTS = [
    "", " ", "a", "A", "I am", "Hello, World", "HELLO", "USA and U.S.A.", "McDonald", "iPhone X", "A B C",
    "aaa", "aa", "AAAA b", "!!!! what??? no...", "1000 10000", "no no no", "no no", "No no no", "the the the thea",
    "a a a b b b", "x  x\tx\nx y", "no no no, yes yes yes!", "well well well", "ha ha ha ha", "_a _a _a",
    "and/or #1 \\n", "a   b     c", "Line one\nLine Two\n\nLINE THREE", "\"Quoted\" 'Word'", "É ÉCOLE École",
    "Straße STRASSE", "e.g. This IS a TEST-CASE, OK?", "  padded  ", "tab\tTab TAB", "--- === ###", "Ω ΩΩΩ Σίσυφος ΣΑΣ",
    "a\n\n\nb", "x xx xxx xxxx", "C3PO R2D2 r2D2", "Don't DON'T don't", "no no no no\nno",
]


def rules(text):
    text = re.sub(r"(\S)(\1{2,})", lambda m: f" xxrep {len(m[2]) + 1} {m[1]} ", text)
    repeated = r"(?:\s|^)(\w+)\s+((?:\1\s+)+)\1(\s|\W|$)"
    text = re.sub(repeated, lambda m: f" xxwrep {len(m[2].split()) + 2} {m[1]} {m[3]}", text)
    text = re.sub(r"([/#\\])", r" \1 ", text)
    text = re.sub(" {2,}", " ", text)
    for pattern, mark in [(r"(\s|^)([A-Z]+[^a-z\s]*)(?=(\s|$))", "xxup "), (r"(\s|^)([A-Z][^A-Z\s]*)(?=(\s|$))", "xxmaj ")]:
        text = re.sub(pattern, lambda m: f"{m[1]}{mark if len(m[2]) > 1 else ''}{m[2].lower()}", text)
    return text.lower().strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    rows = [json.dumps([text, rules(text)], ensure_ascii=False) for text in TEXTS]
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
