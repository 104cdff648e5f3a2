//! `POST /v1/responses`, both ways, in its own dialect only.
//!
//! An answer and every event of a stream name the response; the ones that end it carry it whole, usage included. State
//! lives at the provider: `store` (true unless the client says otherwise), `previous_response_id` and `conversation` are
//! facts, because only the deployment that has the state can go on from it.

mod parse;
pub mod request;

pub mod ids;

pub mod editor;
pub mod event;
pub mod response;
pub mod stream;
pub mod usage;

pub use editor::ResponseEditor;
pub use event::{ResponseFacts, ResponseStatus};
pub use ids::AnswerIds;
pub use request::ResponsesRequest;
pub use response::ResponseAnswer;
pub use stream::{ResponseReader, ResponseStep};
