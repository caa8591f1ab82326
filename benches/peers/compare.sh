#!/usr/bin/env bash
# Ours against PyTorch on one preset: every peer in turn, round after round, so that a change of the
# machine's speed meets all of them; then one table of medians. A peer that is missing or fails is skipped.
#
#   benches/peers/compare.sh [-p tiny|thesis|gpt2-small] [-w train|forward] [-d f32|bf16] [-s steps]
#                            [-r rounds] [-t threads] [-a "default tuned"] [-c] [-o folder]
#
# -c also runs torch.compile. Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch).
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
preset=tiny work=train dtype=f32 steps=5 rounds=3 threads=2 allocators="default tuned" compile=no out=
while getopts "p:w:d:s:r:t:a:co:h" option; do
  case $option in
    p) preset=$OPTARG ;; w) work=$OPTARG ;; d) dtype=$OPTARG ;; s) steps=$OPTARG ;; r) rounds=$OPTARG ;;
    t) threads=$OPTARG ;; a) allocators=$OPTARG ;; c) compile=yes ;; o) out=$OPTARG ;;
    h) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) exit 2 ;;
  esac
done
for allocator in $allocators; do
  case $allocator in
    default|tuned) ;;
    *) echo "compare.sh: allocator must be default or tuned, not '$allocator'" >&2; exit 2 ;;
  esac
done

ours=${KERNFUSION:-$root/target/release/kernfusion}
python=${PYTHON:-$root/target/peers/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
out=${out:-$root/target/peers-runs/$preset-$work-$dtype-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" || exit 1
if [ -n "$(find "$out" -name '*.json' -print -quit)" ]; then
  echo "compare.sh: $out already holds results" >&2
  exit 2
fi

# The same settings as bench_torch.py --allocator tuned, asked from it so that they are in one place.
tunables=$(sed -n '/^TUNED_ALLOCATOR/,/^)/s/^ *"\(.*\)"$/\1/p' "$here/bench_torch.py" | tr -d '\n')

skipped=()
skip() { # peer, reason: said once for each peer, however many rounds there are
  local message="skipped $1: $2" known
  for known in ${skipped[@]+"${skipped[@]}"}; do [ "$known" = "$message" ] && return; done
  skipped+=("$message")
  echo "$message" >&2
}

measure() { # peer, JSON file, command...: a run that fails is skipped and leaves its log
  local peer=$1 json=$2
  shift 2
  local log=${json%.json}.log status=0 last
  echo "  $peer" >&2
  "$@" >"$log" 2>&1 || status=$?
  if [ $status -ne 0 ]; then
    rm -f "$json"
    last=$(tail -n 1 "$log")
    skip "$peer" "exit $status: ${last:-no message}"
  elif [ ! -s "$json" ]; then
    skip "$peer" "it wrote no results"
  fi
}

ours_flags=(--preset "$preset" --work "$work" --mode compiled,eager --steps "$steps")
have_ours=no have_torch=no
if [ -x "$ours" ]; then
  have_ours=yes
  help=$("$ours" bench --help 2>&1)
  for flag in "--threads $threads" "--dtype $dtype"; do
    # shellcheck disable=SC2086 # the flag and its value are two words
    if [[ $help == *"${flag%% *}"* ]]; then ours_flags+=($flag); fi
  done
else
  skip kernfusion "no $ours (cargo build --release, or set KERNFUSION)"
fi
if "$python" -c 'import torch' >/dev/null 2>&1; then
  have_torch=yes
else
  skip torch "$python cannot import it (see README.md, or set PYTHON)"
fi

run_ours() { # allocator, JSON file
  if [ "$1" = tuned ]; then
    measure kernfusion "$2" env GLIBC_TUNABLES="$tunables" "$ours" bench "${ours_flags[@]}" --json "$2"
  else
    measure kernfusion "$2" env -u GLIBC_TUNABLES "$ours" bench "${ours_flags[@]}" --json "$2"
  fi
}

run_torch() { # allocator, JSON file, peer, flags...
  local allocator=$1 json=$2 peer=$3
  shift 3
  measure "$peer" "$json" "$python" "$here/bench_torch.py" --preset "$preset" --work "$work" --dtype "$dtype" \
    --steps "$steps" --threads "$threads" --allocator "$allocator" --json "$json" "$@"
}

export PYTHONDONTWRITEBYTECODE=1
for ((round = 1; round <= rounds; round++)); do
  for allocator in $allocators; do
    echo "round $round of $rounds, allocator $allocator" >&2
    folder=$out/$allocator
    mkdir -p "$folder"
    [ $have_ours = yes ] && run_ours "$allocator" "$folder/$round-kernfusion.json"
    [ $have_torch = yes ] || continue
    run_torch "$allocator" "$folder/$round-sdpa.json" torch-eager-sdpa --attention sdpa
    run_torch "$allocator" "$folder/$round-written.json" torch-eager-written --attention written
    [ $compile = yes ] &&
      run_torch "$allocator" "$folder/$round-compile.json" torch-compile-sdpa --attention sdpa --compile
  done
done

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
echo
echo "machine: ${cpu:-$(uname -m)}, $(getconf _NPROCESSORS_ONLN) cores; date: $(date +%F)"
echo "preset $preset, work $work, $dtype, $threads threads, $steps steps x $rounds rounds"
echo
# The table needs no PyTorch, so any Python will do when the peers' is missing.
[ $have_torch = yes ] || python=python3
"$python" "$here/table.py" "$out"
status=$?
for message in ${skipped[@]+"${skipped[@]}"}; do echo "$message"; done
exit $status
