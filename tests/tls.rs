//! Providers over TLS: the right one is trusted through `ca_file`, any other is refused before a byte of the request is
//! sent, and many streams at once are billed as exactly as one (I9).

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use weir_runtime::tls;
use weir_stub::StubOptions;
use weir_tests::bill;
use weir_tests::catalog::TENANT;
use weir_tests::client::chat;
use weir_tests::{House, PATIENCE, Setup, eventually};

/// Where the provider is reached. Its certificate must say so.
const HOST: &str = "localhost";

/// A certificate authority of the test.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn named(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// A server for `name`, valid until the first day of `until_year`.
    fn server(&self, name: &str, until_year: i32) -> Arc<rustls::ServerConfig> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let (certificate, key_file) = (self.folder.path().join("leaf.pem"), self.folder.path().join("key.pem"));
        std::fs::write(&certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        tls::server_config(&certificate, &key_file).unwrap()
    }

    /// A house that trusts this authority and no other, before a provider that presents `server`.
    async fn house(&self, server: Arc<rustls::ServerConfig>) -> House {
        House::start(Setup {
            config: format!("[upstream]\nca_file = \"{}\"\n", self.folder.path().join("ca.pem").display()),
            stub: StubOptions { tls: Some(server), ..StubOptions::default() },
            provider_host: Some(HOST.to_owned()),
            ..Setup::default()
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_provider_is_trusted() {
    let authority = Authority::named("authority");
    let house = authority.house(authority.server(HOST, 2099)).await;
    let answer = house.client.chat(&chat("fast", false, &json!({"text": "over TLS"}))).await.expect(200);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "over TLS");
    house.at_rest(TENANT, PATIENCE).await.assert_exact(&house).await;
}

/// The provider never saw the request, so it costs nothing and nothing stays held.
async fn refused(authority: &Authority, server: Arc<rustls::ServerConfig>) {
    let house = authority.house(server).await;
    for stream in [false, true] {
        let answer = house.client.chat(&chat("fast", stream, &json!({}))).await;
        assert_eq!(answer.status.as_u16(), 502, "{}", answer.text());
        let reservation = answer.reservation().unwrap();
        let rest = house.at_rest(TENANT, PATIENCE).await;
        rest.assert_exact(&house).await;
        assert!(rest.lines.is_empty() && rest.pending.is_empty() && rest.counters.held.is_zero());
        let story = house.show(&reservation);
        assert_eq!(story["status"], "released", "{story:#}");
        assert_eq!(story["attempts"][0]["outcome"], "not_executed", "{story:#}");
    }
    assert!(house.stub.journal().is_empty(), "a request reached a provider that is not trusted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_name_is_refused_before_anything_is_sent() {
    let authority = Authority::named("authority");
    refused(&authority, authority.server("provider.test", 2099)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_is_refused_before_anything_is_sent() {
    let authority = Authority::named("authority");
    refused(&authority, authority.server(HOST, 2021)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_root_is_refused_before_anything_is_sent() {
    let authority = Authority::named("authority");
    refused(&authority, Authority::named("authority").server(HOST, 2099)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_streams_at_once_are_billed_exactly() {
    const STREAMS: usize = 500;
    /// The handshakes of all streams, on a busy machine.
    const TOGETHER: Duration = Duration::from_secs(60);
    let authority = Authority::named("authority");
    let house = authority.house(authority.server(HOST, 2099)).await;
    // Each provider's stream stays open until all of them are there.
    let script = |number: usize| {
        json!({"chunks": 8, "gap_ms": 20, "hold_open_ms": 10, "before_content_ms": 4_000,
               "usage": {"prompt": 10 + number, "completion": 1 + number % 7}})
    };
    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        let (client, body) = (house.client.clone(), chat("fast", true, &script(number)));
        streams.spawn(async move { client.chat(&body).await });
    }
    let all_open = async || (house.stub.totals().open == STREAMS as u64).then_some(());
    eventually("500 streams at once", TOGETHER, all_open).await;
    while let Some(answer) = streams.join_next().await {
        let answer = answer.unwrap().expect(200);
        let events = answer.events();
        assert_eq!(events.last().map(|event| event.trim()), Some("[DONE]"), "{}", answer.text());
        assert_eq!(events.iter().filter(|event| event.contains(r#""delta":{"content":""#)).count(), 8, "{events:?}");
    }
    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    let calls = bill::calls(&house.stub.journal());
    let billed = calls.iter().map(|(key, call)| (*key, bill::charge(call.billed.unwrap()))).collect();
    assert_eq!(bill::by_attempt(&rest.lines), billed);
    assert_eq!(rest.lines.len(), STREAMS);
}
