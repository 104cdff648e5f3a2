//! The cases of the design by their ids, through the crate's public functions only: what a gateway would do with them.

// `cfg(test)` tells clippy that helpers are tests too.
#[cfg(test)]
mod support;

#[cfg(test)]
mod across;

#[cfg(test)]
mod carried;
#[cfg(test)]
mod chat_across;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod messages_request;
#[cfg(test)]
mod messages_stream;
#[cfg(test)]
mod request;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod rewrite;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod timing;
