#!/usr/bin/env bash
# What to run on a machine with an NVIDIA GPU, its driver and NVRTC (see the README): whether results are right there,
# whether a training there loses what it loses on the CPU, and how fast it is beside PyTorch.
#
#   benches/gpu.sh [folder]            results go there [default: target/gpu-runs/<time>]
#
# Takes the built binary, and Python with PyTorch for the comparison.
# Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch), QUICK=1 (fewer steps, no sanitizer).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
ours=${KERNFUSION:-${CARGO_TARGET_DIR:-$root/target}/release/kernfusion}
python=${PYTHON:-python3}
out=${1:-$root/target/gpu-runs/$(date +%Y%m%d-%H%M%S)}
quick=${QUICK:-}
mkdir -p "$out"
out=$(cd "$out" && pwd)

step() { printf '\n== %s (%ds)\n' "$1" "$SECONDS"; }

[ -x "$ours" ] || { echo "there is no $ours: cargo build --release, or set KERNFUSION"; exit 1; }
command -v nvidia-smi >/dev/null || { echo "there is no NVIDIA driver on this machine"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

step "every op, random programs and training steps against the reference evaluator"
"$ours" selftest --device cuda
"$ours" selftest --device cuda --dtype bf16

if [ -z "$quick" ] && command -v compute-sanitizer >/dev/null; then
  step "races and accesses outside of buffers"
  compute-sanitizer --tool racecheck --error-exitcode 1 "$ours" selftest --device cuda --filter "training step"
  compute-sanitizer --tool memcheck --error-exitcode 1 "$ours" selftest --device cuda --filter "training step"
fi

step "losses on the GPU and on the CPU"
steps=100
[ -z "$quick" ] || steps=10
for device in cuda cpu; do
  rm -rf "$out/run-$device" "$out/losses-$device.jsonl"
  "$ours" train --preset thesis --steps $steps --device $device --checkpoint-every 0 --out "$out/run-$device" \
    --log "$out/losses-$device.jsonl" >"$out/train-$device.log" 2>&1
done
"$python" - "$out" <<'PYTHON'
import json, sys
rows = lambda device: [json.loads(line) for line in open(f"{sys.argv[1]}/losses-{device}.jsonl")]
losses = lambda device: {row["step"]: row["loss"] for row in rows(device) if row.get("loss") is not None}
gpu, cpu = losses("cuda"), losses("cpu")
worst = max(abs(gpu[step] - cpu[step]) for step in cpu)
print(f"{len(cpu)} losses of thesis differ by {worst:.2e} at most")
sys.exit(0 if gpu.keys() == cpu.keys() and worst <= 1e-3 else 1)
PYTHON

"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
  { echo "no PyTorch with CUDA in $python: no comparison"; exit 0; }

step "ceilings of the card, by PyTorch"
"$python" - <<'PYTHON'
import torch

def seconds(work, times=20):
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / times

a = torch.randn(1 << 28, device="cuda")
b = torch.empty_like(a)
print(f"copies {2 * a.nbytes / seconds(lambda: b.copy_(a)) / 1e9:,.0f} GB/s, read and written")
n = 8192
for name, dtype, tf32 in [("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)]:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    x, y = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
    print(f"products in {name} {2 * n**3 / seconds(lambda: x @ y) / 1e12:,.1f} TFLOP/s")
PYTHON

# Preset, batch, number type: the folder's name is what the table calls them.
compare() {
  local preset=$1 batch=$2 dtype=$3 folder=$out/$4/$3-default count=20
  [ -z "$quick" ] || count=5
  step "$preset, batch $batch, $dtype"
  mkdir -p "$folder"
  rm -f "$folder"/*.json
  local flags=(--preset "$preset" --batch-size "$batch" --dtype "$dtype" --device cuda --steps "$count")
  "$ours" bench "${flags[@]}" --mode compiled --warmup 3 --json "$folder/1-kernfusion.json" ||
    echo "kernfusion failed"
  for peer in "" --compile; do
    "$python" "$here/peers/bench_torch.py" "${flags[@]}" --warmup 3 $peer --json "$folder/1-torch$peer.json" ||
      echo "PyTorch $peer failed"
  done
  "$python" "$here/peers/table.py" "$out/$4" --heading "$preset, batch $batch"
}
compare thesis 64 f32 thesis-f32
compare thesis 64 bf16 thesis-bf16
compare gpt2-small 16 bf16 gpt2-small-bf16
