#!/usr/bin/env bash
# Whether two builds compile every preset to the same kernels: dumps of each stage, apart from names and the lines of our own source.
#
#   benches/same_dumps.sh OLD NEW [PRESET…]        two binaries; all presets, if none is named
set -euo pipefail
old=$1 new=$2
shift 2
presets=("$@")
[ ${#presets[@]} -gt 0 ] || mapfile -t presets < <("$new" presets | awk 'NR > 1 && NF { print $1 }')
# Names that were changed, and where a node comes from.
plain() { sed -E 's/ turns/ iterations/g; s/turn\]/iteration]/g; s/tile\.part/microbatch.index/g; s/tile\.sum/microbatch.sum/g; s/ at "[^"]+":[0-9]+:[0-9]+//g; s/[0-9.]+ ms//g'; }
failed=0
for preset in "${presets[@]}"; do
  for stage in trace grad simplify fuse plan; do
    if cmp -s <("$old" dump --preset "$preset" --work train --stage $stage 2>&1 | plain) <("$new" dump --preset "$preset" --work train --stage $stage 2>&1 | plain); then
      echo "same      $preset $stage"
    else
      echo "DIFFERENT $preset $stage"
      failed=1
    fi
  done
done
exit $failed
