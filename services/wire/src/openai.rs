//! The OpenAI protocols. Chat completions now; Responses and embeddings join as siblings of [`chat`].

pub mod chat;
