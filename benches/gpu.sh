#!/usr/bin/env bash
# What to run on a machine with an NVIDIA GPU, its driver and NVRTC (see the README): whether results are right there,
# whether a training there loses what it loses on the CPU, and how fast it is beside PyTorch and beside what the card can do.
#
#   benches/gpu.sh [folder]            results go there [default: target/gpu-runs/<time>]
#
# Takes the built binary, and Python; with PyTorch for the comparison, which is left out where PyTorch has no CUDA. The row
# `--tune=library` is our own programs with cublasLt for plain products, if libcublasLt is where libraries are looked for.
# Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch), QUICK=1 (fewer steps, no sanitizer),
# PRESETS ("preset:batch …", the first of which is trained and profiled), DTYPES, SELFTEST (its flags).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
ours=${KERNFUSION:-${CARGO_TARGET_DIR:-$root/target}/release/kernfusion}
python=${PYTHON:-python3}
out=${1:-$root/target/gpu-runs/$(date +%Y%m%d-%H%M%S)}
presets=${PRESETS:-thesis:64 gpt2-small:16}
dtypes=${DTYPES:-f32 tf32 bf16}
train_steps=100 steps=20 warmup=3
[ -z "${QUICK:-}" ] || { train_steps=5 steps=3 warmup=1; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

step() { printf '\n== %s (%ds)\n' "$1" "$SECONDS"; }

# What our flags, and those of bench_torch.py, call a number type.
dtype_flags() { if [ "$1" = tf32 ]; then echo "--dtype f32 --tf32"; else echo "--dtype $1"; fi; }

[ -x "$ours" ] || { echo "there is no $ours: cargo build --release, or set KERNFUSION"; exit 1; }
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
else
  echo "nvidia-smi is not here; going on with the driver that kernfusion finds"
fi

step "every op, random programs and training steps against the reference evaluator"
for dtype in $dtypes; do
  # shellcheck disable=SC2046,SC2086 # lists of flags
  "$ours" selftest --device cuda $(dtype_flags "$dtype") ${SELFTEST:-}
done

if [ -z "${QUICK:-}" ] && command -v compute-sanitizer >/dev/null; then
  step "races and accesses outside of buffers"
  for tool in racecheck memcheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 "$ours" selftest --device cuda --filter "training step"
  done
fi

first=${presets%% *}
preset=${first%%:*} batch=${first##*:}
step "losses of $preset, batch $batch, on the GPU and on the CPU"
for device in cuda cpu; do
  rm -rf "$out/run-$device" "$out/losses-$device.jsonl"
  "$ours" train --preset "$preset" --batch-size "$batch" --steps $train_steps --device $device --checkpoint-every 0 \
    --validation-batches 1 --sample-tokens 0 --out "$out/run-$device" --log "$out/losses-$device.jsonl" \
    >"$out/train-$device.log" 2>&1 || { cat "$out/train-$device.log"; exit 1; }
done
"$python" - "$out" <<'PYTHON'
import json, sys
rows = lambda device: [json.loads(line) for line in open(f"{sys.argv[1]}/losses-{device}.jsonl")]
losses = lambda device: {row["step"]: row["loss"] for row in rows(device) if row.get("loss") is not None}
gpu, cpu = losses("cuda"), losses("cpu")
worst = max(abs(gpu[step] - cpu[step]) for step in cpu)
print(f"{len(cpu)} losses differ by {worst:.2e} at most")
sys.exit(0 if gpu.keys() == cpu.keys() and worst <= 1e-3 else 1)
PYTHON

step "a text of the model that was trained there"
"$ours" generate --checkpoint "$out/run-cuda" --device cuda --tokens 60 --temperature 0

has_torch=
if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  has_torch=1
else
  printf '\nno PyTorch with CUDA in %s: no comparison\n' "$python"
fi

for pair in $presets; do
  preset=${pair%%:*} batch=${pair##*:}
  for dtype in $dtypes; do
    step "$preset, batch $batch, $dtype"
    folder=$out/$preset-$batch-$dtype
    mkdir -p "$folder"
    rm -f "$folder"/*.json
    # shellcheck disable=SC2207 # words without blanks
    flags=(--preset "$preset" --batch-size "$batch" --device cuda --steps "$steps" --warmup "$warmup" $(dtype_flags "$dtype"))
    for choice in "" --tune --tune=library; do
      # shellcheck disable=SC2086 # a flag or nothing
      "$ours" bench "${flags[@]}" $choice --mode compiled --json "$folder/kernfusion$choice.json"
    done
    "$ours" profile "${flags[@]}" --lines 12 --json "$folder/profile.json"
    [ -n "$has_torch" ] || continue
    for peer in "" --compile; do
      # shellcheck disable=SC2086 # a flag or nothing
      "$python" "$here/peers/bench_torch.py" "${flags[@]}" $peer --json "$folder/torch$peer.json" || echo "PyTorch $peer failed"
    done
  done
done

step "all of it"
"$python" "$here/peers/gpu_table.py" "$out"
