#!/usr/bin/env bash
# A CQL server on loopback, for development and tests: Apache Cassandra, small.
#
#   cassandra.sh DATA start [NODES]   installs the jars once, starts 1 (default) or 3 nodes, waits until they answer
#   cassandra.sh DATA stop [NODE]     an orderly end; without a number, of all nodes
#   cassandra.sh DATA kill [NODE]     SIGKILL
#   cassandra.sh DATA restart [NODE]  starts again what was stopped or killed
#   cassandra.sh DATA wait            until all nodes answer
#   cassandra.sh DATA address         prints the nodes as HOST:PORT, separated by commas
#   cassandra.sh DATA wipe            removes the data of stopped nodes
#
# Everything it writes is in DATA, but for the jars: ${XDG_CACHE_HOME:-~/.cache}/weir/cassandra-VERSION. All nodes use
# one port, on 127.0.0.1, .2 and .3, because a driver learns of the others without a port. CQL_PORT (default 19042) and
# CQL_STORAGE_PORT (17000) choose them at the first start; CQL_PORT=0 takes free ones. CQL_XMX is the heap (384m).
# With CQL_OWNER=PID the nodes are killed and DATA is removed once that process is gone, however it ended: for tests.
#
# `commitlog_sync: batch` is not for speed: with the default a killed process loses writes that it has acknowledged.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 2; }
own=$(cd "$(dirname "$0")" && pwd)
files=$own/cassandra
mkdir -p "$1"
data=$(cd "$1" && pwd)
command=$2
number=${3:-}
version=$(sed -n 's/.*cassandra-all<.*<version>\(.*\)<\/version>.*/\1/p' "$files/pom.xml")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir/cassandra-$version
tokens=(-9223372036854775808 -3074457345618258603 3074457345618258602)

fail() {
    echo "cassandra: $1" >&2
    exit 1
}

case $data$cache$own in *[[:space:]]*) fail "the server cannot be started from a path with blanks: $data, $cache, $own" ;; esac

# Jars are trusted when they are those that the pom named: the stamp is the pom's own sum and the list of what came.
is_installed() {
    [ -f "$cache/stamp" ] && [ -f "$cache/libs/cassandra-all-$version.jar" ] &&
        (cd "$cache" && sha256sum --quiet --status --check stamp) &&
        [ "$(head -n 1 "$cache/pom.sum")" = "$(sha256sum <"$files/pom.xml")" ]
}

