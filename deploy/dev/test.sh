#!/usr/bin/env bash
# Everything that must hold, in the order in which it fails cheapest. What runs here is what CI runs.
#
# Every step selects the whole workspace and only then, by kind or name, what it runs: another selection of packages is
# another set of features, and cargo would compile most of the dependencies once more for it.
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/dev/needs.sh cargo cc curl python-venv node npm
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

step() {
    local what=$1 began=$SECONDS
    shift
    echo
    echo "== $what"
    "$@"
    echo "== $what: $((SECONDS - began)) s"
}

# Naming an example is what makes cargo take the features of dev-dependencies, as the lints do.
document() {
    RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --document-private-items --quiet \
        --lib --bin weir-bench --examples
}

step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --quiet -- --deny warnings
step "what ships, without what only tests ask for" cargo check --package weir --quiet
step "documentation" document
step "build" cargo test --workspace --no-run --quiet
step "layers" cargo test --workspace --test layers
step "unit, property, conformance and end to end tests" cargo test --workspace
