//! The table, row by row: the refund follows what happened, not the status the client sees.

use weir_domain::usage::{Meter, Usage};

use super::*;

fn plain(happening: Happening<'_>) -> Judgement {
    judge(Dialect::OpenAiChat, ProviderRows::Plain, &happening)
}

fn status(status: u16, body: &str) -> Judgement {
    plain(Happening::Status { status, body: body.as_bytes(), retry_after: None })
}

fn in_band(error: &str, usage: Option<&Extracted>, content_seen: bool) -> Judgement {
    plain(Happening::InBand { error: &InBandError::read(error.as_bytes()), usage, content_seen })
}

use AttemptVerdict::{Executed, ExecutedUsageUnknown, MayHaveExecuted, NotExecuted};

#[test]
fn o58_transport_failures_by_whether_the_request_went_out() {
    for (happening, verdict, client_status) in [
        (Happening::DnsFailed, NotExecuted, 502),
        (Happening::ConnectRefused, NotExecuted, 502),
        (Happening::ConnectTimedOut, NotExecuted, 504),
        (Happening::TlsFailed, NotExecuted, 502),
        (Happening::RequestUnsent, NotExecuted, 502),
        (Happening::Broken { content_seen: false }, MayHaveExecuted, 502),
        (Happening::Broken { content_seen: true }, ExecutedUsageUnknown, 502),
        (Happening::TimedOut { content_seen: false }, MayHaveExecuted, 504),
        (Happening::Garbage { content_seen: false }, MayHaveExecuted, 502),
        (Happening::EndedEarly { content_seen: true }, ExecutedUsageUnknown, 502),
        (Happening::EndedEarly { content_seen: false }, MayHaveExecuted, 502),
    ] {
        let judged = plain(happening);
        assert_eq!((judged.verdict, judged.client_status), (verdict, client_status), "{happening:?}");
        assert!(judged.may_fail_over, "{happening:?}");
    }
}

