#!/usr/bin/env bash
# Makes the secrets of compose.yaml that are not there yet; those that are stay. The provider's key is yours to give:
#
#   OPENAI_API_KEY=sk-… deploy/compose/make-secrets.sh
#
# Another pepper makes every virtual key invalid, another master key makes the control store unreadable: keep a copy.
set -euo pipefail
cd "$(dirname "$0")"

# Nobody else enters the folder; a container's own user reads the files that are mounted into it.
mkdir -p secrets
chmod 700 secrets
keep() {
    [ ! -s "secrets/$1" ] || return 0
    cat >"secrets/$1"
    chmod 444 "secrets/$1"
}
for name in pepper master_key admin_token; do
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' | keep "$name"
done
if [ ! -s secrets/provider_key ]; then
    [ -n "${OPENAI_API_KEY:-}" ] || { echo "make-secrets: set OPENAI_API_KEY, or write secrets/provider_key" >&2; exit 1; }
    printf '%s' "$OPENAI_API_KEY" | keep provider_key
fi
