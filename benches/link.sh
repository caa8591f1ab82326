#!/usr/bin/env bash
# Predicted beside measured steps of several ranks over slow links: `kernfusion explain --ranks N --link …` beside a training under Open MPI.
#
#   benches/link.sh [Mbit/s …]         [default: 1000 200 50]
#
# Every rank has a network namespace of its own, joined by a bridge in one more, and its link sends at a rate that `tc` sets (tbf). Needs
# root, iproute2 and Open MPI; Linux alone has namespaces. All that it makes is in its namespaces, and goes with them at the end.
#
# The first line of each number of ranks is without a rate. What a rate adds to it is beside the predicted communication: these ranks share the
# cores of one machine, where a prediction has a machine for each. Of a frame of 1,514 bytes 1,448 are payload.
#
# Environment: KERNFUSION (our binary), RANKS ("2 4"), MODEL (flags, "--preset tiny"), BATCH (windows of a rank, 12), STEPS (20), LATENCY (of a message, 50us),
# TRAIN (more flags of train alone, such as "--tokenizer DIR": explain has the preset's own vocabulary), FLAGS (more flags of mpirun, such as
# "--mca btl_tcp_links 4": four connections between two ranks instead of one).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ours=${KERNFUSION:-${CARGO_TARGET_DIR:-$root/target}/release/kernfusion}
read -ra model <<<"${MODEL:---preset tiny}"
batch=${BATCH:-12} steps=${STEPS:-20} latency=${LATENCY:-50us}
read -ra flags <<<"${FLAGS:-}"
read -ra training <<<"${TRAIN:-}"
rates=("$@")
[ $# -gt 0 ] || rates=(1000 200 50)
[ -x "$ours" ] || { echo "there is no $ours: cargo build --release, or set KERNFUSION"; exit 1; }
for needed in ip tc mpirun.openmpi; do
  command -v $needed >/dev/null || { echo "there is no $needed: install iproute2 and openmpi-bin"; exit 1; }
done

name=kernfusion-$$ subnet=10.77.0
work=$(mktemp -d)
namespaces=()
cleanup() {
  local namespace
  for namespace in "${namespaces[@]}"; do ip netns delete "$namespace"; done
  namespaces=()
}
trap 'cleanup; rm -rf "$work"' EXIT

namespace() {
  ip netns add "$name-$1"
  namespaces+=("$name-$1")
  ip -n "$name-$1" link set lo up
}

# The hub with the launcher, and a namespace for each of so many ranks.
network() {
  namespace hub
  ip -n "$name-hub" link add name bridge0 type bridge
  ip -n "$name-hub" address add $subnet.254/24 dev bridge0
  ip -n "$name-hub" link set bridge0 up
  local rank
  for rank in $(seq "$1"); do
    namespace "$rank"
    ip -n "$name-$rank" link add name link0 type veth peer name "port$rank" netns "$name-hub"
    ip -n "$name-$rank" address add $subnet."$rank"/24 dev link0
    ip -n "$name-$rank" link set link0 up
    ip -n "$name-hub" link set "port$rank" master bridge0 up
  done
}

# Lets every rank send so many Mbit/s. The burst holds several segments of 64 KiB: with a smaller one the processor cuts them to frames of 1,514 bytes
# here, half a second for each 500 MB, which a network card does by itself.
throttle() {
  local rank
  for rank in $(seq "$1"); do
    ip netns exec "$name-$rank" tc qdisc replace dev link0 root tbf rate "$2mbit" burst 512kb latency 100ms
  done
}

# What starts a daemon of Open MPI on a "host", the address of a namespace, without ssh. Each has a folder for temporary files of its own: two of
# them on one machine would write the same.
cat >"$work/agent" <<AGENT
#!/bin/sh
host=\$1
shift
mkdir -p "$work/\$host"
TMPDIR="$work/\$host" exec ip netns exec "$name-\${host##*.}" sh -c "\$*"
AGENT
chmod +x "$work/agent"

# The median seconds of a step of so many ranks; the first two are left out.
measured() {
  local hosts
  hosts=$(seq -s, -f "$subnet.%g" "$1")
  timeout 600 ip netns exec "$name-hub" mpirun.openmpi --allow-run-as-root --oversubscribe \
    --mca plm_rsh_agent "$work/agent" --mca orte_keep_fqdn_hostnames 1 --mca oob_tcp_if_include $subnet.0/24 \
    --mca btl tcp,self --mca btl_tcp_if_include $subnet.0/24 --bind-to none "${flags[@]}" --mca mpi_yield_when_idle 1 --host "$hosts" -n "$1" \
    "$ours" train "${model[@]}" "${training[@]}" --batch-size $((batch * $1)) --threads 1 --clip 0 --steps "$steps" --validate-every 0 \
    --validation-batches 0 --sample-tokens 0 --checkpoint-every 0 --out "$work/run" --overwrite --log "$work/log.jsonl" \
    >"$work/out.txt" 2>&1 || { cat "$work/out.txt" >&2; exit 1; }
  sed 's/.*"seconds":\([^,]*\),.*/\1/' "$work/log.jsonl" | tail -n +3 | sort -g | awk '{ s[NR] = $1 } END { print s[int((NR + 1) / 2)] }'
}

# `communication_s step_s` of so many ranks at so many Mbit/s.
predicted() {
  local payload
  payload=$(awk "BEGIN { print $2 * 1448 / 1514 }")
  "$ours" explain "${model[@]}" --batch-size $((batch * $1)) --ranks "$1" --link "${payload}Mbit/s,$latency" --threads 1 \
    --json "$work/plan.json" >/dev/null
  echo "$(figure communication_s) $(figure step_s)"
}

figure() { sed -n "s/^ *\"$1\": \([^,]*\),*\$/\1/p" "$work/plan.json"; }

echo "${model[*]}, $batch windows a rank, 1 thread each on $(nproc) cores (load $(cut -d' ' -f1 /proc/loadavg) before), medians of $((steps - 2)) steps"
printf '%5s %9s %11s %11s %17s %12s\n' ranks Mbit/s "s a step" "added" "predicted: added" "s a step"
for ranks in ${RANKS:-2 4}; do
  network "$ranks"
  free=$(measured "$ranks")
  printf '%5d %9s %11.4f\n' "$ranks" none "$free"
  for rate in "${rates[@]}"; do
    throttle "$ranks" "$rate"
    seconds=$(measured "$ranks")
    read -r communication step < <(predicted "$ranks" "$rate")
    printf '%5d %9s %11.4f %11.4f %17.4f %12.4f\n' "$ranks" "$rate" "$seconds" \
      "$(awk "BEGIN { print $seconds - $free }")" "$communication" "$step"
  done
  cleanup
done
