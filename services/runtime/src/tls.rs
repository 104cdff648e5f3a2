//! TLS for both sides, with one provider of cryptography and one protocol.
//!
//! ALPN is pinned to HTTP/1.1 on both sides: one HTTP/2 connection would put all streams of a provider behind one
//! window. A client without a single trusted root is refused at start: it would fail at the first request instead.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// The one protocol that is offered and accepted.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Why there is no TLS configuration. Names the file, never its content.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not a PEM file of {expected}", path.display())]
    NotPem { path: PathBuf, expected: &'static str, source: pem::Error },
    #[error("{} holds no certificate to trust: every connection would fail; give a PEM file of CA certificates", path.display())]
    NoRoots { path: PathBuf },
    #[error("{} holds a certificate that cannot be a root", path.display())]
    BadRoot { path: PathBuf, source: rustls::Error },
    #[error("{} holds no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("the certificate in {} and the key in {} do not make a server", certificate.display(), key.display())]
    BadPair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("TLS cannot be set up")]
    Unsupported(#[source] rustls::Error),
}

/// Makes ring the process's provider. Called once in `main`; a second call changes nothing.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster with the same provider.
        let _first = ring::default_provider().install_default().is_ok();
    }
}

/// For calls to providers: trusts the roots of `ca_file` and no others, or the Mozilla roots compiled in.
pub fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match ca_file {
        Some(path) => roots_from(path)?,
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unsupported)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    Ok(Arc::new(config))
}

fn roots_from(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_from(path)? {
        roots.add(certificate).map_err(|source| TlsError::BadRoot { path: path.to_owned(), source })?;
    }
    if roots.is_empty() {
        return Err(TlsError::NoRoots { path: path.to_owned() });
    }
    Ok(roots)
}

/// For a listener: the chain in `certificate_file` (leaf first) and its key in `key_file`, both PEM.
pub fn server_config(certificate_file: &Path, key_file: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates_from(certificate_file)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate_file.to_owned() });
    }
    let key = PrivateKeyDer::from_pem_slice(&read(key_file)?).map_err(|source| TlsError::NotPem {
        path: key_file.to_owned(),
        expected: "a private key",
        source,
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unsupported)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::BadPair {
            certificate: certificate_file.to_owned(),
            key: key_file.to_owned(),
            source,
        })?;
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    Ok(Arc::new(config))
}

fn certificates_from(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(|source| TlsError::NotPem {
        path: path.to_owned(),
        expected: "certificates",
        source,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
