#!/usr/bin/env bash
# The part of `make bench STACK=1` that needs servers: starts its own, measures, ends them. The programs are built already.
#
# They listen beside those of `make stack-up`, are empty at the start, and are gone at the end, whatever it was.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --release --package weir-streams --package weir-ledger --package weir-quota \
    --features weir-streams/kafka,weir-ledger/cql,weir-ledger/conformance,weir-quota/redis,weir-quota/conformance \
    --example kafka_speed --example cql_speed --example redis_speed

export STACK_DATA=target/bench/stack KAFKA_PORT=${KAFKA_PORT:-18100} CQL_PORT=${CQL_PORT:-18042} \
    CQL_STORAGE_PORT=${CQL_STORAGE_PORT:-18700} REDIS_PORT=${REDIS_PORT:-8101}
# The rates of bare calls are of one node, whose data are replaced.
alone=target/bench/redis-alone alone_port=$((REDIS_PORT + 20))

down() {
    [ ! -e $alone ] || deploy/dev/stack/redis.sh stop $alone
    WIPE=1 deploy/dev/stack-down.sh
    rm -rf $alone
}

# What a run left that was killed.
down
trap down EXIT
mkdir -p target/bench
deploy/dev/stack-up.sh
deploy/dev/stack/redis.sh start single $alone $alone_port
# shellcheck disable=SC1091
. target/bench/stack/env
target/release/weir-bench stack --kafka "$KAFKA_BROKERS" --cql "$CQL_NODES" --redis "$REDIS_NODES" \
    --redis-alone "127.0.0.1:$alone_port" "$@"
