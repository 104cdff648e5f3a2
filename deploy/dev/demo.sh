#!/usr/bin/env bash
# The demo: one process, one plain and one streamed request, and the exact bill of both.
#
#   deploy/dev/demo.sh          keeps running until Ctrl-C, so that an SDK can be pointed at it
#   ONCE=1 deploy/dev/demo.sh   stops by itself
#
# Everything it leaves is in target/demo; target/demo/env can be sourced while it runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

demo=target/demo
weir=target/debug/weir

deploy/dev/needs.sh cargo cc curl

echo "== building weir (the first time takes a few minutes)"
cargo build --package weir --no-default-features

rm -rf "$demo"
mkdir -p "$demo"
data=$demo/data

echo "== weir up, with a stub provider, on free ports"
# A process group of its own: Ctrl-C reaches this script alone, which then asks weir to stop, once.
set -m
"$weir" up --with-stub --stub-script deploy/dev/stub.toml --data "$data" --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --json \
    >"$demo/up.json" 2>"$demo/weir.log" &
weir_pid=$!
set +m

stop() {
    trap - EXIT INT TERM
    kill -TERM "$weir_pid" 2>/dev/null || true
    wait "$weir_pid" 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM

fail() {
    echo "demo: $1" >&2
    tail -n 20 "$demo/weir.log" >&2
    exit 1
}

# Every later step waits for something that can be seen, at most this long.
wait_for() {
    local what=$1
    shift
    for _ in $(seq 1 150); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        kill -0 "$weir_pid" 2>/dev/null || fail "weir ended"
        sleep 0.1
    done
    fail "$what did not come within 15 s"
}

wait_for "the address of weir" test -s "$data/gateway.url"
gateway=$(cat "$data/gateway.url")
wait_for "readiness" curl --silent --fail "$gateway/readyz"

field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$2"; }
key=$(field first_key "$demo/up.json")
[ -n "$key" ] || fail "there is no key in $demo/up.json"

cat >"$demo/env" <<EOF
export OPENAI_BASE_URL='$gateway/v1'
export OPENAI_API_KEY='$key'
export WEIR_ADMIN_URL='$(cat "$data/admin.url")'
export WEIR_ADMIN_TOKEN='$(cat "$data/secrets/admin.token")'
export WEIR_STUB_URL='$(cat "$data/stub.url")'
EOF
chmod 600 "$demo/env"

ask() {
    curl --silent --show-error --no-buffer --dump-header "$demo/head" "$gateway/v1/chat/completions" \
        --header "authorization: Bearer $key" --header 'content-type: application/json' --data "$1"
}
reservation() { sed -n 's/^x-weir-reservation: *\([0-9a-f-]*\).*/\1/p' "$demo/head"; }
is_derived() { "$weir" show "$1" --data "$data" --json | grep -q '"derived": true'; }

echo
echo "== a plain request"
ask '{"model":"gpt-4o-mini","messages":[{"role":"user","content":"What does a weir do?"}]}'
echo
plain=$(reservation)

echo
echo "== a streamed request"
ask '{"model":"gpt-4o-mini","stream":true,"messages":[{"role":"user","content":"And why?"}]}'
streamed=$(reservation)

for id in "$plain" "$streamed"; do
    [ -n "$id" ] || fail "an answer came without x-weir-reservation"
    wait_for "the ledger line of $id" is_derived "$id"
    echo
    echo "== weir show $id"
    "$weir" show "$id" --data "$data"
done

echo
echo "== the ledger: weir ledger export --tenant default"
"$weir" ledger export --tenant default --data "$data" |
    cut -d , -f 1,3-5,9,14-16,18
echo
echo "== the counters: weir budget show --tenant default"
"$weir" budget show --tenant default --data "$data"
echo
echo "== the proof: weir replay --verify"
"$weir" replay --verify --data "$data"

cat <<EOF

== point an OpenAI SDK at it (or: source $demo/env)
export OPENAI_BASE_URL=$gateway/v1
export OPENAI_API_KEY=$key
EOF

if [ -n "${ONCE:-}" ]; then
    exit 0
fi
echo
echo "weir runs; its log is $demo/weir.log. Ctrl-C stops it."
wait "$weir_pid"
