//! The provider's side: scripts for the next calls, and what became of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;
use ureq::Agent;

use weir_stub::journal::{Entry, State};

use super::evidence::{Call, Target};

/// A running `weir stub`.
#[derive(Debug, Clone)]
pub struct Provider {
    agent: Agent,
    url: String,
    /// What its journal had before.
    since: u64,
}

/// Why the provider cannot be told what to do.
#[derive(Debug, Error)]
pub enum ProviderError {
    #[error("no stub answers at {url}: {why}")]
    Silent { url: String, why: String },
    #[error("the stub refuses a script: {0}")]
    Refused(String),
}

/// A page of the stub is small and at hand.
const PATIENCE: Duration = Duration::from_secs(10);
/// A gateway that asks again and again meets the same fault so often.
const COPIES: usize = 8;
/// How long the end of a call is waited for after the client's: a gateway that drains takes longer, and is noted.
const AFTERWARDS: Duration = Duration::from_millis(2_500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The journal of a long run.
const LARGEST_JOURNAL_BYTES: u64 = 256 << 20;

impl Provider {
    pub fn connect(url: &str) -> Result<Self, ProviderError> {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).proxy(None);
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let mut provider = Self { agent: config.build().new_agent(), url, since: 0 };
        provider.since = provider.entries()?.last().map_or(0, |entry| entry.id);
        Ok(provider)
    }

    fn silent(&self, why: &impl ToString) -> ProviderError {
        ProviderError::Silent { url: self.url.clone(), why: why.to_string() }
    }

    /// The next calls of `model` play `script`, whatever was queued before.
    pub(super) fn queue(&self, model: &str, script: &str) -> Result<(), ProviderError> {
        let script: toml::Value = toml::from_str(script).map_err(|error| ProviderError::Refused(error.to_string()))?;
        let scripts: Vec<_> = std::iter::repeat_n(&script, COPIES).collect();
        let body = json!({"model": model, "scripts": scripts, "replace": true}).to_string();
        let sent = self.agent.post(format!("{}/stub/script", self.url)).content_type("application/json").send(&body);
        let mut answer = sent.map_err(|error| self.silent(&error))?;
        if answer.status().is_success() {
            return Ok(());
        }
        let told: Value = answer.body_mut().read_json().unwrap_or_default();
        Err(ProviderError::Refused(told["error"]["message"].as_str().unwrap_or("without a reason").to_owned()))
    }

    /// The calls of the two models that came after those of `known`, once they have ended.
    pub(super) fn calls(&self, first: &str, second: &str, known: &mut u64) -> Result<Vec<Call>, ProviderError> {
        let began = Instant::now();
        let mut last_running_ms: std::collections::HashMap<u64, u64> = std::collections::HashMap::new();
        loop {
            let target = |entry: &Entry| match entry.model.as_str() {
                model if model == first => Some(Target::First),
                model if model == second => Some(Target::Second),
                _ => None,
            };
            let found: Vec<_> = self.entries()?.into_iter().filter(|entry| entry.id > *known).collect();
            let ours: Vec<_> = found.iter().filter_map(|entry| Some((target(entry)?, entry))).collect();
            let waited = began.elapsed();
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let running = ours.iter().filter(|(_, entry)| entry.state == State::Running);
            let running: Vec<u64> = running.map(|(_, entry)| entry.id).collect();
            last_running_ms.extend(running.iter().map(|id| (*id, waited_ms)));
            if running.is_empty() || waited > AFTERWARDS {
                *known = ours.iter().map(|(_, entry)| entry.id).max().unwrap_or(*known);
                let call = |(target, entry): &(Target, &Entry)| Call {
                    target: *target,
                    body: entry.body.clone(),
                    state: state_name(entry.state).to_owned(),
                    outlived_ms: last_running_ms.get(&entry.id).copied().unwrap_or(0),
                };
                return Ok(ours.iter().map(call).collect());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn entries(&self) -> Result<Vec<Entry>, ProviderError> {
        let page = self.agent.get(format!("{}/stub/journal?since={}", self.url, self.since)).call();
        let mut page = page.map_err(|error| self.silent(&error))?;
        let read = page.body_mut().with_config().limit(LARGEST_JOURNAL_BYTES).read_json();
        read.map_err(|error| self.silent(&error))
    }
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Complete => "complete",
        State::Cancelled => "cancelled",
        State::Broken => "broken",
    }
}
