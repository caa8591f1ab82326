"""Loads what Kernfusion has saved in transformers, and compares its logits with those of the model that it was made from.

    python hf_round_trip.py [--kernfusion target/debug/kernfusion] [--fixtures FOLDER]

Each fixture of `hf_fixtures.py` is imported and exported again: in f32, whose logits must be equal bit for bit; in bf16 and f16,
compared in f32 with those of the original whose parameters PyTorch has rounded, again bit for bit. What is written as another
architecture has logits within 1e-4. Its tokenizer must give the same ids. With `--full FOLDER` a
larger model, as `hf_fixtures.py --full` writes it, goes the same way in shards of 100 MiB.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from hf_fixtures import DEFAULT_OUT

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def loaded(folder, rounded=torch.float32):
    """The model in f32, with parameters rounded to a number type."""
    config = (folder / "config.json").read_text()
    kind = AutoModelForSeq2SeqLM if '"t5"' in config else AutoModelForMaskedLM if '"bert"' in config else AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {name: list(found) for name, found in info.items() if found}
    assert not wrong, f"{folder}: {wrong}"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(rounded).float())
    return model.eval()


def model_type(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


def logits(model, given):
    inputs = {"input_ids": given["ids"].long()}
    if "target" in given:
        inputs["labels"] = given["target"].long()
    with torch.no_grad():
        return model(**inputs).logits


def check(program, fixture, work, dtype, shard=None):
    checkpoint, out = work / "checkpoint", work / dtype
    subprocess.run([program, "import", fixture, "-o", checkpoint], check=True, stdout=subprocess.DEVNULL)
    sharded = ["--shard-size", str(shard)] if shard else []
    subprocess.run([program, "export", checkpoint, "-o", out, "--dtype", dtype, *sharded], check=True, stdout=subprocess.DEVNULL)
    given = load_file(fixture / "expected.safetensors")
    before, after = logits(loaded(fixture, TYPES[dtype]), given), logits(loaded(out), given)
    stored = {str(tensor.dtype) for file in out.glob("*.safetensors") for tensor in load_file(file).values()}
    assert stored == {str(TYPES[dtype])}, stored
    # Written as another architecture (Phi-3), its products are divided otherwise.
    is_same = model_type(fixture) == model_type(out)
    farthest = (before - after).abs().max().item()
    assert farthest == 0 if is_same else farthest < 1e-4, f"{fixture.name} {dtype}: {farthest}"
    if (fixture / "tokenizer.json").exists():
        ids = [PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))("A text, read twice.").input_ids for folder in (fixture, out)]
        assert ids[0] == ids[1], f"{fixture.name}: {ids}"
    files = len(list(out.glob("*.safetensors")))
    print(f"{fixture.name:10} {dtype:5} {files} file(s): logits {tuple(after.shape)} {'equal' if farthest == 0 else f'within {farthest:.1e}'}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kernfusion", type=Path, default=ROOT / "target/debug/kernfusion")
    arguments.add_argument("--fixtures", type=Path, default=DEFAULT_OUT)
    arguments.add_argument("--full", type=Path)
    arguments = arguments.parse_args()
    torch.use_deterministic_algorithms(True)
    fixtures = sorted(arguments.fixtures.iterdir()) if arguments.full is None else [arguments.full]
    for fixture in fixtures:
        for dtype in TYPES:
            with tempfile.TemporaryDirectory() as work:
                check(arguments.kernfusion, fixture, Path(work), dtype, shard=100 if arguments.full else None)


if __name__ == "__main__":
    main()
