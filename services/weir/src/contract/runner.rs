//! Plays clauses: several at once, each on models of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use weir_stub::script::Script as StubScript;

use super::clauses::{Clause, Step as Script};
use super::client::Gateway;
use super::evidence::{Evidence, Step};
use super::pair::Pair;
use super::provider::{Provider, ProviderError};
use super::reading::Reading;
use super::report::{Played, Transcripts};
use super::requests::{Ask, Model};
use super::setup::{Names, REFUSED_MODEL};
use super::verdict::{Checks, Outcome};

/// What is to be played.
#[derive(Debug)]
pub struct Plan {
    pub clauses: Vec<&'static Clause>,
    pub pairs: Vec<Pair>,
    pub at_once: usize,
    /// Tells this run's idempotency keys from those of any other.
    pub run: String,
}

/// Plays the plan; the results are in its order. Call it outside any task of `runtime`.
pub fn run(
    plan: &Plan,
    gateway: &Gateway,
    provider: &Provider,
    transcripts: &Transcripts,
    runtime: &Handle,
) -> Result<Vec<Played>, ProviderError> {
    let jobs: Vec<_> = plan
        .pairs
        .iter()
        .flat_map(|pair| plan.clauses.iter().filter(|clause| (clause.applies)(*pair)).map(|clause| (*pair, *clause)))
        .collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.at_once.clamp(1, MAX_AT_ONCE))
            .map(|_| {
                scope.spawn(|| {
                    while let Some((pair, clause)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let at = jobs.iter().position(|job| job.0 == *pair && job.1.id == clause.id);
                        let evidence = play(plan, gateway, provider, runtime, *pair, clause)?;
                        transcripts.write(clause, &evidence);
                        let played = Played { clause, pair: *pair, outcome: judge(clause, &evidence) };
                        if let Ok(mut results) = results.lock() {
                            results.push((at, played));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })?;
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, played)| played).collect())
}

/// More clients than that measure the machine and not the gateway.
const MAX_AT_ONCE: usize = 64;

fn play(
    plan: &Plan,
    gateway: &Gateway,
    provider: &Provider,
    runtime: &Handle,
    pair: Pair,
    clause: &Clause,
) -> Result<Evidence, ProviderError> {
    let names = Names::of(clause, pair);
    let mut evidence = Evidence { pair, steps: Vec::new() };
    let mut known = 0;
    for Script { ask, first, second } in clause.steps {
        if takes_a_retry(first) {
            let healthy = Names::healthy(pair).first;
            for _ in 0..HEALTHY_BEFORE_A_RETRY {
                drop(runtime.block_on(gateway.ask(pair.client, &Ask::PLAIN, &healthy, None)));
            }
        }
        provider.queue(&names.first, first)?;
        provider.queue(&names.second, second)?;
        let model = match ask.model {
            Model::Own => &names.first,
            Model::Refused => REFUSED_MODEL,
        };
        let idempotency = ask.idempotent.then(|| format!("{}-{}", names.first, plan.run));
        let transcript = runtime.block_on(gateway.ask(pair.client, ask, model, idempotency.as_deref()));
        let reading = Reading::of(pair.client, &transcript);
        let asked = if ask.model == Model::Refused { REFUSED_MODEL } else { &names.first };
        let calls = provider.calls(asked, &names.second, &mut known)?;
        evidence.steps.push(Step { transcript, reading, calls });
    }
    Ok(evidence)
}

/// A retry budget of a tenth of the requests has room for one more after so many.
const HEALTHY_BEFORE_A_RETRY: usize = 12;

/// Whether the script goes wrong where another target may still be asked.
fn takes_a_retry(script: &str) -> bool {
    let Ok(script) = toml::from_str::<StubScript>(script) else { return false };
    let fails_at_once = script.fault.as_ref().is_some_and(|fault| fault.after_chunks == 0);
    fails_at_once || script.refuse.is_some() || script.status >= 500 || script.status == 429
}

fn judge(clause: &Clause, evidence: &Evidence) -> Outcome {
    let mut checks = Checks::default();
    (clause.expect)(evidence, &mut checks);
    Outcome { verdict: checks.verdict(), findings: checks.into_findings(), got: evidence.summary() }
}
