#!/usr/bin/env bash
# A training of hours that is watched from outside: memory, file descriptors, threads, mappings and speed stay what they were.
#
#   benches/soak.sh [minutes] [folder]         [default: 120, target/soak]
#
# The run is ended by SIGTERM and resumed for each leg, so there are processes of some age and resumed runs. It validates, samples, writes
# checkpoints, a log and TensorBoard events, under a memory limit that cuts its batch. Every five seconds a line goes to
# samples.tsv: seconds, leg, resident KiB, descriptors, threads, mappings. A leg's first minute is its start and not counted.
# At the end each leg's first quarter is compared with its last, and the first leg with the last: the exit code is 1 if something grew.
#
# Environment: KERNFUSION (our binary), LEGS (4), PRESET (tiny), LIMIT (70MiB), FLAGS (more flags of train), WARM (seconds, 60).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ours=${KERNFUSION:-${CARGO_TARGET_DIR:-$root/target}/release/kernfusion}
minutes=${1:-120}
out=${2:-$root/target/soak}
legs=${LEGS:-4} warm=${WARM:-60}
[ -x "$ours" ] || { echo "there is no $ours: cargo build --release, or set KERNFUSION"; exit 1; }
[ ! -e "$out" ] || { echo "$out is there already: remove it, or name another folder"; exit 1; }
mkdir -p "$out"
samples=$out/samples.tsv

child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT

# Lets one leg run and writes its samples.
leg() {
  local number=$1 flags=(--steps 1000000000)
  if [ "$number" = 1 ]; then
    flags+=(--preset "${PRESET:-tiny}" --out "$out/run" --memory-limit "${LIMIT:-70MiB}" --tensorboard
      --validate-every 200 --sample-every 500 --sample-tokens 60 --checkpoint-every 100)
    # shellcheck disable=SC2206
    flags+=(${FLAGS:-})
  else
    flags+=(--resume "$out/run" --tensorboard)
  fi
  "$ours" train "${flags[@]}" >"$out/leg-$number.txt" 2>&1 &
  child=$!
  local start=$SECONDS process=/proc/$child
  while [ $((SECONDS - start)) -lt $((minutes * 60 / legs)) ]; do
    sleep 5
    [ -d "$process/fd" ] || { echo "leg $number ended by itself:"; tail -5 "$out/leg-$number.txt"; exit 1; }
    [ $((SECONDS - start)) -ge "$warm" ] || continue
    printf '%d\t%d\t%d\t%d\t%d\t%d\n' "$SECONDS" "$number" \
      "$(awk '/^VmRSS/ { print $2 }' "$process/status")" "$(ls "$process/fd" | wc -l)" \
      "$(ls "$process/task" | wc -l)" "$(wc -l <"$process/maps")" >>"$samples"
  done
  kill -TERM "$child"
  local code=0
  wait "$child" || code=$?
  child=
  # 143: ended by SIGTERM, with a checkpoint.
  [ "$code" = 143 ] || { echo "leg $number: exit code $code"; tail -5 "$out/leg-$number.txt"; exit 1; }
  grep -c '"step"' "$out/run/log.jsonl" >>"$out/steps.txt"
}

for number in $(seq "$legs"); do leg "$number"; done

median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
# quarter LEG PART COLUMN: the median of a column in a part (1 to 4) of a leg.
quarter() {
  awk -v leg="$1" '$2 == leg' "$samples" | awk -v part="$2" -v column="$3" '{ line[NR] = $column }
    END { for (i = 1; i <= NR; i++) if (int(4 * (i - 1) / NR) + 1 == part) print line[i] }' | median
}
# seconds LEG PART: the quartiles of the seconds of steps in a part of a leg.
seconds() {
  local from=1 to
  [ "$1" = 1 ] || from=$(($(sed -n "$(($1 - 1))p" "$out/steps.txt") + 1))
  to=$(sed -n "$1p" "$out/steps.txt")
  local count=$(((to - from + 1) / 4))
  sed -n "$((from + count * ($2 - 1))),$((from + count * $2 - 1))p" "$out/run/log.jsonl" |
    sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' | sort -g |
    awk '{ x[NR] = 1e3 * $1 } END { printf "%.2f %.2f %.2f\n", x[int(NR / 4) + 1], x[int(NR / 2) + 1], x[int(3 * NR / 4) + 1] }'
}

printf '%-5s %-8s %12s %12s %8s %9s %28s\n' leg quarter "resident MiB" descriptors threads mappings "ms a step (quartiles)"
for number in $(seq "$legs"); do
  for part in 1 2 3 4; do
    printf '%-5d %-8d %12.2f %12d %8d %9d %10s %8s %8s\n' "$number" "$part" \
      "$(quarter "$number" "$part" 3 | awk '{ print $1 / 1024 }')" "$(quarter "$number" "$part" 4)" \
      "$(quarter "$number" "$part" 5)" "$(quarter "$number" "$part" 6)" $(seconds "$number" "$part")
  done
done | tee "$out/table.txt"

# Memory within 1 %, nothing more of the rest; the median step no slower than three quarters of the steps were in some quarter of
# the leg that it is compared with, since machines are not equally fast all the time.
awk -v legs="$legs" '
  { resident[$1, $2] = $3; descriptors[$1, $2] = $4; threads[$1, $2] = $5; mappings[$1, $2] = $6; ms[$1, $2] = $8
    if ($9 > high[$1]) high[$1] = $9 }
  function bad(what, from, to) { printf "%s: %s, then %s\n", what, from, to; found = 1 }
  function same(what, a, b) {
    if (resident[b] > resident[a] * 1.01) bad("MiB " what, resident[a], resident[b])
    if (descriptors[b] > descriptors[a]) bad("descriptors " what, descriptors[a], descriptors[b])
    if (threads[b] > threads[a]) bad("threads " what, threads[a], threads[b])
    if (mappings[b] > mappings[a]) bad("mappings " what, mappings[a], mappings[b])
    split(a, leg_of, SUBSEP)
    if (ms[b] > high[leg_of[1]]) bad("ms a step " what, ms[a], ms[b])
  }
  END {
    for (leg = 1; leg <= legs; leg++) same("in leg " leg, leg SUBSEP 1, leg SUBSEP 4)
    same("from the first leg to the last", 1 SUBSEP 4, legs SUBSEP 4)
    print found ? "not flat" : "flat"
    exit found
  }' "$out/table.txt"
