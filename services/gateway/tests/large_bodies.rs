//! O43: pictures of many megabytes pass, larger bodies are refused so that the client can read why, and many at once
//! are bounded by a configured total instead of by the machine.

#![cfg(test)]

#[expect(dead_code, reason = "each program uses its own part of the harness")]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use support::provider::{After, SocketProvider};
use support::raw::{CHAT, Raw, head};
use support::{House, KEY, MODEL, Setup, body, resident_bytes};
use weir_gateway::GatewayOptions;
use weir_quota::QuotaStore;
use weir_runtime::units::ByteSize;

const PICTURE_BYTES: usize = 20_000_000;

/// Memory is measured of the whole process, so that only one test at a time may use much of it.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A request whose picture is a data URL with `base64_bytes` of base64. Cap and model are such that nothing but the
/// model's name must be rewritten.
fn picture(base64_bytes: usize, model: &str) -> Bytes {
    let mut body = format!(
        r#"{{"model":"{model}","max_completion_tokens":10,"messages":[{{"role":"user","content":[{{"type":"text","text":"what is this?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,"#
    )
    .into_bytes();
    body.extend(b"iVBORw0KGgoAAAANSUhEUgAB".iter().copied().cycle().take(base64_bytes));
    body.extend_from_slice(br#""}}]}]}"#);
    Bytes::from(body)
}

async fn house(max_bodies: ByteSize) -> (House, SocketProvider) {
    let provider = SocketProvider::start(After::Keep).await;
    let options = GatewayOptions { max_body: ByteSize::mib(32), max_bodies, ..GatewayOptions::default() };
    let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], options, ..Setup::default() };
    (House::build(setup).await, provider)
}

fn announced(bytes: usize) -> String {
    head(CHAT, &["content-type: application/json", &format!("content-length: {bytes}")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o43_twenty_megabytes_pass_unchanged_and_forty_are_refused_readably() {
    let _alone = ALONE.lock().await;
    let (house, provider) = house(ByteSize::mib(512)).await;
    let read = house.post(picture(PICTURE_BYTES, MODEL)).await;
    assert_eq!(read.status, 200, "{}", read.text());
    let upstream = picture(PICTURE_BYTES, "vendor/model-0");
    let expected: [u8; 32] = Sha256::digest(&upstream).into();
    let seen = provider.seen();
    assert_eq!(
        (seen[0].body_bytes, seen[0].digest),
        (upstream.len(), expected),
        "nothing but the model's name differs"
    );
    let charged = house.reservation_of(&read).await;
    assert_eq!(charged.charged().tokens, 2);
    // A picture is bounded as a picture, not as 20 million tokens of text.
    assert!(charged.created.hold.tokens < 10_000, "{}", charged.created.hold.tokens);

    let before = house.quota.read(&support::tenant()).await.unwrap();
    let large = picture(2 * PICTURE_BYTES, MODEL);
    // Announced: refused without reading. Chunked: refused at the limit. Both while the client still writes.
    let mut raw = Raw::connect(house.gateway).await;
    let sent = raw.send(announced(large.len())).await.and(raw.send(&large).await);
    let answer = raw.answer().await.unwrap_or_else(|| panic!("the answer can be read, sending: {sent:?}"));
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"), "{}", answer.text());
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let mut raw = Raw::connect(house.gateway).await;
    let chunked = head(CHAT, &["content-type: application/json", "transfer-encoding: chunked"]);
    let start = format!("{chunked}{:x}\r\n", large.len());
    let sent = raw.send(start).await.and(raw.send(&large).await).and(raw.send("\r\n0\r\n\r\n").await);
    let answer = raw.answer().await.unwrap_or_else(|| panic!("the answer can be read, sending: {sent:?}"));
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"), "{}", answer.text());

    // An HTTP library sees the same.
    let read = house.post(large).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    assert_eq!(house.quota.read(&support::tenant()).await.unwrap(), before, "refused before any reservation");
    assert_eq!(provider.seen().len(), 1);

    // The key comes first, for large bodies too.
    let mut raw = Raw::connect(house.gateway).await;
    raw.send(announced(40_000_000).replace(KEY, "weir_live_wrong")).await.unwrap();
    assert_eq!(raw.answer().await.unwrap().status, 401);
    house.assert_at_rest().await;
}

/// What one admitted body takes while it runs: the body itself. What goes upstream, under another model name, shares it.
const COPIES: u64 = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o43_fifty_at_once_are_bounded_by_the_configured_total() {
    let _alone = ALONE.lock().await;
    const FIT: usize = 5;
    let max_bodies = ByteSize::mib(100);
    let (house, provider) = house(max_bodies).await;
    let house = Arc::new(house);
    assert_eq!(house.post(body(false)).await.status, 200);
    provider.close_gate();
    let request = picture(PICTURE_BYTES, MODEL);
    let before = resident_bytes();
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let (house_of_task, request) = (Arc::clone(&house), request.clone());
            house.tasks.spawn("client", async move { house_of_task.post(request).await })
        })
        .collect();
    // Whoever fits waits at the provider; only then may it answer.
    provider.until_seen(1 + FIT).await;
    let grown = resident_bytes().saturating_sub(before);
    provider.open_gate();
    let mut passed = 0;
    for client in clients {
        let read = client.await.unwrap();
        match read.status.as_u16() {
            200 => passed += 1,
            503 => {
                assert_eq!(read.json()["error"]["code"], "memory_full");
                assert!(read.headers.contains_key("retry-after"));
            }
            _ => panic!("{}", read.text()),
        }
    }
    // Those that came late may have found room again.
    assert!((FIT..50).contains(&passed), "{passed} passed");
    let bound = COPIES * max_bodies.as_usize() as u64 + (64 << 20);
    assert!(grown <= bound, "memory grew by {} MiB, the bound is {} MiB", grown >> 20, bound >> 20);
    house.assert_at_rest().await;
    assert_eq!(house.post(request).await.status, 200, "the memory is free again");
}
