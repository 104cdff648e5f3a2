//! The Anthropic protocol: messages, and the count of their tokens. Its two API versions differ in what they accept.

mod version;

pub mod messages;

pub use version::{AnthropicVersion, UnknownVersion, upstream_query};

/// Path below a provider's base URL that counts a prompt's tokens: the body of a message request without `max_tokens`,
/// answered by `{"input_tokens": N}`. It runs no model and bills nothing.
pub const COUNT_TOKENS_PATH: &str = "/messages/count_tokens";
