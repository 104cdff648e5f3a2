//! The gateway's metrics, declared once.

use std::sync::Arc;
use std::time::Duration;

use weir_domain::ids::DeploymentId;
use weir_domain::outcome::Outcome;
use weir_runtime::metrics::{BoundedLabels, Counter, EncodeLabelSet, Family, Gauge, Histogram, Metrics};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    status: u16,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    deployment: Arc<str>,
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Replayed {
    how: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Continued {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Drained {
    usage: &'static str,
}

#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    requests: Family<Ended, Counter>,
    refusals: Family<Refused, Counter>,
    attempt_failures: Family<Failed, Counter>,
    replays: Family<Replayed, Counter>,
    drains: Family<Drained, Counter>,
    continuations: Family<Continued, Counter>,
    duration: Histogram,
    deployments: BoundedLabels,
    pub running: Gauge,
}

/// How many deployments get a label of their own.
const MOST_DEPLOYMENTS: usize = 512;

/// Upper bounds of the duration's buckets, in seconds: from a cached answer to a stream of an hour.
const DURATION_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0, 3600.0];

impl GatewayMetrics {
    pub(crate) fn declare(metrics: &Metrics) -> Self {
        let made = Self {
            requests: Family::default(),
            refusals: Family::default(),
            attempt_failures: Family::default(),
            replays: Family::default(),
            drains: Family::default(),
            continuations: Family::default(),
            duration: Histogram::new(DURATION_BUCKETS),
            deployments: BoundedLabels::new(MOST_DEPLOYMENTS),
            running: Gauge::default(),
        };
        metrics.declare("gateway", |registry| {
            registry.register("requests", "Requests that ended, by outcome and status", made.requests.clone());
            registry.register("refusals", "Requests refused by the gateway, by code", made.refusals.clone());
            registry.register(
                "attempt_failures",
                "Attempts that failed before content, by deployment",
                made.attempt_failures.clone(),
            );
            registry.register(
                "replays",
                "Requests answered by their idempotency key: attached to a call that runs, or replayed after it",
                made.replays.clone(),
            );
            registry.register(
                "drains",
                "Abandoned attempts that were read on, by whether their usage is known since",
                made.drains.clone(),
            );
            registry.register(
                "continuations",
                "Streams that broke where policy says to go on, by whether another deployment did",
                made.continuations.clone(),
            );
            registry.register(
                "request_duration_seconds",
                "From a request's arrival to its end, seconds",
                made.duration.clone(),
            );
            registry.register("running_requests", "Requests that hold a reservation now", made.running.clone());
        });
        made
    }

    pub(crate) fn request_ended(&self, outcome: Outcome, status: u16, elapsed: Duration) {
        self.requests.get_or_create(&Ended { outcome: outcome.as_str(), status }).inc();
        self.duration.observe(elapsed.as_secs_f64());
    }

    pub(crate) fn refused(&self, status: u16, code: &str) {
        self.refusals.get_or_create(&Refused { status, code: code.to_owned() }).inc();
    }

    pub(crate) fn drained(&self, usage: &'static str) {
        self.drains.get_or_create(&Drained { usage }).inc();
    }

    pub(crate) fn continued(&self, outcome: &'static str) {
        self.continuations.get_or_create(&Continued { outcome }).inc();
    }

    pub(crate) fn replayed(&self, how: &'static str) {
        self.replays.get_or_create(&Replayed { how }).inc();
    }

    pub(crate) fn attempt_failed(&self, deployment: &DeploymentId, what: &'static str) {
        let deployment = self.deployments.label(deployment.as_str());
        self.attempt_failures.get_or_create(&Failed { deployment, what }).inc();
    }
}
