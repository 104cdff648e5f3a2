//! What an attempt's end means: may the provider bill, may another be asked, whose blame was it.
//!
//! The refund follows "was the request sent, and what did the provider say", never the status that our client will see
//! (O58). A complete 4xx or 5xx answer without usage is *not executed*, except the statuses that proxies make up while
//! the model may be running, and each provider's own rows. An error body that carries usage is charged.

use weir_domain::attempt::AttemptVerdict;

use crate::anthropic::messages;
use crate::dialect::{Dialect, Family};
use crate::openai::chat::answer::{AnswerFacts, InBandError};
use crate::openai::chat::usage::read_usage;
use crate::retry_after::RetryAfter;
use crate::usage::Extracted;

/// How an attempt that gave no whole answer ended.
#[derive(Debug, Clone, Copy)]
pub enum Happening<'a> {
    DnsFailed,
    ConnectRefused,
    ConnectTimedOut,
    TlsFailed,
    /// The connection was lost, or time was up, before the first byte of the request went out.
    RequestUnsent,
    /// The connection broke after at least one byte of the request went out and before a whole answer came, be it a
    /// good one or an error's.
    Broken {
        content_seen: bool,
    },
    /// Time was up after at least one byte of the request went out.
    TimedOut {
        content_seen: bool,
    },
    /// A complete answer with an error status.
    Status {
        status: u16,
        body: &'a [u8],
        retry_after: Option<RetryAfter>,
    },
    /// An error object inside a 200, streamed or plain; `usage` is what the provider reported beside or before it.
    InBand {
        error: &'a InBandError,
        usage: Option<&'a Extracted>,
        content_seen: bool,
    },
    /// A 200 that is not this protocol: another content type or encoding, invalid JSON, an event over the bound.
    Garbage {
        content_seen: bool,
    },
    /// The stream ended in good order with choices unfinished (O07).
    EndedEarly {
        content_seen: bool,
    },
}

/// Which special rows apply: what a provider is known to do differently from the rest of its dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProviderRows {
    #[default]
    Plain,
    /// Bills prompts that its content filter refuses with a 400.
    AzureOpenAi,
}

/// Whose blame it was, as breakers and metrics see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The request itself: says nothing about the provider.
    Client,
    /// Our credential, account or catalog entry is wrong for this deployment.
    Configuration,
    /// The provider limits us.
    RateLimited,
    /// The account at the provider has no money or quota left: waiting does not help.
    QuotaExhausted,
    /// The provider is full (503 with that meaning, 529).
    Overloaded,
    /// The provider or the way to it failed.
    Provider,
}

/// What the end of an attempt means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub verdict: AttemptVerdict,
    /// Oddities of the usage in the verdict.
    pub usage: Option<Extracted>,
    pub blame: Blame,
    /// Whether another deployment may be asked, as long as no content was delivered (I4) and the hold allows it. When
    /// false, the provider's answer is the client's answer.
    pub may_fail_over: bool,
    /// The HTTP status for a client if this attempt is the last.
    pub client_status: u16,
    /// How long the provider asked us to stay away.
    pub retry_after: Option<RetryAfter>,
}

impl Judgement {
    /// [`client_status`](Self::client_status) in the client's dialect: an Anthropic client knows a provider that is full
    /// as 529, any other as 503 (O39).
    #[must_use]
    pub const fn status_for(&self, client: Dialect) -> u16 {
        match (client.family(), self.blame, self.client_status) {
            (Family::Anthropic, Blame::Overloaded, 503) => 529,
            (Family::Anthropic | Family::OpenAi, _, status) => status,
        }
    }
}