install_jars() {
    is_installed && return
    "$own/../needs.sh" java mvn setpriv
    mkdir -p "$cache"
    (
        flock 9
        is_installed && exit 0
        echo "cassandra: fetching the jars of $version"
        rm -rf "$cache/libs"
        mvn -B -q -f "$files/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$cache/libs" >"$cache/install.log" 2>&1 ||
            { tail -n 20 "$cache/install.log" >&2; fail "the jars did not come"; }
        (cd "$cache" && sha256sum libs/*.jar >stamp)
        sha256sum <"$files/pom.xml" >"$cache/pom.sum"
    ) 9>"$cache/lock"
    is_installed || fail "the jars in $cache are not those of $files/pom.xml"
}

answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# Above what else is started here by default, below the kernel's own range.
free_port() {
    local port
    for _ in $(seq 100); do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        answers 127.0.0.1 "$port" || { echo "$port"; return; }
    done
    fail "no free port"
}

# What the first start decided holds for all later ones.
settings() {
    if [ ! -f "$data/settings" ]; then
        [ "$command" = start ] || fail "nothing was started in $data"
        local many=${number:-1} native=${CQL_PORT:-19042} between=${CQL_STORAGE_PORT:-17000}
        [ "$many" = 1 ] || [ "$many" = 3 ] || fail "1 or 3 nodes, not $many"
        if [ "$native" = 0 ]; then
            native=$(free_port)
            between=$(free_port)
        fi
        printf 'nodes=%s\nport=%s\nstorage=%s\n' "$many" "$native" "$between" >"$data/settings"
    fi
    # shellcheck disable=SC1091
    . "$data/settings"
}

pid_of() { cat "$data/$1/pid" 2>/dev/null || echo 0; }

is_alive() {
    local pid
    pid=$(pid_of "$1")
    [ "$pid" != 0 ] && grep -qsF "$data/$1/cassandra.yaml" "/proc/$pid/cmdline"
}

write_config() {
    local folder=$data/$1 host=127.0.0.$1 token=${tokens[$(($1 - 1))]}
    mkdir -p "$folder/tmp"
    cat >"$folder/cassandra.yaml" <<Y
cluster_name: weir-dev
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
num_tokens: 1
initial_token: '$token'
auto_bootstrap: false
listen_address: $host
rpc_address: $host
native_transport_port: $port
storage_port: $storage
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{ seeds: "$(seq -s, -f '127.0.0.%g' 1 "$nodes")" }]
commitlog_sync: batch
commitlog_segment_size: 8MiB
commitlog_total_space: 128MiB
memtable_heap_space: 48MiB
memtable_offheap_space: 48MiB
networking_cache_size: 16MiB
key_cache_size: 4MiB
counter_cache_size: 0MiB
paxos_variant: v2
paxos_state_purging: repaired
auto_snapshot: false
Y
    printf 'dc=dc1\nrack=r%s\n' "$1" >"$folder/cassandra-rackdc.properties"
}

start_node() {
    local folder=$data/$1 unlocked=()
    is_alive "$1" && return
    if answers "127.0.0.$1" "$port"; then fail "127.0.0.$1:$port is taken by another process"; fi
    write_config "$1"
    # As root the server would pin its whole heap in memory.
    [ "$(id -u)" -ne 0 ] || unlocked=(setpriv --bounding-set -ipc_lock)
    (
        cd "$cache"
        MALLOC_ARENA_MAX=2 exec setsid "${unlocked[@]}" java "@$files/jvm.args" -javaagent:"$(ls libs/jamm-*.jar)" \
            -Xms"${CQL_XMX:-384m}" -Xmx"${CQL_XMX:-384m}" -Dcassandra.config="file://$folder/cassandra.yaml" \
            -Dcassandra-rackdc.properties="file://$folder/cassandra-rackdc.properties" \
            -Dcassandra.storagedir="$folder/data" -Dcassandra.logdir="$folder" -Djava.io.tmpdir="$folder/tmp" \
            -Dlogback.configurationFile="file://$files/logback.xml" -Dcassandra-foreground=yes \
            -Dcassandra.skip_wait_for_gossip_to_settle=0 -cp 'libs/*' org.apache.cassandra.service.CassandraDaemon
    ) >>"$folder/log" 2>&1 </dev/null 9>&- &
    echo $! >"$folder/pid"
}

# The port opens last: who answers there is ready.
wait_node() {
    sleep 0.3
    for _ in $(seq 2400); do
        answers "127.0.0.$1" "$port" && return
        is_alive "$1" || { tail -n 20 "$data/$1/log" >&2; fail "node $1 ended"; }
        sleep 0.1
    done
    fail "node $1 did not answer within 240 s; its log is $data/$1/log"
}

end_node() {
    local pid
    pid=$(pid_of "$1")
    ! is_alive "$1" || kill -s "$2" "$pid" || true
    # A killed process is gone from the list before its sockets are: the next start would find them taken.
    for _ in $(seq 600); do
        is_alive "$1" || answers "127.0.0.$1" "$port" || answers "127.0.0.$1" "$storage" || break
        sleep 0.1
    done
    ! is_alive "$1" || kill -s KILL "$pid" || true
    rm -f "$data/$1/pid"
}

[ "$command" != start ] || install_jars
if [ "$command" = stop ] && [ ! -f "$data/settings" ]; then exit 0; fi
settings
chosen=$(seq 1 "$nodes")
case $command in
stop | kill | restart) chosen=${number:-$chosen} ;;
esac
each() { for node in $chosen; do "$@" "$node"; done; }
end_chosen() { for node in $chosen; do end_node "$node" "$1"; done; }

case $command in
start | restart)
    each start_node
    if [ "$command" = start ] && [ -n "${CQL_OWNER:-}" ]; then
        setsid bash -c 'tail --pid="$1" -f /dev/null; "$2" "$3" kill; rm -rf "$3"' \
            - "$CQL_OWNER" "$own/cassandra.sh" "$data" >/dev/null 2>&1 </dev/null &
    fi
    each wait_node
    ;;
wait) each wait_node ;;
stop) end_chosen TERM ;;
kill) end_chosen KILL ;;
address) for node in $chosen; do echo "127.0.0.$node:$port"; done | paste -s -d , ;;
wipe)
    for node in $chosen; do ! is_alive "$node" || fail "node $node runs"; done
    for node in $chosen; do rm -rf "${data:?}/$node"; done
    rm -f "$data/settings"
    ;;
*) fail "unknown command $command" ;;
esac
