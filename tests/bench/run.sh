#!/usr/bin/env bash
# `make bench`: Weir beside the bare proxy, in alternating rounds, on this machine. The report is target/bench/report.json.
#
#   tests/bench/run.sh            about ten minutes
#   QUICK=1 tests/bench/run.sh    about one: only the rows that have a target
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/dev/needs.sh cargo cc wrk

echo "== building weir and the bench, release (the first time takes several minutes)"
cargo build --release --package weir --package weir-bench

exec target/release/weir-bench run ${QUICK:+--quick} "$@"
