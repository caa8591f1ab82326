#!/usr/bin/env bash
# What to run on a machine with an NVIDIA GPU, its driver and NVRTC (see the README): whether results are right there, whether a
# training there loses what it loses on the CPU, and how fast it is beside PyTorch and beside what the card can do.
#
#   benches/gpu.sh prepare [folder]    on any machine, before: what needs no card
#   benches/gpu.sh correct [folder]    on the card: a ladder from the simplest kernel up, selftest, losses, sanitizers
#   benches/gpu.sh speed   [folder]    on the card: figures beside PyTorch's, tuned and not, and the table
#   benches/gpu.sh again   [folder]    on the card: the steps of both that have not ended well
#
# The folder is target/gpu-run unless it is named. Every step is a process of its own with a limit of its own, and nothing stops
# at a failure: results.jsonl gets a line with exit code and seconds, logs/ what it printed, and results.tar.gz has all of it after
# each step, so whatever ends a call, the results until then are there. A step that fails is repeated without a graph, each
# kernel waited for, and once more under compute-sanitizer. A call takes BUDGET seconds at most; steps for which no time is left are
# marked as skipped.
#
# `prepare` writes prepared.tar.gz, which the calls unpack if it lies in the folder: losses of the CPU, and cubins of all
# kernels, compiled on all cores by NVRTC for ARCHITECTURE over a driver that does nothing (the simulated one of our tests, which takes g++).
#
# Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch), BUDGET (seconds, 530), PRESETS ("preset:batch …" or
# "file.json:batch …", the first of which is trained), DTYPES, STEPS (of measurements, 20), TRAIN_STEPS (20), RANDOM_PROGRAMS (of
# selftest, 50), CASES (one word: selftest, but not the ladder, runs only cases whose names contain it), ONLY (a regular expression: the
# steps with such names), STEP_LIMIT (seconds that no step may exceed), STRETCH (of all other limits, 1), ARCHITECTURE (90), PROCESSES
# (that prepare at a time: the cores).
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
ours=${KERNFUSION:-${CARGO_TARGET_DIR:-$root/target}/release/kernfusion}
python=${PYTHON:-python3}
budget=${BUDGET:-530}
presets=${PRESETS:-thesis:64 gpt2-small:16}
dtypes=${DTYPES:-f32 tf32 bf16}
steps=${STEPS:-20} train_steps=${TRAIN_STEPS:-20} random=${RANDOM_PROGRAMS:-50}
# All of selftest, or the cases that are asked for.
cases="--random $random ${CASES:+--filter $CASES}"
call=${1:-}
out=${2:-$root/target/gpu-run}

# From the simplest kernel up: a name, and which cases of selftest have such kernels.
ladder=(
  "constant:constant." "map:add." "warp-rows:composite.softmax" "block-rows:reduce.sum" "gather:gather." "scatter:scatter_add."
  "products:dot_general." "attention:composite.attention" "loop:scan." "random:random program 1"
  "continuation:continuation" "training-step:training step"
)

case $call in
  prepare | correct | speed | again) ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
[ -x "$ours" ] || { echo "there is no $ours: cargo build --release, or set KERNFUSION"; exit 1; }
mkdir -p "$out/logs" && out=$(cd "$out" && pwd) || exit 1
results=$out/results.jsonl
touch "$results"

# What our flags, and those of bench_torch.py, call a number type.
dtype_flags() { if [ "$1" = tf32 ]; then echo "--dtype f32 --tf32"; else echo "--dtype $1"; fi; }
# A preset by its name, or a shape in a file.
model_flags() { case $1 in *.json) echo "--config $1" ;; *) echo "--preset $1" ;; esac; }
left() { echo $((budget - SECONDS)); }

