//! Readiness as named conditions, each with the reason why it does not hold.
//!
//! Liveness needs no state: a process that answers is alive. Readiness starts at *no*: a condition that nobody has
//! reported on yet is not ready, so that a slow start cannot look like a good one.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;

/// The conditions of one process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// The reason a condition does not hold, or none where it does.
    conditions: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

impl Health {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares conditions that must be reported `ready` before the process is.
    pub fn expect(&self, names: &[&'static str]) {
        let mut conditions = self.conditions.lock();
        for name in names {
            conditions.entry(name).or_insert_with(|| Some("starting".to_owned()));
        }
    }

    pub fn ready(&self, name: &'static str) {
        self.set(name, None);
    }

    /// `reason` is shown to whoever can reach the probe: it says what is missing, and holds no secret.
    pub fn not_ready(&self, name: &'static str, reason: impl Into<String>) {
        self.set(name, Some(reason.into()));
    }

    fn set(&self, name: &'static str, reason: Option<String>) {
        let previous = self.conditions.lock().insert(name, reason.clone());
        match (previous.flatten(), reason) {
            (None, Some(reason)) => tracing::warn!(condition = name, reason, "no longer ready"),
            (Some(_), None) => tracing::info!(condition = name, "ready"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    #[must_use]
    pub fn report(&self) -> Report {
        let conditions = self.conditions.lock();
        let reasons: Vec<_> = conditions
            .iter()
            .filter_map(|(name, reason)| Some(Unready { condition: name, reason: reason.clone()? }))
            .collect();
        Report { ready: reasons.is_empty(), reasons }
    }
}

/// What `/readyz` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub ready: bool,
    pub reasons: Vec<Unready>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unready {
    pub condition: &'static str,
    pub reason: String,
}

impl Report {
    /// 200 when ready, 503 otherwise.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        if self.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }

    /// `{"ready":false,"reasons":[{"condition":"log","reason":"starting"}]}`
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| r#"{"ready":false,"reasons":[]}"#.to_owned())
    }
}

/// What `/healthz` answers: that the process can answer.
pub const ALIVE_JSON: &str = r#"{"alive":true}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_only_when_every_condition_is() {
        let health = Health::new();
        health.expect(&["log", "quota"]);
        assert_eq!(
            health.report().to_json(),
            r#"{"ready":false,"reasons":[{"condition":"log","reason":"starting"},{"condition":"quota","reason":"starting"}]}"#
        );
        health.ready("log");
        health.not_ready("quota", "rebuild at 40 %");
        let report = health.report();
        assert_eq!(report.reasons, [Unready { condition: "quota", reason: "rebuild at 40 %".to_owned() }]);
        assert_eq!(report.status(), StatusCode::SERVICE_UNAVAILABLE);

        health.clone().ready("quota");
        assert_eq!(health.report().to_json(), r#"{"ready":true,"reasons":[]}"#);
        assert_eq!(health.report().status(), StatusCode::OK);

        health.not_ready("log", "disk is full");
        assert!(!health.report().ready, "a condition can be lost again");
    }

    #[test]
    fn expecting_what_was_reported_keeps_the_report() {
        let health = Health::new();
        health.ready("log");
        health.expect(&["log"]);
        assert!(health.report().ready);
    }
}
