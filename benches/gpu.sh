#!/usr/bin/env bash
# What to run on a machine with an NVIDIA GPU, its driver and NVRTC (see the README): whether results are right there,
# then what the tools of NVIDIA say about the kernels of a program.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v nvidia-smi >/dev/null || { echo "there is no NVIDIA driver on this machine"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

cargo build --release --quiet
kernfusion="${CARGO_TARGET_DIR:-target}/release/kernfusion"

# Every op, random programs and training steps, against the reference evaluator.
"$kernfusion" selftest --device cuda
"$kernfusion" selftest --device cuda --dtype bf16

# Races and accesses outside of buffers, as the sanitizer sees them.
if command -v compute-sanitizer >/dev/null; then
  compute-sanitizer --tool racecheck --error-exitcode 1 "$kernfusion" selftest --device cuda --filter "training step"
  compute-sanitizer --tool memcheck --error-exitcode 1 "$kernfusion" selftest --device cuda --filter "training step"
fi

# Time of each kernel of a training step, where Nsight Systems is installed.
if command -v nsys >/dev/null; then
  nsys profile --stats=true --force-overwrite=true -o "${TMPDIR:-/tmp}/kernfusion" \
    "$kernfusion" selftest --device cuda --filter "training step"
fi
