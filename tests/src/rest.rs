//! Rest: everything that was asked is answered, every event is derived, and nothing is reserved any more.
//!
//! Only then must counters, ledger and bill be equal (I12). What is read here is what an auditor could read: the ledger
//! file through its reader, counters through the admin API, lags from `/metrics`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;

use weir_domain::calendar::Window;
use weir_domain::ids::{KeyId, ModelName, ReservationId, TeamId, TenantId};
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Amounts;
use weir_domain::quota::{Scope, Subject};
use weir_ledger::SqliteLedger;
use weir_ledger::contract::{LedgerStore as _, LineCursor, LinePage, OpenPage, OpenReservation, OpenStatus};

use crate::client::Client;
use crate::{House, eventually};

/// One counter as the admin API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Counter {
    pub subject: String,
    pub id: Option<String>,
    pub name: Option<String>,
    pub model: Option<String>,
    pub window: Window,
    pub charged: Amounts,
    pub held: Amounts,
    pub pending: Amounts,
}

/// A tenant's counters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Counters {
    pub tenant: TenantId,
    pub held: Amounts,
    pub reserved: u64,
    pub pending: u64,
    pub counters: Vec<Counter>,
}

/// Everything that is known of a tenant at rest.
#[derive(Debug, Clone)]
pub struct AtRest {
    pub tenant: TenantId,
    pub counters: Counters,
    pub lines: Vec<LedgerLine>,
    /// Pending reservations with what they hold.
    pub pending: Vec<OpenReservation>,
}

/// Longer than the gauges of a process take to follow it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

impl House {
    /// Counters by the admin API.
    pub async fn counters(&self, tenant: &str) -> Counters {
        let answer = self.admin.get(&format!("/admin/v1/counters?tenant={tenant}")).await.expect(200);
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.text()))
    }

    /// The ledger file, beside the process that writes it.
    #[must_use]
    pub fn ledger(&self) -> SqliteLedger {
        SqliteLedger::open_read_only(&self.data().join("ledger.sqlite")).expect("the ledger can be read")
    }

    /// The samples of a metric, by their labels as they are written.
    pub async fn metric(&self, name: &str) -> BTreeMap<String, f64> {
        metric(&self.client, name).await.expect("the process answers")
    }

    /// Waits for rest, and reads everything of `tenant`.
    pub async fn at_rest(&self, tenant: &str, within: Duration) -> AtRest {
        let mut before = None;
        let counters = eventually("rest", within, async || {
            let counters = self.counters(tenant).await;
            let lags = self.metric("weir_consumer_lag_records").await;
            assert!(!lags.is_empty(), "/metrics says nothing of consumers");
            let is_quiet = counters.reserved == 0 && lags.values().all(|lag| *lag == 0.0);
            // The gauges follow a moment later, so one quiet look proves nothing; two equal ones do.
            let seen = is_quiet.then_some(counters);
            if seen.is_some() && seen == before {
                return seen;
            }
            before = seen;
            tokio::time::sleep(BETWEEN_LOOKS).await;
            None
        })
        .await;
        let tenant = counters.tenant.clone();
        let ledger = self.ledger();
        let pending = open_reservations(&ledger, &tenant, OpenStatus::PendingReconciliation).await;
        let reserved = open_reservations(&ledger, &tenant, OpenStatus::Reserved).await;
        assert!(reserved.is_empty(), "the ledger still shows reserved ones: {reserved:#?}");
        AtRest { lines: lines_of(&ledger, &tenant).await, pending, tenant, counters }
    }
}

impl AtRest {
    /// The sum of all lines.
    #[must_use]
    pub fn charged(&self) -> Amounts {
        self.lines.iter().fold(Amounts::ZERO, |sum, line| sum + line.amount)
    }

    /// What pending reservations hold.
    #[must_use]
    pub fn held(&self) -> Amounts {
        self.pending.iter().fold(Amounts::ZERO, |sum, open| sum + open.held)
    }

