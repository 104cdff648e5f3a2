//! The cases of the design by their ids, through the crate's public functions only: what a gateway would do with them.

mod support;

mod golden;
mod request;
mod rewrite;
mod stream;
mod timing;
