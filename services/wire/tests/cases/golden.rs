//! Files in, files out: `UPDATE_GOLDEN=1` writes the right-hand sides, a person reads the difference.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use weir_wire::openai::chat::{CapField, DeveloperRole, PlainAnswer, UpstreamEdits};

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