# record NAME EXIT SECONDS: a line of results, and the archive with all there is.
record() {
  printf '{"call": "%s", "step": "%s", "exit": %s, "seconds": %s}\n' "$call" "$1" "$2" "$3" >>"$results"
  printf '%-44s exit %-5s %4s s, %s s left\n' "$1" "$2" "$3" "$(left)"
  tar -czf "$out/results.part" -C "$out" --exclude 'run-*' --exclude 'prepared*' --exclude 'results.*.gz' --exclude results.part . &&
    mv "$out/results.part" "$out/results.tar.gz"
}

# once NAME LIMIT COMMAND…: runs it; its exit code, 124 or 137 where the time was up.
once() {
  local name=$1 limit=$(($2 * ${STRETCH:-1})) start=$SECONDS code
  shift 2
  [ "$limit" -le "${STEP_LIMIT:-$limit}" ] || limit=$STEP_LIMIT
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$(left)" -lt 5 ]; then
    record "$name" '"skipped"' 0
    return 75
  fi
  printf '$ %s\n' "$*" >"$out/logs/$name.log"
  timeout --kill-after=5 "$limit" "$@" >>"$out/logs/$name.log" 2>&1
  code=$?
  record "$name" $code $((SECONDS - start))
  return $code
}

# step NAME LIMIT COMMAND…: as `once`, and whatever fails is repeated so that it says more.
step() {
  local name=$1 limit=$2 code
  shift 2
  [[ $name =~ ${ONLY:-} ]] || return 0
  if [ "$call" = again ] && grep -q "\"step\": \"$name\", \"exit\": 0," "$results"; then return 0; fi
  once "$name" "$limit" "$@"
  code=$?
  [ $code -ne 0 ] && [ $code -ne 75 ] || return $code
  once "$name.waiting" "$limit" env KERNFUSION_CUDA_SYNC=1 "$@"
  [ -z "$sanitizer" ] || [ "$1" != "$ours" ] ||
    once "$name.memcheck" 60 "$sanitizer" --tool memcheck --error-exitcode 1 "$@"
  return $code
}

# in_shares COMMAND…: as many processes as there are cores, each with its share of the cases, since the reference evaluator takes most of
# the time; fails where one of them does.
in_shares() {
  local all share pid pids=() failed=0
  all=$(nproc)
  for ((share = 1; share <= all; share++)); do
    "$@" --threads 1 --share "$share/$all" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}
export -f in_shares

# Losses that differ from the CPU's, said and not judged by this script.
compare_losses() {
  "$python" - "$1" "$2" <<'PYTHON'
import json, sys
rows = lambda path: [json.loads(line) for line in open(path)]
losses = lambda path: {row["step"]: row["loss"] for row in rows(path) if row.get("loss") is not None}
found, expected = map(losses, sys.argv[1:])
worst = max(abs(found[step] - expected[step]) for step in expected if step in found)
print(f"{len(found)} losses, of {len(expected)} expected, differ by {worst:.2e} at most")
sys.exit(0 if found.keys() == expected.keys() and worst <= 1e-3 else 1)
PYTHON
}
export -f compare_losses
export python

train() { # train DEVICE NAME PRESET BATCH: its losses are in NAME.jsonl
  local device=$1 name=$2
  rm -rf "$out/run-$name" "$out/$name.jsonl"
  # shellcheck disable=SC2046 # lists of flags
  step "train-$name" 240 "$ours" train $(model_flags "$3") --batch-size "$4" --steps "$train_steps" --device "$device" \
    --checkpoint-every 0 --validation-batches 1 --sample-tokens 0 --out "$out/run-$name" --log "$out/$name.jsonl"
}

environment() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
  uname -a; nproc; "$ours" --version
  echo "NVRTC: ${KERNFUSION_NVRTC:-where the system looks for libraries}"; ls "${KERNFUSION_NVRTC:-/nowhere}"
  echo "cubins made before: $(find "${KERNFUSION_CUBINS:-/nowhere}" -name '*.cubin' 2>/dev/null | wc -l)"
  "$python" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.is_available())'
  compute-sanitizer --version; ncu --version
  true
}

