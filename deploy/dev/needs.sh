#!/usr/bin/env bash
# Checks that the commands named on the line are there. As root on Debian it installs what is missing; elsewhere it says
# what to run.
#
#   deploy/dev/needs.sh cargo cc curl
set -euo pipefail

package_of() {
    case $1 in
    cc) echo build-essential ;;
    python3) echo python3-venv ;;
    node | npm) echo nodejs npm ;;
    *) echo "$1" ;;
    esac
}

missing=()
for command in "$@"; do
    command -v "$command" >/dev/null 2>&1 && continue
    if [ "$command" = cargo ]; then
        echo "needs: there is no cargo; install Rust 1.95 or newer: https://rustup.rs" >&2
        exit 1
    fi
    read -ra packages <<<"$(package_of "$command")"
    missing+=("${packages[@]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "needs: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "needs: missing ${missing[*]}; run: sudo apt-get install -y ${missing[*]}" >&2
    exit 1
fi
