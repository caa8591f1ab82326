#!/usr/bin/env bash
# Every error at every call on a file, and many more kills than the tests have: about half an hour on two cores.
#
#   benches/faults.sh [kills]            [default: 1000]
set -euo pipefail
cd "$(dirname "$0")/.."
export KERNFUSION_FAULTS=all KERNFUSION_KILLS=${1:-1000}
cargo test -p kernfusion-cli --test faults -- --nocapture
