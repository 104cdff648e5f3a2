#!/usr/bin/env bash
# Real Redis on loopback: one node, or a cluster of three masters with or without replicas.
#
#   redis.sh start single  DIR PORT     one node on PORT
#   redis.sh start cluster DIR PORT     masters on PORT, PORT+1, PORT+2; REPLICAS=1 adds one replica each, on the next three
#   redis.sh wait DIR                   until every node answers and, in a cluster, every slot is served
#   redis.sh kill DIR NODE              SIGKILL; nodes are numbered from 1
#   redis.sh restart DIR NODE           starts a node that is down, with the data that it left
#   redis.sh stop DIR                   all of them; the data stays
#
# Everything lies in DIR. What runs already is left alone, so each command may be repeated. OWNER=PID stops the nodes when
# that process is gone. APPENDFSYNC is `everysec` unless set, MIN_REPLICAS (`min-replicas-to-write`) is 0: with one replica
# for each master, 1 would stop all writes from a failover until the old master is back.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
command=${1:?start, wait, kill, restart or stop}

port_of() { echo $(($(cat "$1/first_port") + $2 - 1)); }
nodes_of() { seq "$(cat "$1/nodes")"; }
is_cluster() { [ "$(cat "$1/layout")" = cluster ]; }
is_up() { [ -s "$1/$2/pid" ] && kill -0 "$(cat "$1/$2/pid")" 2>/dev/null; }
cli() { redis-cli -h 127.0.0.1 -p "$1" "${@:2}" 2>/dev/null; }

config() {
    cat <<CONF
bind 127.0.0.1
port $1
daemonize no
dir $2
save ""
appendonly yes
appendfsync ${APPENDFSYNC:-everysec}
maxmemory-policy noeviction
min-replicas-to-write ${MIN_REPLICAS:-0}
repl-diskless-sync-delay 0
repl-ping-replica-period 1
CONF
    is_cluster "$3" || return 0
    cat <<CONF
cluster-enabled yes
cluster-config-file nodes.conf
cluster-port $(($1 + 10000))
cluster-node-timeout 2000
cluster-require-full-coverage no
cluster-replica-validity-factor 0
CONF
}

start_node() {
    local dir=$1 node=$2 port
    is_up "$dir" "$node" && return 0
    port=$(port_of "$dir" "$node")
    if cli "$port" ping >/dev/null; then
        echo "redis.sh: something else answers on port $port: choose another one" >&2
        exit 1
    fi
    mkdir -p "$dir/$node"
    config "$port" "$dir/$node" "$dir" >"$dir/$node/redis.conf"
    setsid redis-server "$dir/$node/redis.conf" >>"$dir/$node/log" 2>&1 </dev/null &
    echo $! >"$dir/$node/pid"
}

answers() {
    local port=$1 tries=0
    until [ "$(cli "$port" ping)" = PONG ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "redis.sh: port $port does not answer within 30 s" >&2; exit 1; }
        sleep 0.05
    done
}

wait_all() {
    local dir=$1 node port tries
    for node in $(nodes_of "$dir"); do
        is_up "$dir" "$node" || { echo "redis.sh: node $node is down; see $dir/$node/log" >&2; exit 1; }
        answers "$(port_of "$dir" "$node")"
    done
    is_cluster "$dir" || return 0
    for node in $(nodes_of "$dir"); do
        port=$(port_of "$dir" "$node") tries=0
        until cli "$port" cluster info | grep -q cluster_state:ok &&
            { ! cli "$port" info replication | grep -q role:slave || cli "$port" info replication | grep -q master_link_status:up; }; do
            tries=$((tries + 1))
            [ $tries -lt 1200 ] || { echo "redis.sh: node $node is not part of a whole cluster within 60 s" >&2; exit 1; }
            sleep 0.05
        done
    done
}

make_cluster() {
    local dir=$1 node addresses=()
    [ -e "$dir/made" ] && return 0
    for node in $(nodes_of "$dir"); do
        answers "$(port_of "$dir" "$node")"
        addresses+=("127.0.0.1:$(port_of "$dir" "$node")")
    done
    redis-cli --cluster create "${addresses[@]}" --cluster-replicas "${REPLICAS:-0}" --cluster-yes >"$dir/create.log" 2>&1 ||
        { cat "$dir/create.log" >&2; exit 1; }
    touch "$dir/made"
}

stop_all() {
    local dir=$1 node
    for node in $(nodes_of "$dir"); do
        is_up "$dir" "$node" && kill -TERM "$(cat "$dir/$node/pid")"
    done
    for node in $(nodes_of "$dir"); do
        while is_up "$dir" "$node"; do sleep 0.05; done
    done
}

# In a session of its own: whoever kills the owner with its process group must not reach it.
stop_with_owner() {
    [ -n "${OWNER:-}" ] || return 0
    setsid bash -c 'while kill -0 "$1" 2>/dev/null; do sleep 1; done; exec "$2" stop "$3"' guard \
        "$OWNER" "$here/redis.sh" "$1" >/dev/null 2>&1 </dev/null &
}

start() {
    local layout=$1 dir=$2 port=$3 nodes=1
    [ "$layout" = single ] || nodes=$((3 + 3 * ${REPLICAS:-0}))
    # The cluster's bus listens 10000 above, and ports from 32768 are given to clients.
    [ $((port + nodes)) -lt 22768 ] || { echo "redis.sh: choose a port below $((22768 - nodes))" >&2; exit 1; }
    "$here/../needs.sh" redis-server
    mkdir -p "$dir"
    if [ ! -e "$dir/layout" ]; then
        echo "$layout" >"$dir/layout"
        echo "$port" >"$dir/first_port"
        echo "$nodes" >"$dir/nodes"
    fi
    for node in $(nodes_of "$dir"); do start_node "$dir" "$node"; done
    is_cluster "$dir" && make_cluster "$dir"
    wait_all "$dir"
    stop_with_owner "$dir"
}

case $command in
start) start "${2:?single or cluster}" "$(mkdir -p "$3" && cd "$3" && pwd)" "${4:?first port}" ;;
wait) wait_all "$2" ;;
kill) is_up "$2" "$3" && kill -KILL "$(cat "$2/$3/pid")" && while is_up "$2" "$3"; do sleep 0.02; done || true ;;
restart)
    start_node "$(cd "$2" && pwd)" "$3"
    answers "$(port_of "$2" "$3")"
    ;;
stop) stop_all "$2" ;;
*)
    echo "redis.sh: start, wait, kill, restart or stop" >&2
    exit 2
    ;;
esac