    /// I12: every calendar and total counter of the tenant, its teams, keys and models is the sum of the ledger's lines
    /// and of the open holds that count on it, and there is no counter beside. Panics with the first difference.
    pub async fn assert_exact(&self, house: &House) {
        assert_eq!(self.counters.held, self.held(), "held by the counters, by the open reservations");
        assert_eq!(self.counters.pending, self.pending.len() as u64, "pending by the counters, by the ledger");
        let mut expected = self.weights(&house.ledger()).await;
        expected.retain(|_, weight| *weight != Weight::default());
        for counter in &self.counters.counters {
            let (scope, window) = (scope_of(counter), counter.window);
            let weight = expected.remove(&(scope.clone(), window)).unwrap_or_default();
            assert_eq!(counter.charged, weight.charged, "charged by {scope} in {window}: counter, ledger");
            assert_eq!(counter.held, weight.held, "held by {scope} in {window}: counter, open reservations");
            assert_eq!(counter.held, counter.pending, "{scope} holds in {window} what nobody waits for");
        }
        assert!(expected.is_empty(), "these count and are in no counter: {expected:#?}");
    }

    /// What lines and open reservations weigh on each counter, by the list that each locked at its admission (I10).
    async fn weights(&self, ledger: &SqliteLedger) -> HashMap<(Scope, Window), Weight> {
        let mut by_reservation: HashMap<ReservationId, Weight> = HashMap::new();
        for line in &self.lines {
            let weight = by_reservation.entry(line.key.reservation).or_default();
            weight.charged += line.amount;
        }
        for open in &self.pending {
            by_reservation.entry(open.id).or_default().held = open.held;
        }
        let mut weights: HashMap<(Scope, Window), Weight> = HashMap::new();
        for (id, weight) in by_reservation {
            let stored = ledger.find(id).await.expect("the ledger can be read");
            let stored = stored.unwrap_or_else(|| panic!("{id} has a line or a hold, and the ledger does not know it"));
            for (scope, window) in stored.created.counting.counters() {
                let sum = weights.entry((scope.clone(), window)).or_default();
                sum.charged += weight.charged;
                sum.held += weight.held;
            }
        }
        weights
    }
}

/// What weighs on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weight {
    charged: Amounts,
    held: Amounts,
}

fn scope_of(counter: &Counter) -> Scope {
    let id = || counter.id.as_deref().expect("a team or key has an id");
    let subject = match counter.subject.as_str() {
        "tenant" => Subject::Tenant,
        "team" => Subject::Team(TeamId::from(id())),
        "key" => Subject::Key(KeyId::from(id())),
        other => panic!("the subject of a counter is `{other}`"),
    };
    Scope { subject, model: counter.model.as_deref().map(ModelName::from) }
}

async fn open_reservations(ledger: &SqliteLedger, tenant: &TenantId, status: OpenStatus) -> Vec<OpenReservation> {
    const PAGE: usize = 1_000;
    let mut all: Vec<OpenReservation> = Vec::new();
    loop {
        let after: Option<(i64, ReservationId)> = all.last().map(|last| (last.due_ms, last.id));
        let page = ledger.open(OpenPage { status, tenant: Some(tenant.clone()), after, most: PAGE }).await;
        let page = page.expect("the ledger can be listed");
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

async fn lines_of(ledger: &SqliteLedger, tenant: &TenantId) -> Vec<LedgerLine> {
    const PAGE: usize = 1_000;
    let mut all: Vec<LedgerLine> = Vec::new();
    loop {
        let after = all.last().map(LineCursor::of);
        let page = LinePage { tenant: tenant.clone(), from_ms: i64::MIN, until_ms: i64::MAX, after, most: PAGE };
        let page = ledger.lines(page).await.expect("the ledger can be listed");
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

/// The samples of a metric of whoever `client` asks, by their labels as they are written; `None` when nobody answers.
pub(crate) async fn metric(client: &Client, name: &str) -> Option<BTreeMap<String, f64>> {
    let page = client.open(Method::GET, "/metrics", "text/plain", Bytes::new()).await.ok()?.read().await;
    Some(page.expect(200).text().lines().filter_map(|line| sample(line, name)).collect())
}

/// `name{labels} value`.
fn sample(line: &str, name: &str) -> Option<(String, f64)> {
    let rest = line.strip_prefix(name)?;
    let (labels, value) = rest.rsplit_once(' ')?;
    if !labels.is_empty() && !labels.starts_with('{') {
        return None;
    }
    Some((labels.to_owned(), value.parse().ok()?))
}
