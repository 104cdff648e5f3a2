//! Every way a request can be answered with an error: one table of status, code and advice, in the client's dialect.
//!
//! A refusal by the gateway is final (I1). `x-should-retry: false` stands wherever money may have been spent or a retry
//! cannot help, because official SDKs retry 408, 409, 429 and all of 5xx by themselves.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use weir_domain::ids::ReservationId;
use weir_domain::money::NanoUsd;
use weir_domain::quota::{Limit, Measure, RateStandings, Unit};
use weir_wire::anthropic::{AnthropicVersion, UnknownVersion};
use weir_wire::envelope::{ClientError, ERROR_CONTENT_TYPE, error_body};
use weir_wire::retry_after::RetryAfter;
use weir_wire::{Dialect, RequestError};

use crate::client::ClientBody;
use crate::headers::{insert, insert_request_id};

const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The longest wait that is worth telling a client to retry after; a longer one is a refusal for now (O40).
const LONGEST_RETRY_MS: i64 = 120_000;

/// Why a request is not answered with content, by whose word: each group has its part of the table.
#[derive(Debug)]
pub(crate) enum Refusal {
    Caller(CallerRefusal),
    Policy(PolicyRefusal),
    Path(PathRefusal),
    Body(BodyRefusal),
    Limit(LimitRefusal),
    Idempotency(IdempotencyRefusal),
    Unavailable(Unavailable),
    /// The provider's answer is the client's answer.
    Relayed {
        status: u16,
        error: Box<ClientError>,
        retry_after: Option<RetryAfter>,
        may_have_cost: bool,
    },
}

/// The virtual key opens nothing.
#[derive(Debug)]
pub(crate) enum CallerRefusal {
    Missing,
    Unknown,
    Expired { prefix: String },
    Revoked,
}

/// What was asked for is not the caller's to ask.
#[derive(Debug)]
pub(crate) enum PolicyRefusal {
    ModelNotAllowed { model: String },
    ToolDenied { tool: String },
    UnknownModel { model: String },
}

#[derive(Debug)]
pub(crate) enum PathRefusal {
    NoSuchPath,
    WrongMethod { allow: &'static str },
}

#[derive(Debug)]
pub(crate) enum BodyRefusal {
    UnsupportedMediaType,
    TooLarge {
        limit_bytes: usize,
    },
    TooSlow,
    Broken,
    /// All request bodies together are at their bound.
    MemoryFull,
    Version(UnknownVersion),
    Invalid(RequestError),
}

#[derive(Debug)]
pub(crate) enum LimitRefusal {
    /// No window could ever admit the hold.
    Never {
        limit: Box<Limit>,
        needed: i64,
    },
    Reached {
        limit: Box<Limit>,
        retry_after_ms: Option<i64>,
        rates: Box<RateStandings>,
    },
    /// The tenant's limits could not cover another possible execution.
    NotCovered,
}

#[derive(Debug)]
pub(crate) enum IdempotencyRefusal {
    BadKey,
    /// Its call runs, and its answer is not recorded at this gateway.
    KeyRunning {
        reservation: ReservationId,
    },
    /// Its call was made, and its answer is not kept (any more).
    KeyInUse {
        reservation: Option<ReservationId>,
    },
    KeyReused {
        reservation: Option<ReservationId>,
    },
}

/// Nobody's fault but ours, or nobody there to serve.
#[derive(Debug)]
pub(crate) enum Unavailable {
    Unpriced { model: String },
    NoEligible { reason: &'static str },
    Quota,
    Log,
    Stopping,
    Internal,
}

macro_rules! groups {
    ($($variant:ident($group:ident),)*) => {
        $(impl From<$group> for Refusal {
            fn from(refusal: $group) -> Self {
                Self::$variant(refusal)
            }
        })*
    };
}

groups! {
    Caller(CallerRefusal),
    Policy(PolicyRefusal),
    Path(PathRefusal),
    Body(BodyRefusal),
    Limit(LimitRefusal),
    Idempotency(IdempotencyRefusal),
    Unavailable(Unavailable),
}

/// One row of the table.
struct Row {
    status: u16,
    error: ClientError,
    retry_after: Option<RetryAfter>,
    should_retry: Option<bool>,
}

fn row(status: u16, kind: &str, code: &str, message: impl Into<String>) -> Row {
    Row { status, error: ClientError::new(kind, code, message), retry_after: None, should_retry: None }
}

impl Row {
    fn param(mut self, param: Option<&str>) -> Self {
        self.error = self.error.with_param(param);
        self
    }

