#!/usr/bin/env bash
# Ours against PyTorch on one preset: every peer in turn, round after round, so that a change of the
# machine's speed meets all of them; each in a fresh process, so that peaks of memory are its own. Then one table
# of medians, as text here and as Markdown in the folder. A peer that is missing or fails is skipped.
#
#   benches/peers/compare.sh [-p tiny|thesis|gpt2-small] [-w train|forward] [-d "f32 bf16"] [-s steps]
#                            [-r rounds] [-t threads] [-a "default tuned"] [-v "ours eager compile"] [-o folder]
#
# -v says which peers run: ours (compiled and eager), eager and compile (PyTorch with scaled_dot_product_attention),
# written (PyTorch eager with attention written out), candle and burn (benches/peers/rust, in f32, with glibc's allocator as it is).
# bf16 is autocast for PyTorch.
# Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch), PEERS (the binary of benches/peers/rust).
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
preset=tiny work=train dtypes="f32 bf16" steps=5 rounds=3 threads=2 allocators="default tuned"
peers="ours eager compile" out=
while getopts "p:w:d:s:r:t:a:v:o:h" option; do
  case $option in
    p) preset=$OPTARG ;; w) work=$OPTARG ;; d) dtypes=$OPTARG ;; s) steps=$OPTARG ;; r) rounds=$OPTARG ;;
    t) threads=$OPTARG ;; a) allocators=$OPTARG ;; v) peers=$OPTARG ;; o) out=$OPTARG ;;
    h) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) exit 2 ;;
  esac
done
known() { # flag, allowed words, words
  local flag=$1 allowed=" $2 " word
  shift 2
  for word in "$@"; do
    [[ $allowed == *" $word "* ]] || { echo "compare.sh: $flag takes$allowed, not '$word'" >&2; exit 2; }
  done
}
# shellcheck disable=SC2086 # lists of words
{ known -d "f32 bf16" $dtypes; known -a "default tuned" $allocators; known -v "ours eager written compile candle burn" $peers; }

ours=${KERNFUSION:-$root/target/release/kernfusion}
python=${PYTHON:-$root/target/peers/bin/python}
of_rust=${PEERS:-$here/rust/target/release/kernfusion-peers}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
out=${out:-$root/target/peers-runs/$preset-$work-$(date +%Y%m%d-%H%M%S)}
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

have_ours=no have_torch=no
if [ -x "$ours" ]; then
  have_ours=yes
else
  skip kernfusion "no $ours (cargo build --release, or set KERNFUSION)"
fi
if "$python" -c 'import torch' >/dev/null 2>&1; then
  have_torch=yes
else
  skip torch "$python cannot import it (see README.md, or set PYTHON)"
fi

run_ours() { # dtype, allocator, JSON file
  local flags=(--preset "$preset" --work "$work" --dtype "$1" --steps "$steps" --threads "$threads")
  local environment=(-u GLIBC_TUNABLES)
  [ "$2" = tuned ] && environment=(GLIBC_TUNABLES="$tunables")
  # With two modes, each one's peak of memory is measured in a process of its own.
  measure kernfusion "$3" env "${environment[@]}" "$ours" bench "${flags[@]}" --mode compiled,eager --json "$3"
}

run_torch() { # dtype, allocator, JSON file, peer, flags...
  local dtype=$1 allocator=$2 json=$3 peer=$4
  shift 4
  measure "$peer" "$json" "$python" "$here/bench_torch.py" --preset "$preset" --work "$work" --dtype "$dtype" \
    --steps "$steps" --threads "$threads" --allocator "$allocator" --json "$json" "$@"
}

run_rust() { # dtype, allocator, JSON file, peer
  [ "$1 $2" = "f32 default" ] || return
  if [ -x "$of_rust" ]; then
    measure "$4" "$3" "$of_rust" bench "$4" --preset "$preset" --work "$work" --steps "$steps" --threads "$threads" --json "$3"
  else
    skip "$4" "no $of_rust (cargo build --release in benches/peers/rust, or set PEERS)"
  fi
}

run_peer() { # peer, dtype, allocator, JSON file
  case $1 in
    candle | burn) run_rust "$2" "$3" "$4" "$1"; return ;;
    ours) [ $have_ours = yes ] && run_ours "$2" "$3" "$4"; return ;;
  esac
  [ $have_torch = yes ] || return
  case $1 in
    eager) run_torch "$2" "$3" "$4" torch-eager-sdpa --attention sdpa ;;
    written) run_torch "$2" "$3" "$4" torch-eager-written --attention written ;;
    compile) run_torch "$2" "$3" "$4" torch-compile-sdpa --attention sdpa --compile ;;
  esac
}

export PYTHONDONTWRITEBYTECODE=1
for ((round = 1; round <= rounds; round++)); do
  for dtype in $dtypes; do
    for allocator in $allocators; do
      echo "round $round of $rounds, $dtype, allocator $allocator" >&2
      folder=$out/$dtype-$allocator
      mkdir -p "$folder"
      for peer in $peers; do run_peer "$peer" "$dtype" "$allocator" "$folder/$round-$peer.json"; done
    done
  done
done

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
heading="machine: ${cpu:-$(uname -m)}, $(getconf _NPROCESSORS_ONLN) cores; date: $(date +%F)
preset $preset, work $work, $threads threads, $steps steps x $rounds rounds"
# The table needs no PyTorch, so any Python will do when the peers' is missing.
[ $have_torch = yes ] || python=python3
echo
"$python" "$here/table.py" "$out" --heading "$heading" --markdown "$out/table.md"
status=$?
for message in ${skipped[@]+"${skipped[@]}"}; do echo "$message"; done
[ $status -eq 0 ] && echo "as Markdown: $out/table.md"
exit $status
