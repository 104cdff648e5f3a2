//! The two sockets: applications and operators.
//!
//! They are bound before anything slow happens, so that a port in use is said at once, and served last.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use weir_runtime::listener::{bind, serve};
use weir_runtime::tls::{self, TlsError};
use weir_stub::Stub;

use weir_gateway::Gateway;

use super::operators::{Desk, serve_admin};
use super::{Addresses, StartError};
use crate::config::Config;
use crate::process::Running;

#[derive(Debug)]
pub(super) struct Edges {
    gateway: TcpListener,
    admin: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Edges {
    pub fn bind(config: &Config) -> Result<Self, StartError> {
        let listen = &config.listen;
        Ok(Self { gateway: bind(listen.gateway)?, admin: bind(listen.admin)?, tls: server_tls(config)? })
    }

    pub fn addresses(&self, stub: Option<&Stub>) -> Result<Addresses, StartError> {
        let gateway = self.gateway.local_addr().map_err(StartError::Address)?;
        let admin = self.admin.local_addr().map_err(StartError::Address)?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(Addresses {
            gateway,
            gateway_url: format!("{scheme}://{}", reachable(gateway)),
            admin,
            admin_url: format!("http://{admin}"),
            stub_url: stub.map(Stub::url),
        })
    }

    pub fn serve(self, gateway: Gateway, running: &Running<'_>, desk: Desk<'_>) {
        serve_admin(self.admin, running, desk);
        let options = running.config.listener.clone();
        drop(serve(self.gateway, self.tls, options, gateway, &running.owners.requests));
    }
}

/// What the gateway's listener shows to clients, where it speaks TLS.
pub(crate) fn server_tls(config: &Config) -> Result<Option<Arc<rustls::ServerConfig>>, TlsError> {
    match (&config.listen.certificate_file, &config.listen.key_file) {
        (Some(certificate), Some(key)) => tls::server_config(certificate, key).map(Some),
        (Some(_) | None, Some(_) | None) => Ok(None),
    }
}

/// An address that a client on this machine can use: nobody connects to "all addresses".
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() });
    }
    reachable
}