/// Judges the end of an attempt at a provider that speaks `dialect`.
#[must_use]
pub fn judge(dialect: Dialect, rows: ProviderRows, happening: &Happening<'_>) -> Judgement {
    let family = dialect.family();
    match *happening {
        Happening::DnsFailed | Happening::ConnectRefused | Happening::TlsFailed | Happening::RequestUnsent => {
            transport(AttemptVerdict::NotExecuted, 502)
        }
        Happening::ConnectTimedOut => transport(AttemptVerdict::NotExecuted, 504),
        Happening::Broken { content_seen }
        | Happening::Garbage { content_seen }
        | Happening::EndedEarly { content_seen } => transport(unknown_end(content_seen), 502),
        Happening::TimedOut { content_seen } => transport(unknown_end(content_seen), 504),
        Happening::Status { status, body, retry_after } => judge_status((rows, family), status, body, retry_after),
        Happening::InBand { error, usage, content_seen } => judge_in_band((rows, family), error, usage, content_seen),
    }
}

/// Content proves that the model ran.
const fn unknown_end(content_seen: bool) -> AttemptVerdict {
    if content_seen { AttemptVerdict::ExecutedUsageUnknown } else { AttemptVerdict::MayHaveExecuted }
}

const fn transport(verdict: AttemptVerdict, client_status: u16) -> Judgement {
    Judgement { verdict, usage: None, blame: Blame::Provider, may_fail_over: true, client_status, retry_after: None }
}

/// Which table applies: the provider's rows, and the family whose names its errors have.
type Table = (ProviderRows, Family);

fn judge_status(table: Table, status: u16, body: &[u8], retry_after: Option<RetryAfter>) -> Judgement {
    let (rows, family) = table;
    let error = InBandError::of_body(body);
    let usage = AnswerFacts::scan(body).ok().and_then(|facts| facts.usage_anywhere());
    let usage = usage.map(|span| match family {
        Family::OpenAi => read_usage(span.of(body)),
        Family::Anthropic => messages::usage::read_usage(Some(span.of(body)), None),
    });
    let class = classify(status, Some(&error));
    let verdict = status_verdict(rows, status, Some(&error));
    with_usage(Judgement { verdict, retry_after, ..class.judgement(status) }, usage)
}

fn judge_in_band(table: Table, error: &InBandError, usage: Option<&Extracted>, content_seen: bool) -> Judgement {
    let (rows, family) = table;
    let status = error.status.or_else(|| status_of_code(family, error));
    let class = classify(status.unwrap_or(502), Some(error));
    let verdict = match (content_seen, status) {
        (true, _) => AttemptVerdict::ExecutedUsageUnknown,
        // A code nobody knows proves nothing.
        (false, None) => AttemptVerdict::MayHaveExecuted,
        (false, Some(status)) => status_verdict(rows, status, Some(error)),
    };
    with_usage(Judgement { verdict, ..class.judgement(status.unwrap_or(502)) }, usage.cloned())
}

/// Reported usage outranks every rule about statuses; usage that cannot be read still proves execution.
fn with_usage(judgement: Judgement, usage: Option<Extracted>) -> Judgement {
    let Some(extracted) = usage else { return judgement };
    let verdict = match &extracted.usage {
        Some(usage) => AttemptVerdict::Executed(usage.clone()),
        None => AttemptVerdict::ExecutedUsageUnknown,
    };
    Judgement { verdict, usage: Some(extracted), ..judgement }
}

/// The billing table for complete error answers without usage (design, section 2).
fn status_verdict(rows: ProviderRows, status: u16, error: Option<&InBandError>) -> AttemptVerdict {
    match (rows, status) {
        (ProviderRows::AzureOpenAi, 400) if error.is_some_and(is_content_filter) => {
            AttemptVerdict::ExecutedUsageUnknown
        }
        // Answers that a proxy gives while the model behind it may be running.
        (_, 408 | 502 | 504 | 520..=524) => AttemptVerdict::MayHaveExecuted,
        // Not an error answer at all.
        (_, 0..=399) => AttemptVerdict::MayHaveExecuted,
        (ProviderRows::Plain | ProviderRows::AzureOpenAi, _) => AttemptVerdict::NotExecuted,
    }
}

