//! The suite that every backend runs: what a store answers is what the domain's `Book` answers.
//!
//! The store's clock is in its replies, so the book is driven with the store's own time and the two can be compared to the
//! last field. A failure names the seed that shows it.

use std::collections::BTreeSet;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::quota::{Book, BookOptions, Counter, CounterReading, Reply};
use weir_domain::reservation::{Command, Reservation, ReservationStatus};
use weir_domain::testing::{RandomRun, Step};

use crate::contract::{QuotaError, QuotaStore};

/// A random run for the model.
#[derive(Debug, Clone)]
pub struct Model {
    pub seed: u64,
    /// A tenant of its own, opened empty.
    pub tenant: TenantId,
    pub steps: usize,
    /// Every amount and limit is multiplied by this.
    pub scale: i64,
    pub lease_ms: i64,
}

/// Where store and book parted.
#[derive(Debug, thiserror::Error)]
pub enum Parted {
    #[error("seed {seed}, step {step}: {what}\n  store {store}\n  book  {book}")]
    Answer { seed: u64, step: usize, what: String, store: String, book: String },
    #[error("seed {seed}, step {step}: {error}")]
    Store { seed: u64, step: usize, error: QuotaError },
}

/// Drives `store` and a book with the same commands, alone, in batches, and as corrections; compares every reply, the
/// counters, what is due and what waits. `between` runs before each step, so that a caller can let time pass, or lose the
/// store and rebuild it from the book.
pub async fn model(
    store: &dyn QuotaStore,
    model: &Model,
    between: impl AsyncFn(usize, &mut Book),
) -> Result<(), Parted> {
    let mut driven = Driven {
        store,
        model,
        book: Book::new(BookOptions::default()),
        run: RandomRun::live(model.seed, &model.tenant, model.seed << 20, model.lease_ms, model.scale),
        step: 0,
    };
    for step in 0..model.steps {
        driven.step = step;
        between(step, &mut driven.book).await;
        driven.next().await?;
        if step % 50 == 49 {
            driven.compare_readings().await?;
        }
    }
    driven.compare_readings().await
}

struct Driven<'a> {
    store: &'a dyn QuotaStore,
    model: &'a Model,
    book: Book,
    run: RandomRun,
    step: usize,
}