    fn never_retry(mut self) -> Self {
        self.should_retry = Some(false);
        self
    }

    /// What is missing now may be there in a second.
    fn retry_soon(mut self) -> Self {
        self.retry_after = Some(RetryAfter::from_ms(1_000));
        self
    }

    fn retry_after(mut self, wait_ms: Option<i64>) -> Self {
        match wait_ms {
            Some(wait_ms) if wait_ms <= LONGEST_RETRY_MS => {
                self.retry_after = Some(RetryAfter::from_ms(u64::try_from(wait_ms).unwrap_or(0)));
                self
            }
            // A wait of hours: say it, and say that retrying in a loop does not help.
            Some(wait_ms) => {
                self.retry_after = Some(RetryAfter::from_ms(u64::try_from(wait_ms).unwrap_or(0)));
                self.never_retry()
            }
            None => self.never_retry(),
        }
    }
}

const INVALID: &str = "invalid_request_error";
const AUTHENTICATION: &str = "authentication_error";
const PERMISSION: &str = "permission_error";
const RATE_LIMIT: &str = "rate_limit_error";
const UNAVAILABLE: &str = "service_unavailable_error";

impl CallerRefusal {
    fn row(&self) -> Row {
        let row = match self {
            Self::Missing => row(
                401,
                AUTHENTICATION,
                "missing_api_key",
                "No API key was sent. Send a Weir key as `Authorization: Bearer …`, or to /v1/messages as `x-api-key`.",
            ),
            Self::Unknown => row(
                401,
                AUTHENTICATION,
                "invalid_api_key",
                "This API key is not known here. Check that it is a Weir key and was copied whole.",
            ),
            Self::Expired { prefix } => {
                row(401, AUTHENTICATION, "expired_api_key", format!("The API key `{prefix}…` has expired."))
            }
            Self::Revoked => row(401, AUTHENTICATION, "revoked_api_key", "This API key was revoked."),
        };
        row.never_retry()
    }
}

impl PolicyRefusal {
    fn row(&self) -> Row {
        let row = match self {
            Self::ModelNotAllowed { model } => row(
                403,
                PERMISSION,
                "model_not_allowed",
                format!("This API key may not use the model `{model}`. `GET /v1/models` lists what it may use."),
            )
            .param(Some("model")),
            Self::ToolDenied { tool } => {
                row(403, PERMISSION, "tool_denied", format!("The tool `{tool}` is denied by policy."))
                    .param(Some("tools"))
            }
            Self::UnknownModel { model } => row(
                404,
                INVALID,
                "model_not_found",
                format!("There is no model `{model}`. `GET /v1/models` lists what this key may use."),
            )
            .param(Some("model")),
        };
        row.never_retry()
    }
}

impl PathRefusal {
    fn row(&self) -> Row {
        match self {
            Self::NoSuchPath => row(404, INVALID, "not_found", "There is no such path."),
            Self::WrongMethod { allow } => {
                row(405, INVALID, "method_not_allowed", format!("This path takes {allow} only."))
            }
        }
    }
}

impl BodyRefusal {
    fn row(&self) -> Row {
        match self {
            Self::UnsupportedMediaType => row(
                415,
                INVALID,
                "unsupported_media_type",
                "The body must be JSON: send `content-type: application/json` without a content encoding.",
            ),
            Self::TooLarge { limit_bytes } => {
                row(413, INVALID, "request_too_large", format!("The body is larger than {limit_bytes} bytes."))
                    .never_retry()
            }
            Self::TooSlow => row(408, INVALID, "request_timeout", "The body did not arrive in time.").never_retry(),
            Self::Broken => row(400, INVALID, "request_broken", "The body broke off."),
            Self::Invalid(error) => {
                let at = error
                    .position
                    .map(|at| format!(" (line {}, column {}, byte {})", at.line, at.column, at.offset))
                    .unwrap_or_default();
                row(400, INVALID, error.code.name(), format!("{}{at}", error.message)).param(error.field.as_deref())
            }
            Self::Version(error) => {
                row(400, INVALID, "unknown_version", error.to_string()).param(Some(AnthropicVersion::HEADER))
            }
            Self::MemoryFull => {
                row(503, UNAVAILABLE, "memory_full", "Too many large requests at once. Retry shortly.").retry_soon()
            }
        }
    }
}

impl LimitRefusal {
    /// Whether a smaller hold might have been admitted.
    const fn is_of_amounts(&self) -> bool {
        let measure = match self {
            Self::Never { limit, .. } | Self::Reached { limit, .. } => limit.measure,
            Self::NotCovered => return false,
        };
        match measure {
            Measure::Calendar { unit, .. } | Measure::PerMinute { unit } => !matches!(unit, Unit::Requests),
            Measure::Concurrent => false,
        }
    }

