#!/usr/bin/env bash
# Apache Kafka on this machine, for development and tests: KRaft, loopback only, no replication with one broker and a
# replication of 3 with in-sync minimum 2 with three.
#
#   deploy/dev/stack/kafka.sh DIR start [1|3]     install, format, start, wait until ready; what runs is left alone
#   deploy/dev/stack/kafka.sh DIR stop            all brokers (SIGTERM, then SIGKILL)
#   deploy/dev/stack/kafka.sh DIR kill NODE       SIGKILL
#   deploy/dev/stack/kafka.sh DIR pause NODE      SIGSTOP; `resume NODE` lets it go on
#   deploy/dev/stack/kafka.sh DIR restart NODE    start it again where it was, wait until ready
#   deploy/dev/stack/kafka.sh DIR wait            until all brokers are ready
#   deploy/dev/stack/kafka.sh DIR wipe            stop and delete the data
#   deploy/dev/stack/kafka.sh install             only fetch the jars
#
# `start` and `wait` print KAFKA_BROKERS=host:port,… Node N listens on KAFKA_PORT+10N (default 19110) and, for the
# controllers, one above; ports stay below 32768, where ephemeral ones begin.
# With KAFKA_OWNER=PID the brokers are wiped once that process is gone, however it ended: for tests.
# Jars lie in ${XDG_CACHE_HOME:-~/.cache}/weir/kafka-VERSION, outside of the tree, and are checked by version.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's:.*<artifactId>kafka_2.13</artifactId><version>\(.*\)</version>.*:\1:p' "$here/kafka/pom.xml")
cache=${WEIR_KAFKA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir/kafka-$version}
base=${KAFKA_PORT:-19100}
# Small and quick to start: this broker serves tests, not traffic.
jvm=(-Xms64m "-Xmx${KAFKA_HEAP:-256m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1)
# Any id does; one that never changes lets a folder be started by another checkout.
cluster=MkU3OEVBNTcwNTJENDM2Qk
# Three brokers on two busy cores took 25 seconds.
patience_s=${KAFKA_PATIENCE:-120}

fail() {
    echo "kafka: $*" >&2
    exit 1
}

usage() {
    sed -n '2,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

is_installed() {
    [ -f "$cache/complete" ] && [ -f "$cache/libs/kafka_2.13-$version.jar" ]
}

install_jars() {
    is_installed && return
    "$here/../needs.sh" java mvn
    mkdir -p "$cache"
    # One at a time: test binaries may start at once.
    exec 9>"$cache/lock"
    flock 9
    if ! is_installed; then
        echo "kafka: fetching Apache Kafka $version" >&2
        rm -rf "$cache/libs"
        # Maven prints escape codes even when quiet; only its exit code counts.
        mvn -B -q -f "$here/kafka/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$cache/libs" >"$cache/maven.log" 2>&1 ||
            fail "Maven could not fetch Kafka $version: see $cache/maven.log"
        [ -f "$cache/libs/kafka_2.13-$version.jar" ] || fail "$cache/libs has no kafka_2.13-$version.jar"
        touch "$cache/complete"
    fi
    flock -u 9
}

port() { echo $((base + $1 * 10)); }

nodes() {
    local file
    for file in "$dir"/*/server.properties; do
        [ -f "$file" ] && basename "$(dirname "$file")"
    done
    return 0
}

pid_of() { cat "$dir/$1/pid" 2>/dev/null || true; }

# Of this folder's broker, not of another process that got its number after a restart of the machine.
is_running() {
    local pid
    pid=$(pid_of "$1")
    [ -n "$pid" ] && grep -qsF "$dir/$1/server.properties" "/proc/$pid/cmdline"
}

brokers() {
    local node list=
    for node in $(nodes); do list+="${list:+,}127.0.0.1:$(port "$node")"; done
    echo "KAFKA_BROKERS=$list"
}

configure() {
    local node=$1 count=$2 voters=$3 in_sync=1
    [ "$count" -lt 3 ] || in_sync=2
    mkdir -p "$dir/$node"
    cat >"$dir/$node/server.properties" <<EOF
process.roles=broker,controller
node.id=$node
listeners=PLAINTEXT://127.0.0.1:$(port "$node"),CONTROLLER://127.0.0.1:$(($(port "$node") + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$(port "$node"),CONTROLLER://127.0.0.1:$(($(port "$node") + 1))
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=$voters
log.dirs=$dir/$node/data
default.replication.factor=$count
min.insync.replicas=$in_sync
num.partitions=3
auto.create.topics.enable=false
offsets.topic.num.partitions=3
offsets.topic.replication.factor=$count
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=$count
transaction.state.log.min.isr=$in_sync
share.coordinator.state.topic.num.partitions=3
share.coordinator.state.topic.replication.factor=$count
share.coordinator.state.topic.min.isr=$in_sync
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.coordinator.threads=1
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
log.index.size.max.bytes=65536
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
EOF
}


format() {
    [ -f "$dir/$1/data/meta.properties" ] && return
    java -Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$cache/libs/*" kafka.tools.StorageTool \
        format -t "$cluster" -c "$dir/$1/server.properties" >"$dir/$1/format.log" 2>&1 ||
        fail "node $1 could not be formatted: $(tail -3 "$dir/$1/format.log")"
}

launch() {
    local node=$1
    is_running "$node" && return
    (exec 3<>"/dev/tcp/127.0.0.1/$(port "$node")") 2>/dev/null && fail "port $(port "$node") is taken (set KAFKA_PORT)"
    # Emptied before the start: a line of the last life would count as ready.
    : >"$dir/$node/out.log"
    # A session of its own, so that Ctrl-C in a terminal does not stop it, and no descriptor of the caller's is kept.
    setsid java "${jvm[@]}" "-Dlog4j2.configurationFile=$here/kafka/log4j2.properties" \
        -cp "$cache/libs/*" kafka.Kafka "$dir/$node/server.properties" >"$dir/$node/out.log" 2>&1 </dev/null 9>&- &
    echo $! >"$dir/$node/pid"
}

wait_ready() {
    local node deadline=$((SECONDS + patience_s))
    for node in $(nodes); do
        until grep -q 'Kafka Server started' "$dir/$node/out.log"; do
            is_running "$node" || kill -0 "$(pid_of "$node")" 2>/dev/null ||
                fail "node $node ended: $(tail -15 "$dir/$node/out.log")"
            [ $SECONDS -lt $deadline ] || fail "node $node is not ready after $patience_s s: see $dir/$node/out.log"
            sleep 0.05
        done
    done
}

# A process that was signalled frees its ports a little after its name.
wait_gone() {
    local node=$1 tries=$2
    while [ "$tries" -gt 0 ]; do
        if ! is_running "$node" && ! (exec 3<>"/dev/tcp/127.0.0.1/$(port "$node")") 2>/dev/null; then
            rm -f "$dir/$node/pid"
            return 0
        fi
        sleep 0.05
        tries=$((tries - 1))
    done
    return 1
}

signal() {
    is_running "$2" || fail "node $2 does not run in $dir"
    kill "-$1" "$(pid_of "$2")"
}

start() {
    local count=$1 node voters='' formats=()
    case $count in 1 | 3) ;; *) fail "$count brokers: write 1 or 3" ;; esac
    if [ -n "$(nodes)" ]; then
        [ "$(nodes | wc -l)" -eq "$count" ] || fail "$dir holds $(nodes | wc -l) brokers, not $count: wipe it first"
    else
        for node in $(seq "$count"); do voters+="${voters:+,}$node@127.0.0.1:$(($(port "$node") + 1))"; done
        for node in $(seq "$count"); do configure "$node" "$count" "$voters"; done
    fi
    for node in $(nodes); do
        format "$node" &
        formats+=($!)
    done
    for node in "${formats[@]}"; do wait "$node"; done
    for node in $(nodes); do launch "$node"; done
    watch_owner
    wait_ready
    brokers
}

watch_owner() {
    [ -n "${KAFKA_OWNER:-}" ] && [ ! -f "$dir/owner" ] || return 0
    echo "$KAFKA_OWNER" >"$dir/owner"
    # shellcheck disable=SC2016
    KAFKA_OWNER='' setsid bash -c 'while kill -0 "$1" 2>/dev/null && [ -d "$3" ]; do sleep 0.5; done
        [ ! -d "$3" ] || "$2" "$3" wipe' watch "$KAFKA_OWNER" "$here/kafka.sh" "$dir" >/dev/null 2>&1 </dev/null 9>&- &
}

stop() {
    local node
    for node in $(nodes); do
        is_running "$node" || continue
        kill -CONT "$(pid_of "$node")" 2>/dev/null || true
        kill -TERM "$(pid_of "$node")" 2>/dev/null || true
    done
    for node in $(nodes); do
        wait_gone "$node" 200 && continue
        is_running "$node" && kill -KILL "$(pid_of "$node")"
        wait_gone "$node" 200 || fail "node $node does not end"
    done
}

[ $# -ge 1 ] || usage
if [ "$1" = install ]; then
    install_jars
    exit
fi
[ $# -ge 2 ] || usage
mkdir -p "$1"
dir=$(cd "$1" && pwd)
command=$2
node=${3:-}
case $command in
kill | pause | resume | restart) [ -f "$dir/$node/server.properties" ] || fail "there is no node \"$node\" in $dir" ;;
esac
case $command in
start)
    install_jars
    start "${node:-1}"
    ;;
wait)
    wait_ready
    brokers
    ;;
stop) stop ;;
kill)
    signal KILL "$node"
    wait_gone "$node" 200 || fail "node $node does not end"
    ;;
pause) signal STOP "$node" ;;
resume) signal CONT "$node" ;;
restart)
    install_jars
    launch "$node"
    wait_ready
    brokers
    ;;
wipe)
    stop
    rm -rf "$dir"
    ;;
*) usage ;;
esac
