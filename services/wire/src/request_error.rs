//! Why a request body is refused, in words that let a client fix it.

use crate::json::{JsonError, Position};

/// The stable code of a refusal; the client sees it in its error envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestErrorCode {
    /// Not JSON, not UTF-8, or nested too deeply.
    InvalidJson,
    MissingField,
    InvalidValue,
    /// A field that matters stands there twice: which one counts would depend on who reads it.
    DuplicateField,
    /// More of something than Weir accepts in one request.
    TooMany,
    /// Good in the client's dialect, and without a counterpart in that of any provider that is left.
    NotCarried,
    /// Names state that is not here.
    NotFound,
}

impl RequestErrorCode {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::MissingField => "missing_required_parameter",
            Self::InvalidValue => "invalid_value",
            Self::DuplicateField => "duplicate_field",
            Self::TooMany => "too_many_items",
            Self::NotCarried => "not_supported_by_provider",
            Self::NotFound => "state_not_found",
        }
    }
}

/// A request body that cannot be served; always the client's to fix, always a 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The field as the client writes it, such as `stream_options.include_usage`; none for the body as a whole.
    pub field: Option<String>,
    pub position: Option<Position>,
    /// Says what is wrong and what would be right; never echoes the client's values.
    pub message: String,
    pub code: RequestErrorCode,
}

/// A refusal before its position is known in lines: parsing works with offsets, [`Refusal::locate`] turns them into
/// what people count.
#[derive(Debug)]
pub(crate) struct Refusal {
    field: Option<String>,
    offset: Option<usize>,
    message: String,
    code: RequestErrorCode,
}

impl Refusal {
    pub(crate) fn new(code: RequestErrorCode, field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), offset: None, message: message.into(), code }
    }

    /// About the body as a whole.
    pub(crate) fn whole(code: RequestErrorCode, message: impl Into<String>) -> Self {
        Self { field: None, offset: None, message: message.into(), code }
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(RequestErrorCode::InvalidValue, field, message)
    }

    pub(crate) fn at(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }

    pub(crate) fn locate(self, body: &[u8]) -> RequestError {
        let position = self.offset.map(|offset| Position::of(body, offset));
        let message = match position {
            Some(position) => format!("{} ({position})", self.message),
            None => self.message,
        };
        RequestError { field: self.field, position, message, code: self.code }
    }
}

impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        Self {
            field: None,
            offset: Some(error.offset),
            message: format!("The request body is not valid JSON: {}", error.fault),
            code: RequestErrorCode::InvalidJson,
        }
    }
}
