#!/usr/bin/env bash
# Everything that must hold, in the order in which it fails cheapest. What runs here is what CI runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/dev/needs.sh cargo cc curl python-venv node npm
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

step() {
    echo
    echo "== $1"
    shift
    "$@"
}

step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --quiet -- --deny warnings
step "documentation" env RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --document-private-items --quiet
step "layers" cargo test --package weir-tests --test layers
step "unit, property and conformance tests" cargo test --workspace --exclude weir-tests
step "end to end" cargo test --package weir-tests