# NVRTC of PyTorch's packages, if none is named.
find_nvrtc() {
  [ -z "${KERNFUSION_NVRTC:-}" ] || return 0
  local found
  found=$("$python" - <<'PYTHON'
import pathlib, sys
found = [file for path in sys.path if path for file in pathlib.Path(path).glob("nvidia/*/lib/libnvrtc.so.1*")]
print(found[0].parent if found else "")
PYTHON
  )
  [ -z "$found" ] || export KERNFUSION_NVRTC=$found
}

call_correct() {
  local entry tool dtype first preset batch
  for entry in "${ladder[@]}"; do
    step "ladder-${entry%%:*}" 60 "$ours" selftest --device cuda --random 20 --filter "${entry#*:}"
    case ${entry%%:*} in products | attention | training-step)
      for dtype in $dtypes; do
        # shellcheck disable=SC2046 # lists of flags
        [ "$dtype" = f32 ] ||
          step "ladder-${entry%%:*}-$dtype" 60 "$ours" selftest --device cuda --filter "${entry#*:}" $(dtype_flags "$dtype")
      done ;;
    esac
  done
  for dtype in $dtypes; do
    # shellcheck disable=SC2046,SC2086 # lists of flags
    step "selftest-$dtype" 150 bash -c 'in_shares "$@"' in_shares "$ours" selftest --device cuda $cases $(dtype_flags "$dtype")
  done
  first=${presets%% *} preset=${first%%:*} batch=${first##*:}
  train cuda cuda "$preset" "$batch"
  train cuda cuda-again "$preset" "$batch"
  step "equal-bits" 20 bash -c "diff <(grep -o '\"loss\": *[^,}]*' '$out/cuda.jsonl') <(grep -o '\"loss\": *[^,}]*' '$out/cuda-again.jsonl')"
  [ ! -f "$out/prepared/losses-cpu.jsonl" ] ||
    step "losses-beside-the-cpu" 20 bash -c "compare_losses '$out/cuda.jsonl' '$out/prepared/losses-cpu.jsonl'"
  step "text" 60 "$ours" generate --checkpoint "$out/run-cuda" --device cuda --tokens 60 --temperature 0
  for tool in memcheck racecheck synccheck initcheck; do
    [ -n "$sanitizer" ] || break
    for entry in "training step: gpt" "composite.attention"; do
      step "$tool-${entry//[ :]/-}" 90 "$sanitizer" --tool $tool --error-exitcode 1 "$ours" selftest --device cuda --random 0 --filter "$entry"
    done
  done
}

