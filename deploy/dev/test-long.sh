#!/usr/bin/env bash
# The random tests again and again, each time with other seeds, for MINUTES (default 120). A failure prints its seed.
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/dev/needs.sh cargo cc curl python-venv node npm
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

minutes=${MINUTES:-120}
until=$((SECONDS + minutes * 60))
round=0
while [ "$SECONDS" -lt "$until" ]; do
    round=$((round + 1))
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    echo "== round $round, WEIR_TEST_SEED=$seed"
    PROPTEST_CASES=${PROPTEST_CASES:-2000} WEIR_RUNS=${WEIR_RUNS:-20} WEIR_SEEDS=${WEIR_SEEDS:-200} \
        WEIR_CRASH=all WEIR_OUTAGE_SECONDS=20 WEIR_REBALANCES=30 WEIR_PROTOCOL=all WEIR_FUZZ_SECONDS=${WEIR_FUZZ_SECONDS:-60} WEIR_TEST_LOG_RECORDS=${WEIR_TEST_LOG_RECORDS:-10000000} \
        WEIR_TEST_SEED=$seed cargo test --workspace
done
echo "== $round rounds in $minutes minutes, all green"