    fn row(&self) -> Row {
        match self {
            Self::Never { limit, needed } => row(
                400,
                INVALID,
                "request_exceeds_limit",
                format!(
                    "The worst case of this request needs {} and the limit `{limit}` never has room for it. Lower \
                     the output cap or shorten the prompt.",
                    amount(limit, *needed)
                ),
            )
            .never_retry(),
            Self::Reached { limit, retry_after_ms, rates: _ } => {
                row(429, RATE_LIMIT, limit_code(limit), format!("The limit `{limit}` has no room for this request."))
                    .retry_after(*retry_after_ms)
            }
            Self::NotCovered => row(
                429,
                RATE_LIMIT,
                "not_covered",
                "A provider gave no answer, and the limits do not cover asking another one.",
            )
            .never_retry(),
        }
    }
}

impl IdempotencyRefusal {
    fn row(&self) -> Row {
        match self {
            Self::BadKey => row(
                400,
                INVALID,
                "invalid_idempotency_key",
                "`Idempotency-Key` must be 1 to 255 visible ASCII characters.",
            ),
            Self::KeyReused { reservation } => row(
                422,
                INVALID,
                "idempotency_key_reused",
                format!("This Idempotency-Key belongs to another body{}. Use a new key.", named(*reservation)),
            )
            .never_retry(),
            Self::KeyInUse { reservation } => row(
                409,
                INVALID,
                "idempotency_key_in_use",
                format!(
                    "This Idempotency-Key belongs to a call{} whose answer is not kept; it is not executed again.",
                    named(*reservation)
                ),
            )
            .never_retry(),
            Self::KeyRunning { reservation } => row(
                409,
                INVALID,
                "idempotency_key_running",
                format!("The call of this Idempotency-Key (reservation {reservation}) is still running."),
            )
            .retry_soon(),
        }
    }
}

/// A reservation in brackets, where it is known.
fn named(reservation: Option<ReservationId>) -> String {
    reservation.map(|id| format!(" (reservation {id})")).unwrap_or_default()
}

impl Unavailable {
    fn row(&self) -> Row {
        match self {
            Self::Unpriced { model } => row(
                503,
                UNAVAILABLE,
                "model_unpriced",
                format!("No deployment of `{model}` has a price, so it is not served. The operator must add one."),
            )
            .never_retry(),
            Self::NoEligible { reason } => row(
                503,
                UNAVAILABLE,
                reason,
                format!("No deployment can serve this request ({}).", reason.replace('_', " ")),
            ),
            Self::Quota => {
                row(503, UNAVAILABLE, "quota_unavailable", "Limits cannot be checked right now.").retry_soon()
            }
            Self::Log => {
                row(503, UNAVAILABLE, "log_unavailable", "Accounting is not available right now.").retry_soon()
            }
            Self::Stopping => row(503, UNAVAILABLE, "stopping", "The gateway is stopping.").retry_soon(),
            Self::Internal => {
                row(500, UNAVAILABLE, "internal_error", "Something went wrong in the gateway.").never_retry()
            }
        }
    }
}

impl Refusal {
    fn row(&self) -> Row {
        match self {
            Self::Caller(refusal) => refusal.row(),
            Self::Policy(refusal) => refusal.row(),
            Self::Path(refusal) => refusal.row(),
            Self::Body(refusal) => refusal.row(),
            Self::Limit(refusal) => refusal.row(),
            Self::Idempotency(refusal) => refusal.row(),
            Self::Unavailable(refusal) => refusal.row(),
            Self::Relayed { status, error, retry_after, may_have_cost } => {
                let should_retry = if *may_have_cost { Some(false) } else { None };
                Row { status: *status, error: (**error).clone(), retry_after: *retry_after, should_retry }
            }
        }
    }

