//! The quota store on real Redis servers, which the project's own script starts. Skipped only by `WEIR_SKIP_STACK=1`.
#![cfg(test)]

mod cluster;
mod single;
mod support;
