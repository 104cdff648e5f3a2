#!/usr/bin/env bash
# Stops what `make stack-up` started. The data stays for the next start; WIPE=1 deletes it. May be repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

data=${STACK_DATA:-target/stack}
scripts=deploy/dev/stack
[ -d "$data" ] || exit 0
data=$(cd "$data" && pwd)

[ ! -d "$data/kafka" ] || "$scripts/kafka.sh" "$data/kafka" stop &
[ ! -d "$data/cassandra" ] || "$scripts/cassandra.sh" "$data/cassandra" stop &
[ ! -e "$data/redis/nodes" ] || "$scripts/redis.sh" stop "$data/redis" &
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
rm -f "$data/env"
[ "${WIPE:-0}" != 1 ] || rm -rf "$data"
exit $status
