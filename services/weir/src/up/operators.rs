//! The operators' side: the admin API on its own socket, and what it is told through its ports.

mod ports;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use weir_control::Control;
use weir_control::admin::{AdminApi, router};
use weir_domain::ids::Region;
use weir_quota::MemoryQuota;
use weir_reconciler::Journal;
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::health::Health;
use weir_runtime::listener::{ListenerOptions, serve};
use weir_runtime::tasks::Tasks;
use weir_runtime::units::HumanDuration;

use super::storage::Storage;
use crate::config::Config;
use crate::data::DataFolder;

pub(super) struct Parts<'a> {
    pub config: &'a Config,
    pub data: &'a DataFolder,
    pub storage: &'a Storage,
    pub control: &'a Arc<Control>,
    pub quota: &'a Arc<MemoryQuota>,
    pub health: &'a Health,
    pub clock: &'a SharedClock,
    pub entropy: &'a SharedEntropy,
    pub tasks: &'a Tasks,
}

/// Operators and their scripts; a burst beyond this is not one.
const MOST_CONNECTIONS: usize = 256;

/// Serves the admin API until the tasks stop.
pub(super) fn serve_admin(listener: TcpListener, parts: &Parts<'_>) {
    let region = Region::new(&parts.config.gateway.region);
    let journal = Journal::new(parts.storage.log(), Arc::clone(parts.clock), region);
    let acts = Arc::new(ports::Acts::new(parts.quota, journal, parts.entropy));
    let told = Arc::new(ports::Told::new(parts.quota, parts.data, parts.storage.store()));
    let api = AdminApi {
        control: Arc::clone(parts.control),
        revocations: Arc::clone(&acts) as _,
        counters: Arc::clone(&told) as _,
        reservations: told,
        reports: acts,
        health: parts.health.clone(),
        clock: Arc::clone(parts.clock),
        tasks: parts.tasks.clone(),
    };
    let options = ListenerOptions {
        max_connections: MOST_CONNECTIONS,
        drain: HumanDuration::from_ms(u64::try_from(super::OPERATORS_FINISH.as_millis()).unwrap_or(0)),
        ..ListenerOptions::default()
    };
    drop(serve(listener, None, options, Admin(TowerToHyperService::new(router(api))), parts.tasks));
}

/// The routes as the listener takes a service.
#[derive(Clone)]
struct Admin(TowerToHyperService<Router>);

impl hyper::service::Service<Request<Incoming>> for Admin {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <TowerToHyperService<Router> as hyper::service::Service<Request<Incoming>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.0.call(request)
    }
}
