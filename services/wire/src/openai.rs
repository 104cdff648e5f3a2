//! The OpenAI protocols. Chat completions are translated to and from other dialects; Responses and embeddings pass in
//! their own dialect only.

pub mod chat;
pub mod embeddings;
pub mod responses;
