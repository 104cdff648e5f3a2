//! Handshakes against a certificate authority made for the test.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{TlsError, client_config, server_config};
use crate::listener::{Connection, ListenerOptions, bind, serve};
use crate::tasks::Tasks;

struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    ca_file: PathBuf,
}

impl Authority {
    fn named(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca_file = folder.path().join("ca.pem");
        fs::write(&ca_file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key), ca_file }
    }

    /// A server for `name`, valid until the first day of `until_year`.
    fn server(&self, name: &str, until_year: i32) -> Arc<rustls::ServerConfig> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let (certificate_file, key_file) = (self.folder.path().join("leaf.pem"), self.folder.path().join("key.pem"));
        fs::write(&certificate_file, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        server_config(&certificate_file, &key_file).unwrap()
    }
}

/// The client's error, or the protocol that was agreed on after a byte went through.
async fn handshake(server: Arc<rustls::ServerConfig>, ca_file: Option<&Path>) -> Result<Vec<u8>, String> {
    let client = client_config(ca_file).unwrap();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = async {
        if let Ok(mut stream) = TlsAcceptor::from(server).accept(far).await {
            stream.write_all(b"!").await.unwrap();
        }
    };
    let calling = async {
        let name = ServerName::try_from("provider.test").unwrap();
        let mut stream = TlsConnector::from(client).connect(name, near).await.map_err(|error| error.to_string())?;
        assert_eq!(stream.read_u8().await.unwrap(), b'!');
        Ok(stream.get_ref().1.alpn_protocol().unwrap().to_vec())
    };
    tokio::join!(serving, calling).1
}

#[tokio::test]
async fn the_right_server_is_trusted_and_speaks_http_1_only() {
    let authority = Authority::named("authority");
    let agreed = handshake(authority.server("provider.test", 2099), Some(&authority.ca_file)).await;
    assert_eq!(agreed, Ok(b"http/1.1".to_vec()));
}

#[tokio::test]
async fn a_wrong_name_an_expired_certificate_and_an_unknown_root_fail() {
    let authority = Authority::named("authority");
    let stranger = Authority::named("stranger");
    let cases = [
        ("wrong name", authority.server("other.test", 2099), Some(&authority.ca_file), "not valid for name"),
        ("expired", authority.server("provider.test", 2021), Some(&authority.ca_file), "certificate expired"),
        ("unknown root", authority.server("provider.test", 2099), Some(&stranger.ca_file), "UnknownIssuer"),
        ("public roots only", authority.server("provider.test", 2099), None, "UnknownIssuer"),
    ];
    for (case, server, ca_file, expected) in cases {
        let error = handshake(server, ca_file.map(PathBuf::as_path)).await.expect_err(case);
        assert!(error.contains(expected), "{case}: {error}");
    }
}

#[test]
fn a_client_that_could_trust_nobody_is_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    assert!(matches!(client_config(Some(&empty)), Err(TlsError::NoRoots { .. })));
    let missing = folder.path().join("missing.pem");
    assert!(matches!(client_config(Some(&missing)), Err(TlsError::Unreadable { .. })));
    let garbage = folder.path().join("garbage.pem");
    fs::write(&garbage, "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n").unwrap();
    assert!(matches!(client_config(Some(&garbage)), Err(TlsError::NotPem { .. })));
    assert!(client_config(None).is_ok(), "the compiled-in roots are not empty");
}

#[test]
fn a_server_needs_its_own_key() {
    let authority = Authority::named("authority");
    let _config = authority.server("provider.test", 2099);
    let (leaf, key) = (authority.folder.path().join("leaf.pem"), authority.folder.path().join("key.pem"));
    let other_key = authority.folder.path().join("other.pem");
    fs::write(&other_key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(matches!(server_config(&leaf, &other_key), Err(TlsError::BadPair { .. })));
    assert!(matches!(server_config(&key, &key), Err(TlsError::NoCertificate { .. })));
    assert!(matches!(server_config(&leaf, &leaf), Err(TlsError::NotPem { .. })));
}

/// Pieces of a body that wait for room pass through the encryption, whose buffer is small: all of them arrive.
#[tokio::test]
async fn a_listener_serves_a_long_answer_over_tls_one_piece_at_a_time() {
    const PIECES: usize = 64;
    const PIECE: &[u8] = &[b'x'; 8 * 1024];
    let authority = Authority::named("authority");
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let service = service_fn(|request: Request<Incoming>| async move {
        let connection = request.extensions().get::<Connection>().unwrap().clone();
        let mut left = PIECES;
        let next = move |_: &mut Context<'_>| {
            if left == 0 {
                return Poll::Ready(None);
            }
            if !connection.has_room() {
                return Poll::Pending;
            }
            left -= 1;
            connection.give(PIECE.len());
            Poll::Ready(Some(Ok::<_, Infallible>(Frame::data(Bytes::from_static(PIECE)))))
        };
        Ok::<_, Infallible>(Response::new(StreamBody::new(stream::poll_fn(next))))
    });
    let (tasks, options) = (Tasks::new(), ListenerOptions::default());
    drop(serve(listener, Some(authority.server("provider.test", 2099)), options, service, &tasks));
    let stream = TcpStream::connect(address).await.unwrap();
    let client = TlsConnector::from(client_config(Some(&authority.ca_file)).unwrap());
    let mut stream = client.connect(ServerName::try_from("provider.test").unwrap(), stream).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    read.expect("the answer ends").unwrap();
    assert_eq!(answer.iter().filter(|byte| **byte == b'x').count(), PIECES * PIECE.len());
}
