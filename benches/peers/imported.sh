#!/usr/bin/env bash
# Imported models against PyTorch: ours, eager and torch.compile in turn, round after round, forward and training, each in a fresh process.
# int8 is a forward step with products of bytes (bench_imported.py says whose).
# Then one table of medians. Archives are exported and imported once and kept in the folder. A model whose outputs are not PyTorch's is not timed.
# onnxruntime and tract, if -v names them, run forward steps, too.
#
#   benches/peers/imported.sh [-m "gpt2 resnet18 .."] [-w "forward train int8"] [-v "ours eager compile onnxruntime tract"]
#                             [-s steps] [-r rounds] [-t threads] [-o folder]
#
# Without -m all models of bench_imported.py. Environment: KERNFUSION (our binary), PYTHON (a Python that has PyTorch and
# transformers), PEERS (the binary of benches/peers/rust, for tract).
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
ours=${KERNFUSION:-$root/target/release/kernfusion} python=${PYTHON:-$root/target/peers/bin/python}
models= works="forward train" peers="ours eager compile" steps=5 rounds=3 threads=2 out=$root/target/imported
while getopts "m:w:v:s:r:t:o:h" option; do
  case $option in
    m) models=$OPTARG ;; w) works=$OPTARG ;; v) peers=$OPTARG ;; s) steps=$OPTARG ;; r) rounds=$OPTARG ;;
    t) threads=$OPTARG ;; o) out=$OPTARG ;;
    h) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) exit 2 ;;
  esac
done
for program in "$ours" "$python"; do
  [ -x "$program" ] || { echo "imported.sh: there is no $program (KERNFUSION, PYTHON)" >&2; exit 1; }
done
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore TRANSFORMERS_VERBOSITY=error
bench=("$python" "$here/bench_imported.py")
[ -n "$models" ] || models=$("${bench[@]}" names) || exit 1
mkdir -p "$out" || exit 1

say() { echo "$@" >&2; }
attempt() { # log, command...: what fails is said, and the rest goes on
  local log=$1
  shift
  "$@" >"$log" 2>&1 || { say "  failed: $(tail -n 1 "$log")"; return 1; }
}

alike=
for model in $models; do
  archive=$out/$model.pt2
  [ -f "$out/$model.safetensors" ] || { say "exporting $model"; attempt "$out/$model.log" "${bench[@]}" export "$model" "$out"; }
  [ -d "$out/$model" ] || [ ! -f "$archive" ] || attempt "$out/$model.log" "$ours" import "$archive" -o "$out/$model"
  if [ -d "$out/$model" ]; then
    is_alike=true
    for work in forward int8; do
      [[ $work == forward || " $works " == *" int8 "* ]] || continue
      KERNFUSION=$ours attempt "$out/$model.log" "${bench[@]}" check "$model" "$out" --work "$work" || { is_alike=false; continue; }
      say "$work: $(tail -n 1 "$out/$model.log")"
    done
    if $is_alike; then alike+=" $model"; fi
  fi
done

measure() { # peer, model, work, JSON file
  local common=(--steps "$steps" --threads "$threads" --json "$4") flags=()
  say "  $1"
  case $1 in
    ours)
      if [ "$3" = int8 ]; then flags=(--dtype int8); fi
      if [ "$3" = train ]; then flags=(--loss cross-entropy); fi
      if [ "$3" = train ] && [ "$2" = unet ]; then flags=(--loss mse); fi
      attempt "${4%.json}.log" "$ours" bench --program "$out/$2" --inputs "$out/$2.safetensors" --mode compiled ${flags[@]+"${flags[@]}"} "${common[@]}" ;;
    *) attempt "${4%.json}.log" "${bench[@]}" time "$2" "$out" --by "$1" --work "$3" "${common[@]}" ;;
  esac
}

for ((round = 1; round <= rounds; round++)); do
  for work in $works; do
    for model in $alike; do
      say "round $round of $rounds, $model, $work"
      mkdir -p "$out/runs/$model-$work"
      for peer in $peers; do
        case "$peer $work" in
          "onnxruntime train" | "tract train" | "tract int8") ;;
          *) measure "$peer" "$model" "$work" "$out/runs/$model-$work/$round-$peer.json" ;;
        esac
      done
    done
  done
done
"$python" "$here/imported_table.py" "$out/runs"
