//! Which script a request gets, and TLS.

use std::fs;
use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Client, PLAIN, STREAM, ask, script, stub};
use crate::script::Scripts;
use crate::{Stub, StubOptions};

fn completion(answer: &super::client::Answer) -> i64 {
    answer.json()["usage"]["completion_tokens"].as_i64().unwrap()
}

#[tokio::test]
async fn queue_then_header_then_model_then_default() {
    let scripts = Scripts::from_toml(
        "[default.usage]\ncompletion = 1\n[scripts.m2.usage]\ncompletion = 2\n[scripts.named.usage]\ncompletion = 3",
    )
    .unwrap();
    let stub = Stub::start(StubOptions { scripts, ..StubOptions::default() }).unwrap();
    let mut client = Client::connect(&stub).await;
    let other = PLAIN.replace("\"m\"", "\"m2\"");
    assert_eq!(completion(&client.ask(PLAIN).await), 1);
    assert_eq!(completion(&client.ask(&other).await), 2);
    let named = client.call("POST", "/v1/chat/completions", "x-stub-script: named\r\n", &other).await;
    assert_eq!(completion(&named), 3);
    let unknown = client.call("POST", "/v1/chat/completions", "x-stub-script: nobody\r\n", &other).await;
    assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("nobody"));

    let queue = json!({"model": "m2", "scripts": [{"usage": {"completion": 8}}, {"usage": {"completion": 9}}]});
    assert_eq!(client.call("POST", "/stub/script", "", &queue.to_string()).await.status, 204);
    assert_eq!(completion(&client.ask(PLAIN).await), 1, "the queue is of another model");
    assert_eq!(completion(&client.ask(&other).await), 8);
    assert_eq!(completion(&client.ask(&other).await), 9);
    assert_eq!(completion(&client.ask(&other).await), 2, "the queue is used up");
    stub.queue("m2", vec![script("usage = { completion = 5 }")]).unwrap();
    assert_eq!(client.call("DELETE", "/stub/script", "", "").await.status, 204);
    assert_eq!(completion(&client.ask(&other).await), 2);
    let wrong = json!({"model": "m2", "scripts": [{"chunkz": 1}]});
    let refused = client.call("POST", "/stub/script", "", &wrong.to_string()).await;
    assert!(refused.status == 400 && refused.text().contains("chunkz"));
}

#[tokio::test]
async fn a_request_changes_its_script_in_headers_metadata_and_prompt() {
    let stub = stub("chunks = 2");
    let mut client = Client::connect(&stub).await;
    let by_header = client.call("POST", "/v1/chat/completions", "x-stub-chunks: 5\r\n", STREAM).await;
    assert_eq!(by_header.content().split_whitespace().count(), 5);

    let object = PLAIN.replace("\"model\"", r#""metadata":{"stub":{"chunks":6},"user":"u"},"model""#);
    assert_eq!(completion(&client.ask(&object).await), 6);
    let text = PLAIN.replace("\"model\"", r#""metadata":{"stub":"{\"chunks\":7}"},"model""#);
    assert_eq!(completion(&client.ask(&text).await), 7);

    let in_prompt = PLAIN.replace("hi", r#"hi [[stub {\"chunks\":8}]]"#);
    assert_eq!(completion(&client.ask(&in_prompt).await), 8);
    let in_part = PLAIN.replace("\"hi\"", r#"[{"type":"text","text":"[[stub {\"chunks\":9}]]"}]"#);
    assert_eq!(completion(&client.ask(&in_part).await), 9);

    let broken = client.ask(&PLAIN.replace("hi", "[[stub {nothing")).await;
    assert!(broken.status == 400 && broken.text().contains("stub script"));
    assert_eq!(completion(&client.ask(PLAIN).await), 2, "changes last for one request");
}

#[tokio::test]
async fn a_slow_reader_leaves_the_body_in_the_senders_buffers() {
    let stub = stub("");
    let mut client = Client::connect(&stub).await;
    let started = std::time::Instant::now();
    let answer = client.call("POST", "/v1/chat/completions", "x-stub-read-delay-ms: 30\r\n", PLAIN).await;
    assert_eq!(answer.status, 200);
    assert!(started.elapsed() >= std::time::Duration::from_millis(30));
}

#[tokio::test]
async fn the_same_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = weir_runtime::tls::server_config(&certificate, &key).unwrap();
    let stub = Stub::start(StubOptions { tls: Some(tls), ..StubOptions::default() }).unwrap();
    assert!(stub.url().starts_with("https://127.0.0.1:"));

    let client = weir_runtime::tls::client_config(Some(&certificate)).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&client));
    let tcp = TcpStream::connect(stub.addr()).await.unwrap();
    let mut stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    let length = PLAIN.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{PLAIN}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("word0 word1 word2"));
}

#[tokio::test]
async fn a_whole_file_of_scripts_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stub.toml");
    fs::write(&file, "[default]\nchunks = 1\n[scripts.broken]\nfault = { kind = 'reset', after_chunks = 3 }\n")
        .unwrap();
    let scripts = Scripts::from_file(&file).unwrap();
    assert_eq!(scripts.default.chunks, 1);
    let stub = Stub::start(StubOptions { scripts, ..StubOptions::default() }).unwrap();
    assert_eq!(completion(&ask(&stub, PLAIN).await), 1);
    let error = Scripts::from_file(&folder.path().join("missing.toml")).unwrap_err().to_string();
    assert!(error.contains("missing.toml"), "{error}");
}
