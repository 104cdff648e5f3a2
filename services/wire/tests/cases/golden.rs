//! Files in, files out: `UPDATE_GOLDEN=1` writes the right-hand sides, a person reads the difference.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use weir_wire::Dialect::{AnthropicMessages, OpenAiChat};
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::openai::chat::{CapField, DeveloperRole, Limits, PlainAnswer, UpstreamEdits};
use weir_wire::{ClientRequest, Dialect, ProviderAnswer, Target};

use crate::across::{client_side, pass};
use crate::support::*;

fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(kind)
}

/// Runs `transform` over every `*.in.*` file of a folder and compares with its `*.out.*` file.
fn each(kind: &str, transform: impl Fn(&str, &[u8]) -> Vec<u8>) {
    let mut seen = 0;
    for entry in fs::read_dir(folder(kind)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some((case, extension)) = name.split_once(".in.") else { continue };
        seen += 1;
        let out = transform(case, &fs::read(&path).unwrap());
        let expected = path.with_file_name(format!("{case}.out.{extension}"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&expected, &out).unwrap();
            continue;
        }
        let expected = fs::read(&expected).unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected), "{kind}/{case}");
    }
    assert!(seen > 0, "no golden files in {kind}");
}

/// A reasoning model at the vendor itself, and an older compatible server: the suffix of a case says which.
fn edits(case: &str) -> UpstreamEdits<'static> {
    if case.ends_with("_older") {
        UpstreamEdits {
            model: "vendor/model-7b",
            cap: Some((CapField::MaxTokens, 500)),
            supports_stream_options: false,
            correlation: None,
            developer_role: DeveloperRole::System,
        }
    } else {
        UpstreamEdits {
            model: "gpt-x-2026-01-01",
            cap: Some((CapField::MaxCompletionTokens, 500)),
            supports_stream_options: true,
            correlation: Some(("weir_attempt", "018f-1")),
            developer_role: DeveloperRole::Keep,
        }
    }
}

#[test]
fn requests() {
    each("request", |case, body| {
        let body = std::str::from_utf8(body).unwrap();
        parse(body).unwrap().rewrite(&edits(case)).to_vec()
    });
}

#[test]
fn streams() {
    each("stream", |case, stream| relay(&[stream], 1, case.ends_with("_asked")).client.into_bytes());
}

#[test]
fn plain_answers() {
    each("plain", |_, body| PlainAnswer::parse(Bytes::copy_from_slice(body)).unwrap().for_client(ALIAS).to_vec());
}

/// A target across dialects; the suffix of a case says which.
fn target(dialect: Dialect, case: &str) -> Target<'static> {
    Target {
        dialect,
        model: "vendor/model-7b",
        cap: Some(500),
        cap_field: if case.ends_with("_older") { CapField::MaxTokens } else { CapField::MaxCompletionTokens },
        supports_stream_options: !case.ends_with("_older"),
        correlation: Some(("gw_attempt", "018f-1")),
        developer_role: DeveloperRole::Keep,
        version: AnthropicVersion::V2023_06_01,
    }
}

fn translated(from: Dialect, to: Dialect, case: &str, body: &[u8]) -> Vec<u8> {
    let body = Bytes::copy_from_slice(body);
    let request = ClientRequest::parse(from, body, &Limits::default(), AnthropicVersion::V2023_06_01).unwrap();
    let upstream = request.for_target(&target(to, case)).unwrap();
    // Laid out for people; what goes out is one line.
    let document: serde_json::Value = serde_json::from_slice(&upstream.body()).expect("JSON");
    let mut out =
        serde_json::to_vec_pretty(&serde_json::json!({"body": document, "left_out": upstream.left_out})).unwrap();
    out.push(b'\n');
    out
}

#[test]
fn requests_of_chat_for_anthropic() {
    each("chat_to_messages", |case, body| translated(OpenAiChat, AnthropicMessages, case, body));
}

#[test]
fn requests_of_messages_for_openai() {
    each("messages_to_chat", |case, body| translated(AnthropicMessages, OpenAiChat, case, body));
}

#[test]
fn streams_of_openai_for_an_anthropic_client() {
    each("stream_chat_to_messages", |_, stream| {
        pass(OpenAiChat, AnthropicMessages, &[stream], true).client.into_bytes()
    });
}

#[test]
fn streams_of_anthropic_for_a_chat_client() {
    each("stream_messages_to_chat", |case, stream| {
        pass(AnthropicMessages, OpenAiChat, &[stream], case.ends_with("_asked")).client.into_bytes()
    });
}

fn answered(provider: Dialect, client: Dialect, body: &[u8]) -> Vec<u8> {
    let answer = ProviderAnswer::parse(provider, Bytes::copy_from_slice(body)).unwrap();
    let mut out = answer.for_client(&client_side(client, true)).unwrap().to_vec();
    out.push(b'\n');
    out
}

#[test]
fn answers_of_openai_for_an_anthropic_client() {
    each("plain_chat_to_messages", |_, body| answered(OpenAiChat, AnthropicMessages, body));
}

#[test]
fn answers_of_anthropic_for_a_chat_client() {
    each("plain_messages_to_chat", |_, body| answered(AnthropicMessages, OpenAiChat, body));
}
