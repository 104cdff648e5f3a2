//! The operators' side: the admin API on its own socket, and what it is told through its ports.

mod dead_letters;
mod ports;
mod rebuild;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use weir_control::admin::{AdminApi, router};
use weir_runtime::listener::{ListenerOptions, serve};
use weir_runtime::units::HumanDuration;

use super::consumers::journal;
use super::{OPERATORS_FINISH, Running};

use dead_letters::DeadLetters;
use rebuild::Rebuild;

/// Operators and their scripts; a burst beyond this is not one.
const MOST_CONNECTIONS: usize = 256;

/// Serves the admin API until the tasks stop.
pub(super) fn serve_admin(listener: TcpListener, running: &Running<'_>) {
    let tasks = &running.owners.operators;
    let acts = Arc::new(ports::Acts::new(running.quota, journal(running), running.entropy));
    let told = Arc::new(ports::Told::new(running.quota, running.data, running.storage.store()));
    let api = AdminApi {
        control: Arc::clone(running.control),
        revocations: Arc::clone(&acts) as _,
        counters: Arc::clone(&told) as _,
        reservations: told,
        reports: Arc::clone(&acts) as _,
        dead_letters: Arc::new(DeadLetters::new(&acts, Arc::clone(&running.storage.ledger) as _)),
        quota: Arc::new(rebuild(running, acts)),
        health: running.health.clone(),
        clock: Arc::clone(running.clock),
        tasks: tasks.clone(),
    };
    let options = ListenerOptions {
        max_connections: MOST_CONNECTIONS,
        drain: HumanDuration::from_ms(u64::try_from(OPERATORS_FINISH.as_millis()).unwrap_or(0)),
        ..ListenerOptions::default()
    };
    drop(serve(listener, None, options, Admin(TowerToHyperService::new(router(api))), tasks));
}

fn rebuild(running: &Running<'_>, acts: Arc<ports::Acts>) -> Rebuild {
    Rebuild {
        acts,
        quota: Arc::clone(running.quota),
        log: running.storage.log(),
        store: running.storage.store(),
        book: running.config.quota.book(),
        lease_ms: crate::config::ms(running.config.gateway.lease),
        clock: Arc::clone(running.clock),
        turn: tokio::sync::Mutex::new(()),
    }
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
