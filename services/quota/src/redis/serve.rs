//! The contract, and what only reads.

use async_trait::async_trait;

use weir_domain::calendar::Window;
use weir_domain::ids::{KeyId, ReservationId, TenantId};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Correction, Counter, CounterReading, Reply, Scope, Subject};
use weir_domain::reservation::{Command, Reservation};

use crate::contract::{QuotaError, QuotaStore, TenantReading};

use super::RedisQuota;
use super::keys::{directories, scope_of, window_of};
use super::link::{Answer, Call, Found, Script, malformed};
use super::record::{self, Known};

/// Records that one command fetches: bounds how long a node is busy with it.
const RECORDS_AT_ONCE: usize = 256;

#[async_trait]
impl QuotaStore for RedisQuota {
    async fn execute(&self, tenant: &TenantId, id: ReservationId, command: &Command) -> Result<Reply, QuotaError> {
        let replies = self.commands(tenant, id, std::slice::from_ref(command)).await?;
        replies.into_iter().next().ok_or_else(|| malformed("a reply"))
    }

    async fn execute_all(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError> {
        self.commands(tenant, id, commands).await
    }

    async fn correct(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError> {
        self.corrected(tenant, correction).await
    }

    async fn due(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.of_all_tenants("due", most).await
    }

    async fn pending(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.of_all_tenants("all", most).await
    }

    async fn find(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Reservation>, QuotaError> {
        Ok(self.fetch(tenant, id).await?.map(|known| known.entry.reservation))
    }

    async fn read(&self, tenant: &TenantId) -> Result<TenantReading, QuotaError> {
        let keys = self.keys(tenant);
        let mut call = Call::with_key(keys.book());
        call.key(keys.due()).key(keys.pending());
        let answer = self.run(tenant, Script::Counters, &call).await?;
        let counters = counters_of(answer.rest(0).list())?;
        let everything = Scope { subject: Subject::Tenant, model: None };
        let all = counters.iter().find(|reading| reading.scope == everything && reading.window == Window::TOTAL);
        let count = |at: usize| answer.rest(at).number().map(i64::unsigned_abs);
        Ok(TenantReading {
            held: all.map_or(Amounts::ZERO, |reading| reading.counter.held),
            counters,
            reserved: count(1)?,
            pending: count(2)?,
        })
    }

    async fn revoke(&self, tenant: &TenantId, key: &KeyId) -> Result<(), QuotaError> {
        let mut call = Call::with_key(self.keys(tenant).book());
        call.text(key.as_str());
        self.run(tenant, Script::Revoke, &call).await.map(|_| ())
    }

    async fn now_ms(&self) -> Result<i64, QuotaError> {
        let found = self.link.ask(&redis::cmd("TIME")).await?;
        let [seconds, micros] = found.list() else { return Err(malformed("a time")) };
        Ok(seconds.number()?.saturating_mul(1000).saturating_add(micros.number()? / 1000))
    }
}

impl RedisQuota {
    /// The record as it is in the store.
    pub(super) async fn fetch(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Known>, QuotaError> {
        let keys = self.keys(tenant);
        let mut call = Call::with_key(keys.book());
        call.key(keys.record(id));
        let answer = self.run(tenant, Script::Read, &call).await?;
        match answer.rest(0).bytes() {
            [] => Ok(None),
            bytes => record::read(tenant, id, bytes).map(Some),
        }
    }

    /// Every tenant that ever had a book here.
    pub async fn tenants(&self) -> Result<Vec<TenantId>, QuotaError> {
        let mut tenants = Vec::new();
        for directory in directories(&self.prefix) {
            let found = self.link.ask(redis::cmd("SMEMBERS").arg(directory)).await?;
            tenants.extend(found.list().iter().map(|tenant| TenantId::from(tenant.text())));
        }
        Ok(tenants)
    }

    /// A tenant whose book is fenced has nothing to show: it is passed over, and the others are listed.
    async fn of_all_tenants(&self, which: &str, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        let (mut found, mut refusal) = (Vec::new(), None);
        for tenant in self.tenants().await? {
            if found.len() >= most {
                break;
            }
            match self.of_tenant(&tenant, which, most - found.len()).await {
                Ok(reservations) => found.extend(reservations),
                Err(error @ QuotaError::NotValidated { .. }) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        match refusal {
            Some(refusal) if found.is_empty() => Err(refusal),
            Some(_) | None => Ok(found),
        }
    }

    async fn of_tenant(&self, tenant: &TenantId, which: &str, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        let keys = self.keys(tenant);
        let mut call = Call::with_key(keys.book());
        // Redis counts up to this.
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        call.key(if which == "due" { keys.due() } else { keys.pending() }).text(which).number(most);
        let answer = self.run(tenant, Script::List, &call).await?;
        let ids = answer.rest(1).list().iter().map(id_of).collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(RECORDS_AT_ONCE) {
            let mut records = redis::cmd("MGET");
            for id in ids {
                records.arg(keys.record(*id));
            }
            let records = self.link.ask(&records).await?;
            for (id, bytes) in ids.iter().zip(records.list()) {
                if record::generation(bytes.bytes()) == answer.rest(0).bytes() {
                    found.push(record::read(tenant, *id, bytes.bytes())?.entry.reservation);
                }
            }
        }
        // The records were read after the list: what ended in between is no longer asked for.
        found.retain(|reservation| is_asked_for(which, reservation, &answer));
        Ok(found)
    }
}

fn is_asked_for(which: &str, reservation: &Reservation, answer: &Answer) -> bool {
    match which {
        "due" => !reservation.closed && reservation.is_expired(answer.now_ms),
        _ => reservation.closed && !reservation.status().is_final(),
    }
}

fn id_of(member: &Found) -> Result<ReservationId, QuotaError> {
    let bytes: [u8; 16] = member.bytes().try_into().map_err(|_| malformed("a reservation's id"))?;
    Ok(ReservationId::from_bytes(bytes))
}

/// Sorts the fields of a book into counters. `R`, `T`, `U` are charged; `r`, `t`, `u` charged and held together.
fn counters_of(fields: &[Found]) -> Result<Vec<CounterReading>, QuotaError> {
    let mut counters = std::collections::BTreeMap::<(Scope, Window), Counter>::new();
    for pair in fields.chunks_exact(2) {
        let field = pair[0].text();
        let mut words = field.splitn(3, ' ');
        let (Some(cell), Some(window), Some(scope)) = (words.next(), words.next(), words.next()) else { continue };
        let (Some(window), Some(scope)) = (window_of(window), scope_of(scope)) else { continue };
        let counter = counters.entry((scope, window)).or_default();
        // `held` collects the sums first.
        let (of, unit) = match cell.strip_prefix('p') {
            Some(unit) => (&mut counter.pending, unit),
            None if cell.chars().all(|c| c.is_ascii_uppercase()) => (&mut counter.charged, cell),
            None => (&mut counter.held, cell),
        };
        let value = pair[1].number()?;
        match unit {
            "r" | "R" => of.requests = value,
            "t" | "T" => of.tokens = value,
            "u" | "U" => of.usd = NanoUsd::from_nanos(value),
            _ => {}
        }
    }
    let readings = counters.into_iter().map(|((scope, window), counter)| CounterReading {
        scope,
        window,
        counter: Counter { held: counter.held - counter.charged, ..counter },
    });
    Ok(readings.filter(|reading| reading.counter != Counter::default()).collect())
}