fn is_content_filter(error: &InBandError) -> bool {
    let names = [error.code.as_deref(), error.kind.as_deref()];
    names.into_iter().flatten().any(|name| matches!(name, "content_filter" | "ResponsibleAIPolicyViolation"))
}

/// Blame, failover and what the client is told.
#[derive(Debug, Clone, Copy)]
struct Class {
    blame: Blame,
    may_fail_over: bool,
    /// `None`: the provider's own status.
    client_status: Option<u16>,
}

impl Class {
    const fn judgement(self, status: u16) -> Judgement {
        let client_status = match self.client_status {
            Some(status) => status,
            None => status,
        };
        let (blame, may_fail_over) = (self.blame, self.may_fail_over);
        let verdict = AttemptVerdict::MayHaveExecuted;
        Judgement { verdict, usage: None, blame, may_fail_over, client_status, retry_after: None }
    }
}

fn classify(status: u16, error: Option<&InBandError>) -> Class {
    let class = |blame, may_fail_over, client_status| Class { blame, may_fail_over, client_status };
    match status {
        // Ours to fix, not the client's: its key was good, and path and model name are the catalog's. Another
        // deployment may do.
        402 if error.is_some_and(is_quota) => class(Blame::QuotaExhausted, true, Some(502)),
        401..=404 => class(Blame::Configuration, true, Some(502)),
        429 if error.is_some_and(is_quota) => class(Blame::QuotaExhausted, true, Some(429)),
        429 => class(Blame::RateLimited, true, None),
        408 | 409 => class(Blame::Provider, true, Some(502)),
        400..=499 => class(Blame::Client, false, None),
        503 | 529 => class(Blame::Overloaded, true, Some(503)),
        504 | 522 | 524 => class(Blame::Provider, true, Some(504)),
        500 | 502 => class(Blame::Provider, true, None),
        // Redirects are not followed, and nobody's client knows what 520 means.
        _ => class(Blame::Provider, true, Some(502)),
    }
}

/// Branches on the code first: the type of a billing refusal varies.
fn is_quota(error: &InBandError) -> bool {
    let names = [error.code.as_deref(), error.kind.as_deref()];
    names.into_iter().flatten().any(|name| {
        matches!(
            name,
            "insufficient_quota"
                | "credit_balance_exhausted"
                | "billing_hard_limit_reached"
                | "billing_error"
                | "enforced_spend_limit_reached"
                | "contract_spend_limit_reached"
                | "linked_organization_billing_unavailable"
                | "linked_organization_spend_limit_reached"
        )
    })
}

/// The status that a named code stands for, for errors inside a 200.
fn status_of_code(family: Family, error: &InBandError) -> Option<u16> {
    let names = [error.code.as_deref(), error.kind.as_deref()];
    names.into_iter().flatten().find_map(|name| match name {
        // This family has a status of its own for it (O39).
        "overloaded_error" if family == Family::Anthropic => Some(529),
        "billing_error" => Some(402),
        "conflict_error" => Some(409),
        "request_too_large" => Some(413),
        "timeout_error" => Some(504),
        "context_length_exceeded"
        | "invalid_request_error"
        | "invalid_value"
        | "unsupported_parameter"
        | "content_filter"
        | "content_policy_violation"
        | "BadRequestError" => Some(400),
        "invalid_api_key" | "authentication_error" => Some(401),
        "permission_error" | "permission_denied" => Some(403),
        "model_not_found" | "not_found_error" | "NotFoundError" => Some(404),
        "rate_limit_exceeded" | "rate_limit_error" | "insufficient_quota" | "slow_down" => Some(429),
        "server_error" | "internal_server_error" | "internal_error" | "api_error" | "InternalServerError" => Some(500),
        "overloaded"
        | "overloaded_error"
        | "server_is_overloaded"
        | "service_unavailable"
        | "service_unavailable_error" => Some(503),
        "timeout" | "upstream_timeout" => Some(504),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