    /// Whether a limit of tokens or money refused, which a smaller hold might pass.
    pub(crate) const fn is_of_amounts(&self) -> bool {
        matches!(self, Self::Limit(refusal) if refusal.is_of_amounts())
    }

    pub(crate) fn status(&self) -> u16 {
        self.row().status
    }

    /// The error as a client sees it inside a stream whose status is out already.
    pub(crate) fn client_error(&self) -> ClientError {
        self.row().error
    }

    /// The stable code, for logs and metrics.
    pub(crate) fn code(&self) -> String {
        self.row().error.code.unwrap_or_default()
    }

    /// How the rates stand that have no room.
    pub(crate) fn rates(&self) -> Option<&RateStandings> {
        match self {
            Self::Limit(LimitRefusal::Reached { rates, .. }) => Some(rates),
            Self::Limit(LimitRefusal::Never { .. } | LimitRefusal::NotCovered)
            | Self::Caller(_)
            | Self::Policy(_)
            | Self::Path(_)
            | Self::Body(_)
            | Self::Idempotency(_)
            | Self::Unavailable(_)
            | Self::Relayed { .. } => None,
        }
    }

    pub(crate) fn response(&self, dialect: Dialect, request_id: &str, extra: HeaderMap) -> Response<ClientBody> {
        let row = self.row();
        let mut response = Response::new(ClientBody::whole(error_body(dialect, row.status, &row.error, request_id)));
        *response.status_mut() = StatusCode::from_u16(row.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let headers = response.headers_mut();
        headers.extend(extra);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(ERROR_CONTENT_TYPE));
        insert_request_id(headers, dialect, request_id);
        if let Some(wait) = row.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.header_seconds()));
            if wait.as_ms() % 1_000 != 0 {
                headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait.as_ms()));
            }
        }
        if let Some(should) = row.should_retry {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(if should { "true" } else { "false" }));
        }
        if let Self::Path(PathRefusal::WrongMethod { allow }) = self {
            insert(headers, http::header::ALLOW, allow);
        }
        response
    }
}

/// The stable code of a limit's kind.
const fn limit_code(limit: &Limit) -> &'static str {
    match limit.measure {
        Measure::Calendar { unit: Unit::Usd, .. } => "budget_exceeded",
        Measure::Calendar { unit: Unit::Tokens, .. } => "token_quota_exceeded",
        Measure::Calendar { unit: Unit::Requests, .. } => "request_quota_exceeded",
        Measure::PerMinute { unit: Unit::Tokens } => "tokens_per_minute_exceeded",
        // Money has no rate.
        Measure::PerMinute { unit: Unit::Requests | Unit::Usd } => "requests_per_minute_exceeded",
        Measure::Concurrent => "concurrency_exceeded",
    }
}

fn amount(limit: &Limit, needed: i64) -> String {
    match limit.measure {
        Measure::Calendar { unit: Unit::Usd, .. } => format!("${}", NanoUsd::from_nanos(needed)),
        Measure::Calendar { unit, .. } | Measure::PerMinute { unit } => format!("{needed} {unit}"),
        Measure::Concurrent => format!("{needed} slots"),
    }
}
