#!/usr/bin/env bash
# `make bench`: Weir beside the bare proxy, in alternating rounds, on this machine. The report is target/bench/report.json.
#
#   tests/bench/run.sh            about ten minutes
#   QUICK=1 tests/bench/run.sh    about one: only the rows that have a target
#   GROWTH=1 tests/bench/run.sh   then also a start on, and requests beside, 10 million ledger lines: target/bench/growth.json
#   SLOW=1 tests/bench/run.sh     about three: only 5,400 clients that hardly read
#   STACK=1 tests/bench/run.sh    about five: every role apart, on Kafka, a CQL server and Redis Cluster that it starts
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/dev/needs.sh cargo cc wrk

echo "== building weir and the bench, release (the first time takes several minutes)"
cargo build --release --package weir --package weir-bench

if [ -z "${STACK:-}" ]; then
    target/release/weir-bench run ${QUICK:+--quick} ${SLOW:+--slow} "$@"
else
    tests/bench/stack.sh "$@"
fi

if [ -n "${GROWTH:-}" ]; then
    echo "== growth: 100,000 tenants, 10 million ledger lines, some 25 GB that are removed at the end"
    GROWTH=100000,10000000 GROWTH_REPORT="$PWD/target/bench/growth.json" \
        cargo test --release --package weir-tests --test growth -- --nocapture
fi
