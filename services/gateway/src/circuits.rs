//! The breakers of all deployments, and the retry budget of the whole gateway: shared state around the pure rules.

use std::collections::HashMap;

use parking_lot::{Mutex, RwLock};

use weir_domain::breaker::{Breaker, BreakerPolicy, CallOutcome, Gate, Permit};
use weir_domain::ids::DeploymentId;
use weir_domain::retry::{RetryBudget, RetryBudgetPolicy};

#[derive(Debug)]
pub(crate) struct Circuits {
    policy: BreakerPolicy,
    breakers: RwLock<HashMap<DeploymentId, Mutex<Breaker>>>,
    retries: Mutex<RetryBudget>,
}

impl Circuits {
    pub(crate) fn new(policy: BreakerPolicy, retries: RetryBudgetPolicy) -> Self {
        Self { policy, breakers: RwLock::default(), retries: Mutex::new(RetryBudget::new(retries)) }
    }

    fn with<T>(&self, id: &DeploymentId, act: impl FnOnce(&mut Breaker) -> T) -> T {
        if let Some(breaker) = self.breakers.read().get(id) {
            return act(&mut breaker.lock());
        }
        let mut breakers = self.breakers.write();
        let breaker = breakers.entry(id.clone()).or_insert_with(|| Mutex::new(Breaker::new(self.policy)));
        act(breaker.get_mut())
    }

    pub(crate) fn is_open(&self, id: &DeploymentId, now_ms: i64) -> bool {
        self.breakers.read().get(id).is_some_and(|breaker| breaker.lock().check(now_ms).is_err())
    }

    /// 0 (ill) to 1000 (well).
    pub(crate) fn health(&self, id: &DeploymentId, now_ms: i64) -> u16 {
        self.breakers.read().get(id).map_or(1000, |breaker| breaker.lock().health(now_ms).per_mille())
    }

    /// The right to make one call, or `None` while the circuit is open.
    pub(crate) fn admit(&self, id: &DeploymentId, now_ms: i64) -> Option<Permit> {
        match self.with(id, |breaker| breaker.admit(now_ms)) {
            Gate::Open(permit) => Some(permit),
            Gate::Shut(_) => None,
        }
    }

    pub(crate) fn record(&self, id: &DeploymentId, permit: Permit, outcome: CallOutcome, now_ms: i64) {
        self.with(id, |breaker| breaker.record(permit, outcome, now_ms));
    }

    /// Counts a request, which earns its share of a retry.
    pub(crate) fn deposit(&self, now_ms: i64) {
        self.retries.lock().deposit(now_ms);
    }

    /// Takes one retry from the gateway's budget; `false` when failures would amplify themselves.
    pub(crate) fn withdraw(&self, now_ms: i64) -> bool {
        self.retries.lock().withdraw(now_ms)
    }
}
