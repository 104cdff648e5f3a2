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

use weir_control::Control;
use weir_control::admin::{AdminApi, router};
use weir_runtime::listener::{ListenerOptions, serve};
use weir_runtime::tasks::Tasks;
use weir_runtime::units::HumanDuration;

use super::consumers::{Derived, journal};
use crate::events::EventSource;
use crate::process::{OPERATORS_FINISH, Running};

use dead_letters::DeadLetters;
use rebuild::Rebuild;

#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
pub(crate) use ports::failed;
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
pub(crate) use rebuild::open_in;
pub(crate) use rebuild::{Counters, Embedded};

/// Operators and their scripts; a burst beyond this is not one.
const MOST_CONNECTIONS: usize = 256;

/// What operators work on.
pub(crate) struct Desk<'a> {
    pub control: &'a Arc<Control>,
    pub derived: &'a Derived,
    pub events: EventSource,
    /// The counters, as they can be lost and rebuilt.
    pub rebuild: Arc<dyn Counters>,
    /// Before the names of topics.
    pub topic_prefix: &'a str,
}

/// Serves the admin API until the tasks stop.
pub(crate) fn serve_admin(listener: TcpListener, running: &Running<'_>, desk: Desk<'_>) {
    let tasks = &running.owners.operators;
    let Desk { control, derived, events, rebuild: counters, topic_prefix } = desk;
    let acts = Arc::new(ports::Acts::new(Arc::clone(&derived.quota), journal(running), running.entropy));
    let told = Arc::new(ports::Told::new(derived, events));
    let rebuild = Rebuild { acts: Arc::clone(&acts), counters, turn: tokio::sync::Mutex::new(()) };
    let api = AdminApi {
        control: Arc::clone(control),
        revocations: Arc::clone(&acts) as _,
        counters: Arc::clone(&told) as _,
        reservations: told,
        reports: Arc::clone(&acts) as _,
        dead_letters: Arc::new(DeadLetters::new(&acts, Arc::clone(&derived.ledger))),
        quota: Arc::new(rebuild),
        health: running.health.clone(),
        metrics: running.metrics.clone(),
        topic_prefix: topic_prefix.to_owned(),
        clock: Arc::clone(running.clock),
        tasks: tasks.clone(),
    };
    serve_routes(listener, router(api), tasks);
}

/// Serves `routes` to operators and probes until `tasks` stop.
pub(crate) fn serve_routes(listener: TcpListener, routes: Router, tasks: &Tasks) {
    let options = ListenerOptions {
        max_connections: MOST_CONNECTIONS,
        drain: HumanDuration::from_ms(u64::try_from(OPERATORS_FINISH.as_millis()).unwrap_or(0)),
        ..ListenerOptions::default()
    };
    drop(serve(listener, None, options, Admin(TowerToHyperService::new(routes)), tasks));
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