#[test]
fn o58_every_error_status_has_a_row() {
    let rows: &[(u16, AttemptVerdict, bool, u16, Blame)] = &[
        (307, MayHaveExecuted, true, 502, Blame::Provider),
        (400, NotExecuted, false, 400, Blame::Client),
        (401, NotExecuted, true, 502, Blame::Configuration),
        (403, NotExecuted, true, 502, Blame::Configuration),
        (404, NotExecuted, true, 502, Blame::Configuration),
        (408, MayHaveExecuted, true, 502, Blame::Provider),
        (413, NotExecuted, false, 413, Blame::Client),
        (422, NotExecuted, false, 422, Blame::Client),
        (429, NotExecuted, true, 429, Blame::RateLimited),
        (500, NotExecuted, true, 500, Blame::Provider),
        (502, MayHaveExecuted, true, 502, Blame::Provider),
        (503, NotExecuted, true, 503, Blame::Overloaded),
        (504, MayHaveExecuted, true, 504, Blame::Provider),
        (520, MayHaveExecuted, true, 502, Blame::Provider),
        (524, MayHaveExecuted, true, 504, Blame::Provider),
        (529, NotExecuted, true, 503, Blame::Overloaded),
        (599, NotExecuted, true, 502, Blame::Provider),
    ];
    for (code, verdict, may_fail_over, client_status, blame) in rows {
        let judged = status(*code, r#"{"error":{"message":"no"}}"#);
        let expected = (verdict.clone(), *may_fail_over, *client_status, *blame);
        assert_eq!((judged.verdict, judged.may_fail_over, judged.client_status, judged.blame), expected, "{code}");
    }
    for code in 0..=999 {
        let judged = status(code, "<html>");
        assert!((400..600).contains(&judged.client_status), "{code} gives {}", judged.client_status);
    }
}

#[test]
fn o58_an_error_body_that_carries_usage_is_charged() {
    let usage = Usage::new([(Meter::InUncached, 9), (Meter::OutVisible, 2)]).unwrap();
    let body = r#"{"error":{"message":"late"},"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;
    assert_eq!(status(500, body).verdict, Executed(usage.clone()));
    assert_eq!(status(400, r#"{"error":{},"usage":{"prompt_tokens":-9}}"#).verdict, ExecutedUsageUnknown);
    let reported = Extracted { usage: Some(usage.clone()), flags: Vec::new() };
    assert_eq!(in_band(r#"{"code":503}"#, Some(&reported), true).verdict, Executed(usage));
}

#[test]
fn azure_bills_prompts_that_its_filter_refuses() {
    let body = br#"{"error":{"code":"content_filter","message":"filtered"}}"#;
    let happening = Happening::Status { status: 400, body, retry_after: None };
    assert_eq!(judge(Dialect::OpenAiChat, ProviderRows::AzureOpenAi, &happening).verdict, ExecutedUsageUnknown);
    assert_eq!(judge(Dialect::OpenAiChat, ProviderRows::Plain, &happening).verdict, NotExecuted);
}

#[test]
fn o06_an_error_inside_a_200_is_judged_by_its_code() {
    for (error, verdict, may_fail_over, client_status) in [
        (r#"{"message":"overloaded","type":"server_error","code":503}"#, NotExecuted, true, 503),
        (r#"{"message":"ctx","code":400}"#, NotExecuted, false, 400),
        (r#"{"message":"ctx","code":"context_length_exceeded"}"#, NotExecuted, false, 400),
        (r#"{"message":"x","code":"rate_limit_exceeded"}"#, NotExecuted, true, 429),
        (r#"{"message":"x","type":"server_error","code":null}"#, NotExecuted, true, 500),
        (r#"{"message":"x","code":7}"#, MayHaveExecuted, true, 502),
        (r#""boom""#, MayHaveExecuted, true, 502),
        (r#"{"message":"x","code":"502"}"#, MayHaveExecuted, true, 502),
    ] {
        let judged = in_band(error, None, false);
        let expected = (verdict, may_fail_over, client_status);
        assert_eq!((judged.verdict, judged.may_fail_over, judged.client_status), expected, "{error}");
        assert_eq!(in_band(error, None, true).verdict, ExecutedUsageUnknown, "{error} after content");
    }
}

#[test]
fn o40_a_provider_limit_keeps_its_wait_and_an_empty_account_is_told_apart() {
    let wait = RetryAfter::from_ms(6_500);
    let limited = plain(Happening::Status { status: 429, body: b"{}", retry_after: Some(wait) });
    assert_eq!((limited.retry_after, limited.blame), (Some(wait), Blame::RateLimited));
    for code in ["insufficient_quota", "credit_balance_exhausted"] {
        let judged = status(429, &format!(r#"{{"error":{{"type":"{code}","code":null}}}}"#));
        assert_eq!(judged.blame, Blame::QuotaExhausted);
        let judged = status(429, &format!(r#"{{"error":{{"type":"billing","code":"{code}"}}}}"#));
        assert_eq!(judged.blame, Blame::QuotaExhausted);
    }
}

#[test]
fn o39_529_is_overload() {
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let judged = status(529, body);
    assert_eq!((judged.verdict, judged.blame, judged.client_status), (NotExecuted, Blame::Overloaded, 503));
    assert!(judged.may_fail_over);
}

fn of_anthropic(status: u16, kind: &str, code: Option<&str>) -> Judgement {
    let details = code.map(|code| format!(r#","details":{{"error_code":"{code}"}}"#)).unwrap_or_default();
    let body = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"m"{details}}},"request_id":"req_1"}}"#);
    let happening = Happening::Status { status, body: body.as_bytes(), retry_after: None };
    judge(Dialect::AnthropicMessages, ProviderRows::Plain, &happening)
}

#[test]
fn o39_o58_error_answers_of_an_anthropic_provider() {
    use Blame::{Client, Configuration, Overloaded, Provider, QuotaExhausted, RateLimited};
    for (status, kind, code, verdict, blame, fails_over) in [
        (400, "invalid_request_error", None, NotExecuted, Client, false),
        (401, "authentication_error", None, NotExecuted, Configuration, true),
        (402, "billing_error", None, NotExecuted, QuotaExhausted, true),
        (404, "not_found_error", None, NotExecuted, Configuration, true),
        (413, "request_too_large", None, NotExecuted, Client, false),
        (429, "rate_limit_error", None, NotExecuted, RateLimited, true),
        (429, "rate_limit_error", Some("ramp_limit_exceeded"), NotExecuted, RateLimited, true),
        (429, "rate_limit_error", Some("enforced_spend_limit_reached"), NotExecuted, QuotaExhausted, true),
        (500, "api_error", None, NotExecuted, Provider, true),
        (504, "timeout_error", None, MayHaveExecuted, Provider, true),
        (529, "overloaded_error", None, NotExecuted, Overloaded, true),
    ] {
        let judged = of_anthropic(status, kind, code);
        assert_eq!(
            (judged.verdict, judged.blame, judged.may_fail_over),
            (verdict, blame, fails_over),
            "{status} {kind}"
        );
    }
    let full = of_anthropic(529, "overloaded_error", None);
    assert_eq!((full.status_for(Dialect::OpenAiChat), full.status_for(Dialect::AnthropicMessages)), (503, 529));
}

#[test]
fn o39_an_overload_inside_a_200_is_a_529() {
    let error = InBandError::read(br#"{"type":"overloaded_error","message":"busy"}"#);
    for (dialect, client, status) in [
        (Dialect::AnthropicMessages, Dialect::AnthropicMessages, 529),
        (Dialect::AnthropicMessages, Dialect::OpenAiChat, 503),
        (Dialect::OpenAiChat, Dialect::OpenAiChat, 503),
        (Dialect::OpenAiChat, Dialect::AnthropicMessages, 529),
    ] {
        let happening = Happening::InBand { error: &error, usage: None, content_seen: false };
        let judged = judge(dialect, ProviderRows::Plain, &happening);
        assert_eq!((judged.verdict.clone(), judged.blame), (NotExecuted, Blame::Overloaded));
        assert_eq!(judged.status_for(client), status, "{dialect} for {client}");
    }
}

#[test]
fn usage_in_an_anthropic_error_is_a_bill() {
    let body =
        br#"{"type":"error","error":{"type":"api_error","message":"m"},"usage":{"input_tokens":5,"output_tokens":2}}"#;
    let happening = Happening::Status { status: 500, body, retry_after: None };
    let judged = judge(Dialect::AnthropicMessages, ProviderRows::Plain, &happening);
    let expected = Usage::new([(Meter::InUncached, 5), (Meter::OutVisible, 2)]).unwrap();
    assert_eq!(judged.verdict, Executed(expected));
}
