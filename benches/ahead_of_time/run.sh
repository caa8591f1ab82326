#!/usr/bin/env bash
# The start of models compiled ahead of time: `run.sh [PRESET…]`, with the release build of this repository, to which it adds the
# runtime for C.
set -euo pipefail
cd "$(dirname "$0")/../.."
target="${CARGO_TARGET_DIR:-target}"
kernfusion="${KERNFUSION:-$target/release/kernfusion}"
cargo build --release --quiet -p kernfusion-runtime
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for preset in "${@:-tiny gpt2-small}"; do
  for preset in $preset; do
    name=${preset//-/_}
    "$kernfusion" compile --preset "$preset" --runtime "$target/release/libkernfusion_runtime.a" -o "$work/$name" >/dev/null
    cc -O2 -DMODEL="$name" -DMODEL_H="\"$name.h\"" -I"$work/$name" benches/ahead_of_time/start.c "$work/$name/$name.o" \
      "$work/$name/libkernfusion_runtime.a" -lm -lpthread -ldl -o "$work/$name/start"
    for round in 1 2 3 4 5; do
      echo "$preset: $("$work/$name/start" "$work/$name/$name.safetensors" "${THREADS:-2}" 40 "$(date +%s%N)")"
    done
  done
done
