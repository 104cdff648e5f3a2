#!/usr/bin/env bash
# Starts the servers of the stack on this machine: Apache Kafka, a CQL server (Apache Cassandra), Redis Cluster. Waits until
# all answer, prints their addresses as KEY=VALUE and writes the same to target/stack/env. What runs is left alone, so it
# may be repeated; what is missing is installed (as root on Debian) or named.
#
#   make stack-up                     1 broker, 1 CQL node, 3 Redis masters
#   make stack-up BROKERS=3           3 brokers: any one may be lost
#   make stack-up REPLICAS=1          3 Redis masters with a replica each
#
# Everything listens on 127.0.0.1 (KAFKA_PORT 19100, CQL_PORT 19042, REDIS_PORT 7101); data and logs are in target/stack, or
# in STACK_DATA.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

data=${STACK_DATA:-target/stack}
scripts=deploy/dev/stack
mkdir -p "$data"
data=$(cd "$data" && pwd)

# Side by side: each spends most of its time waiting for a JVM.
"$scripts/kafka.sh" "$data/kafka" start "${BROKERS:-1}" >"$data/kafka.start" 2>&1 &
kafka=$!
"$scripts/cassandra.sh" "$data/cassandra" start 1 >"$data/cassandra.start" 2>&1 &
cassandra=$!
REPLICAS=${REPLICAS:-0} "$scripts/redis.sh" start cluster "$data/redis" "${REDIS_PORT:-7101}" >"$data/redis.start" 2>&1 &
redis=$!

failed=()
wait "$kafka" || failed+=(kafka)
wait "$cassandra" || failed+=(cassandra)
wait "$redis" || failed+=(redis)
for name in "${failed[@]}"; do
    echo "stack-up: $name did not start:" >&2
    tail -20 "$data/$name.start" >&2
done
[ ${#failed[@]} -eq 0 ] || exit 1

first=$(cat "$data/redis/first_port")
masters=
for port in $first $((first + 1)) $((first + 2)); do masters+="${masters:+,}127.0.0.1:$port"; done
{
    grep '^KAFKA_BROKERS=' "$data/kafka.start"
    echo "CQL_NODES=$("$scripts/cassandra.sh" "$data/cassandra" address)"
    echo "REDIS_NODES=$masters"
} | tee "$data/env"