impl Driven<'_> {
    async fn next(&mut self) -> Result<(), Parted> {
        let now_ms = self.failing(self.store.now_ms().await)?;
        match self.run.dice.below(100) {
            0..8 => self.correct(now_ms).await,
            8..20 => self.batch(now_ms).await,
            20..22 => self.revoke().await,
            _ => {
                let Step { id, command, .. } = self.run.step_at(now_ms);
                let reply = self.failing(self.store.execute(&self.model.tenant, id, &command).await)?;
                self.compare_replies(id, &[command], &[reply])
            }
        }
    }

    /// Several commands of one reservation at once.
    async fn batch(&mut self, now_ms: i64) -> Result<(), Parted> {
        let Step { id, command, .. } = self.run.step_at(now_ms);
        let mut commands = vec![command];
        for _ in 0..20 {
            let next = self.run.step_at(now_ms);
            if next.id == id && commands.len() < 5 {
                commands.push(next.command);
            }
        }
        let replies = self.failing(self.store.execute_all(&self.model.tenant, id, &commands).await)?;
        self.compare_replies(id, &commands, &replies)
    }

    async fn correct(&mut self, now_ms: i64) -> Result<(), Parted> {
        // The store's time is known only afterwards, so it is asked for as late as possible.
        let _ = self.run.step_at(now_ms);
        let correction = self.run.random_correction();
        let reply = self.failing(self.store.correct(&self.model.tenant, &correction).await)?;
        let expected = self.book.correct(&correction, reply.now_ms);
        self.same(&format!("{correction:?}"), &reply, &expected)
    }

    /// Rarely, because nothing of that key is admitted any more.
    async fn revoke(&mut self) -> Result<(), Parted> {
        if self.step > self.model.steps / 2 && self.run.dice.chance(10) {
            let key = "vk-2".into();
            self.failing(self.store.revoke(&self.model.tenant, &key).await)?;
            self.book.revoke(key);
        }
        Ok(())
    }

    fn compare_replies(&mut self, id: ReservationId, commands: &[Command], replies: &[Reply]) -> Result<(), Parted> {
        for (command, reply) in commands.iter().zip(replies) {
            let expected = self.book.execute(id, command, reply.now_ms);
            self.same(&format!("{id} {command:?}"), reply, &expected)?;
        }
        self.same("number of replies", &replies.len(), &commands.len())
    }

    async fn compare_readings(&mut self) -> Result<(), Parted> {
        let tenant = &self.model.tenant;
        let reading = self.failing(self.store.read(tenant).await)?;
        self.same("counters", &self.in_force(&reading.counters), &self.in_force(&self.book.counters()))?;
        self.same("held", &reading.held, &self.book.held())?;
        let count = |status| self.book.reservations().filter(|r| r.status() == status).count() as u64;
        self.same("reserved", &reading.reserved, &count(ReservationStatus::Reserved))?;
        self.same("pending", &reading.pending, &count(ReservationStatus::PendingReconciliation))?;
        for id in self.run.ids().collect::<Vec<_>>() {
            let found = self.failing(self.store.find(tenant, id).await)?;
            self.same(&format!("record of {id}"), &found.as_ref(), &self.book.reservation(id).as_deref())?;
        }
        let pending = self.own(self.failing(self.store.pending(usize::MAX).await)?);
        let waiting = self.book.unfinished().filter(|r| r.status() == ReservationStatus::PendingReconciliation);
        self.same("pending ones", &pending, &waiting.map(|waiting| waiting.created.id).collect())?;
        let before_ms = self.failing(self.store.now_ms().await)?;
        let due = self.own(self.failing(self.store.due(usize::MAX).await)?);
        let after_ms = self.failing(self.store.now_ms().await)?;
        let expected = |now_ms| ids_of(&self.book.due(now_ms, usize::MAX));
        // Time passed while it was asked: at least what was due before, at most what is now.
        let is_between = expected(before_ms).is_subset(&due) && due.is_subset(&expected(after_ms));
        self.same("due", &is_between, &true)
    }

    /// Counters that a limit can look at, and what is held in the others. Windows before the one that precedes the
    /// newest are forgotten when a backend comes across them, which is not always at the same command.
    fn in_force(&self, counters: &[CounterReading]) -> Vec<CounterReading> {
        let newest = |kind| self.run.newest_windows().into_iter().find(|window| window.kind == kind);
        let mut counters = counters.to_vec();
        for CounterReading { window, counter, .. } in &mut counters {
            let is_past = newest(window.kind).is_some_and(|newest| window.ordinal < newest.ordinal - 1);
            if is_past {
                counter.charged = Amounts::ZERO;
            }
        }
        counters.retain(|reading| reading.counter != Counter::default());
        counters
    }

    fn own(&self, reservations: Vec<Reservation>) -> BTreeSet<ReservationId> {
        let own = reservations.into_iter().filter(|r| r.created.tenant == self.model.tenant);
        own.map(|reservation| reservation.created.id).collect()
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, store: &T, book: &T) -> Result<(), Parted> {
        if store == book {
            return Ok(());
        }
        let (store, book) = where_they_part(&format!("{store:?}"), &format!("{book:?}"));
        Err(Parted::Answer { seed: self.model.seed, step: self.step, what: what.to_owned(), store, book })
    }

    fn failing<T>(&self, answer: Result<T, QuotaError>) -> Result<T, Parted> {
        answer.map_err(|error| Parted::Store { seed: self.model.seed, step: self.step, error })
    }
}

/// The two texts from a little before their first difference.
fn where_they_part(a: &str, b: &str) -> (String, String) {
    const BEFORE: usize = 80;
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| text.chars().skip(same.saturating_sub(BEFORE)).collect();
    (from(a), from(b))
}

fn ids_of(reservations: &[Reservation]) -> BTreeSet<ReservationId> {
    reservations.iter().map(|reservation| reservation.created.id).collect()
}
