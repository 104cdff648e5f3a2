#!/usr/bin/env bash
# Checks that the commands named on the line are there. As root on Debian it installs what is missing; elsewhere it says
# what to run.
#
#   deploy/dev/needs.sh cargo cc curl
set -euo pipefail

package_of() {
    case $1 in
    cc) echo build-essential ;;
    python-venv) echo python3-venv ;;
    node) echo nodejs ;;
    java) echo openjdk-17-jdk-headless ;;
    mvn) echo maven ;;
    setpriv) echo util-linux ;;
    *) echo "$1" ;;
    esac
}

has() {
    case $1 in
    # Debian's python3 comes without the module that makes virtual environments.
    python-venv) python3 -c 'import ensurepip, venv' ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

missing=()
for command in "$@"; do
    has "$command" && continue
    if [ "$command" = cargo ]; then
        echo "needs: there is no cargo; install Rust 1.95 or newer: https://rustup.rs" >&2
        exit 1
    fi
    missing+=("$(package_of "$command")")
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
