#!/usr/bin/env bash
# Plants a defect, looks for it as our tests would, and takes it out again; the next one. Shows that what is said to be checked is.
#
#   benches/planted.sh [name …]         [default: all of benches/planted]
#
# Each defect is a patch, whose text says what finds it: `programs` are random programs from a seed that is new each time, anything else
# is a command. It works on a copy of the last commit under target/planted. A defect counts as found if that takes less than
# ten minutes, building apart. The exit code is 1 if one was not.
#
# Environment: SEED (of the first program), LIMIT (seconds, 600).
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=${CARGO_TARGET_DIR:-$root/target}/planted
limit=${LIMIT:-600} seed=${SEED:-$((RANDOM * 100000))}
source=$work/source
export CARGO_TARGET_DIR=$work/target
rm -rf "$source" && mkdir -p "$source" || exit 1
git -C "$root" archive HEAD | tar x -C "$source" || exit 1
cd "$source" || exit 1

# Random programs until one is a finding that there is not without the defect, which it prints.
programs() {
  local log=$work/programs.txt program=$CARGO_TARGET_DIR/debug/kernfusion
  "$program" selftest --programs 100000000 --seed "$seed" >"$log" 2>&1 &
  program=$!
  local start=$SECONDS
  local seen=0 found=
  while kill -0 $program 2>/dev/null && [ $((SECONDS - start)) -lt "$limit" ] && [ -z "$found" ]; do
    sleep 0.2
    local line number
    line=$(grep '^seed' "$log" | sed -n "$((seen + 1))p")
    [ -n "$line" ] || continue
    seen=$((seen + 1)) number=${line#seed } number=${number%%,*}
    # A finding of the program as it is says nothing of the defect.
    if "$sound" selftest --programs 1 --seed "$number" >/dev/null 2>&1; then found=$line; fi
  done
  kill $program 2>/dev/null
  wait $program 2>/dev/null
  echo "${found:0:160}"
}

# What the tests say that fail.
tests() {
  timeout "$limit" $1 2>&1 | grep -m1 -E '^test .* FAILED'
}

cargo build --quiet || exit 1
sound=$work/kernfusion
cp "$CARGO_TARGET_DIR/debug/kernfusion" "$sound" || exit 1

missed=0
names=("$@")
[ $# -gt 0 ] || names=($(cd "$root/benches/planted" && ls | sed 's/\.patch$//'))
for name in "${names[@]}"; do
  patch=$root/benches/planted/$name.patch
  sed -n 1p "$patch"
  patch --quiet -p1 <"$patch" || { echo "  $name does not apply any more"; exit 1; }
  find=$(sed -n 's/^find: //p' "$patch")
  if [ "$find" = programs ]; then cargo build --quiet || exit 1; else $find --no-run --quiet >/dev/null 2>&1 || exit 1; fi
  start=$SECONDS
  if [ "$find" = programs ]; then found=$(programs); else found=$(tests "$find"); fi
  if [ -n "$found" ]; then
    printf '  found after %d s: %s\n' $((SECONDS - start)) "$found"
  else
    printf '  not found within %d s\n' $((SECONDS - start))
    missed=1
  fi
  patch --quiet -R -p1 <"$patch"
done
exit $missed