call_speed() {
  local pair preset batch dtype folder choice peer flags has_torch=
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && has_torch=1
  for pair in $presets; do
    preset=${pair%%:*} batch=${pair##*:}
    for dtype in $dtypes; do
      name=$(basename "${preset%.json}")-$batch-$dtype folder=$out/$name
      mkdir -p "$folder"
      # shellcheck disable=SC2207,SC2046 # words without blanks
      flags=($(model_flags "$preset") --batch-size "$batch" --device cuda --steps "$steps" --warmup 3 $(dtype_flags "$dtype"))
      for choice in "" --tune --tune=library; do
        # shellcheck disable=SC2086 # a flag or nothing
        step "bench-$name$choice" 90 "$ours" bench "${flags[@]}" $choice --mode compiled --json "$folder/kernfusion$choice.json"
      done
      step "profile-$name" 60 "$ours" profile "${flags[@]}" --lines 12 --json "$folder/profile.json"
      [ -n "$has_torch" ] || continue
      for peer in "" --compile; do
        # shellcheck disable=SC2086 # a flag or nothing
        step "torch-$name$peer" 120 "$python" "$here/peers/bench_torch.py" "${flags[@]}" --fused $peer --json "$folder/torch$peer.json"
      done
    done
  done
  [ -z "$has_torch" ] || ! command -v ncu >/dev/null ||
    step "ncu" 120 ncu --clock-control none --launch-skip 400 --launch-count 40 --csv "$ours" bench "${flags[@]}" --mode compiled
  once "table" 30 "$python" "$here/peers/gpu_table.py" "$out"
  cat "$out/logs/table.log"
}

# All of our commands over a driver that does nothing: their cubins stay. Their numbers mean nothing, and neither do exit codes.
make_cubins() {
  local driver=$out/prepared/driver processes=${PROCESSES:-$(nproc)} dtype part pair
  mkdir -p "$driver"
  "${CXX:-g++}" -std=c++17 -O1 -shared -fPIC -Wl,-soname,libcuda.so -DEMULATOR='""' -DKERNELS='""' \
    "$root/codegen/cuda/tests/driver/driver.cpp" -o "$driver/libcuda.so" -ldl || return 1
  export LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SIMULATED_KERNELS=none SIMULATED_MIB=140000
  export SIMULATED_ARCHITECTURE=${ARCHITECTURE:-90} KERNFUSION_CACHE=$out/prepared/cache
  {
    for dtype in $dtypes; do
      for ((part = 1; part <= 4 * processes; part++)); do
        echo "selftest --device cuda $cases $(dtype_flags "$dtype") --share $part/$((4 * processes))"
      done
      for pair in $presets; do
        flags="$(model_flags "${pair%%:*}") --batch-size ${pair##*:} --device cuda $(dtype_flags "$dtype")"
        echo "bench $flags --steps 1 --warmup 0 --mode compiled --tune"
        echo "profile $flags --steps 1 --warmup 0"
      done
    done
    echo "train $(model_flags "${first%%:*}") --batch-size ${first##*:} --steps 1 --device cuda --checkpoint-every 0 \
--validation-batches 1 --sample-tokens 0 --out $out/run-prepared"
  } >"$out/prepared/commands"
  xargs -P "$processes" -I{} sh -c '"$0" $1 2>&1 | tail -n 1' "$ours" {} <"$out/prepared/commands" >"$out/logs/cubins.log" 2>&1
  "$ours" generate --checkpoint "$out/run-prepared" --device cuda --tokens 2 --temperature 0 >>"$out/logs/cubins.log" 2>&1
  mkdir -p "$out/prepared/cubins"
  mv "$out/prepared/cache/cubin/"*.cubin "$out/prepared/cubins/"
}

if [ "$call" = prepare ]; then
  budget=${BUDGET:-7200} sanitizer=
  first=${presets%% *}
  rm -rf "$out/prepared"
  mkdir -p "$out/prepared"
  train cpu cpu "${first%%:*}" "${first##*:}" && mv "$out/cpu.jsonl" "$out/prepared/losses-cpu.jsonl"
  make_cubins || exit 1
  tar -czf "$out/prepared.tar.gz" -C "$out" prepared/cubins $(cd "$out" && ls prepared/losses-cpu.jsonl)
  echo "$(find "$out/prepared/cubins" -type f | wc -l) cubins and the losses of the CPU: $(du -h "$out/prepared.tar.gz" | cut -f1) in $out/prepared.tar.gz"
  exit 0
fi

[ ! -f "$out/prepared.tar.gz" ] || tar -xzf "$out/prepared.tar.gz" -C "$out"
[ ! -d "$out/prepared/cubins" ] || export KERNFUSION_CUBINS=$out/prepared/cubins
export KERNFUSION_CACHE=$out/run-cache
find_nvrtc
sanitizer=$(command -v compute-sanitizer || true)
export -f environment
export ours
once "environment" 60 bash -c environment
cat "$out/logs/environment.log"
# A sanitizer that does not know the device is none.
if [ -n "$sanitizer" ] && ! once "sanitizer" 60 "$sanitizer" "$ours" selftest --device cuda --random 0 --filter constant.; then sanitizer=; fi
case $call in
  correct) call_correct ;;
  speed) call_speed ;;
  again) call_correct; call_speed ;;
esac
printf '%s: %d steps ended well, %d did not; %s\n' "$call" "$(grep -c '"exit": 0,' "$results")" \
  "$(grep -vc '"exit": 0,' "$results")" "$out/results.tar.gz"
