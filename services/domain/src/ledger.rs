//! The ledger: append-only lines, unique on (reservation, attempt, seq), as a function of the log (I8).
//!
//! The first usage of an attempt in log order is line 0. A later one of a higher rank adds a signed adjustment at the
//! same price version; an equal rank with other figures is a discrepancy; a lower rank changes nothing. Whatever the
//! consumers do, how often and in which process, the same prefix of the log gives the same lines.

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptNumber, Target};
use crate::ids::ReservationId;
use crate::money::{Amounts, Charge};
use crate::reservation::{Created, Reservation, UsageRecord};
use crate::usage::UsageSource;

/// Where on the log the event stands that justifies a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourcePosition {
    pub partition: i32,
    pub offset: i64,
}

/// The identity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LineKey {
    pub reservation: ReservationId,
    pub attempt: AttemptNumber,
    pub seq: u32,
}

/// One line. Lines of an attempt sum to `total` of the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerLine {
    pub key: LineKey,
    /// Who, which model, which counters: as locked at admission.
    pub created: Arc<Created>,
    pub target: Option<Arc<Target>>,
    pub record: Arc<UsageRecord>,
    /// This line's own, signed amount.
    pub amount: Charge,
    /// The attempt's running total after this line.
    pub total: Charge,
    /// The line that an adjustment corrects.
    pub corrects: Option<u32>,
    /// An estimate or a share: stays for ever.
    pub flagged: bool,
    /// When the event that justifies it was recorded, ms: the posting date.
    pub posted_at_ms: i64,
    pub source: SourcePosition,
}

/// What the ledger knows of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptAccount {
    pub number: AttemptNumber,
    pub total: Charge,
    pub source: UsageSource,
    pub last_seq: u32,
    /// Causes that spoke already; a copy of one is nothing new.
    pub causes: Vec<String>,
}

/// What the ledger knows of one reservation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReservationAccount {
    pub attempts: Vec<AttemptAccount>,
}

/// Two sources of the same rank that disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepancy {
    pub reservation: ReservationId,
    pub attempt: AttemptNumber,
    pub recorded: Charge,
    pub recorded_source: UsageSource,
    pub reported: Charge,
    pub reported_source: UsageSource,
    pub cause: String,
    /// Whether the tenant's policy made an adjustment of it.
    pub adjusted: bool,
}

/// What one usage comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posting {
    Posted(Box<LedgerLine>),
    /// The same figures, or a copy, or a weaker word.
    AlreadyPosted,
    Discrepancy {
        discrepancy: Box<Discrepancy>,
        adjustment: Option<Box<LedgerLine>>,
    },
}

/// The context of a usage: everything but its figures.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub created: &'a Arc<Created>,
    pub target: Option<&'a Arc<Target>>,
    pub number: AttemptNumber,
    pub recorded_at_ms: i64,
    pub source: SourcePosition,
}

impl ReservationAccount {
    fn attempt(&self, number: AttemptNumber) -> Option<&AttemptAccount> {
        self.attempts.iter().find(|account| account.number == number)
    }

    /// The account of almost every reservation: each charge came with the response, and nobody spoke again. It follows
    /// from the reservation, so nobody needs to keep it.
    #[must_use]
    pub(crate) fn usual(reservation: &Reservation) -> Self {
        let account = |attempt: &Attempt| {
            let (source, causes) = (UsageSource::Response, vec![String::new()]);
            Some(AttemptAccount { number: attempt.number, total: attempt.charge?, source, last_seq: 0, causes })
        };
        Self { attempts: reservation.attempts.iter().filter_map(account).collect() }
    }

    /// Whether [`Self::usual`] gives this one.
    #[must_use]
    pub(crate) fn is_usual(&self, reservation: &Reservation) -> bool {
        let is_usual = |account: &AttemptAccount| {
            account.source == UsageSource::Response && account.last_seq == 0 && account.causes == [""]
        };
        let charged = reservation.attempts.iter().filter_map(|attempt| Some((attempt.number, attempt.charge?)));
        self.attempts.iter().all(is_usual) && self.attempts.iter().map(|a| (a.number, a.total)).eq(charged)
    }

    fn has_charged_the_request(&self) -> bool {
        self.attempts.iter().any(|account| account.total.requests > 0)
    }

    /// Decides what `record` comes to. Pure; [`Self::take`] moves the account accordingly.
    #[must_use]
    pub fn post(&self, context: Context<'_>, record: &Arc<UsageRecord>) -> Posting {
        let Some(account) = self.attempt(context.number) else {
            let requests = if self.has_charged_the_request() { 0 } else { context.created.hold.requests };
            let amount = Amounts { requests, ..record.charge };
            return Posting::Posted(Box::new(line(context, record, 0, amount, amount, None)));
        };
        if account.causes.contains(&record.cause) {
            return Posting::AlreadyPosted;
        }
        let total = Amounts { requests: account.total.requests, ..record.charge };
        if record.source.rank() < account.source.rank() {
            return Posting::AlreadyPosted;
        }
        let adjustment = || {
            let seq = account.last_seq.saturating_add(1);
            Box::new(line(context, record, seq, total - account.total, total, Some(account.last_seq)))
        };
        // A higher rank with the same figures posts a line of zero: that it was confirmed is part of the record, so
        // that the stored lines alone tell the rank.
        if record.source.rank() > account.source.rank() {
            return Posting::Posted(adjustment());
        }
        if total == account.total {
            return Posting::AlreadyPosted;
        }
        let adjusted = context.created.adjust_on_mismatch;
        let discrepancy = Discrepancy {
            reservation: context.created.id,
            attempt: context.number,
            recorded: account.total,
            recorded_source: account.source,
            reported: total,
            reported_source: record.source,
            cause: record.cause.clone(),
            adjusted,
        };
        Posting::Discrepancy { discrepancy: Box::new(discrepancy), adjustment: adjusted.then(adjustment) }
    }

    /// Moves the account by what [`Self::post`] decided for `record`.
    pub fn take(&mut self, number: AttemptNumber, record: &UsageRecord, posting: &Posting) {
        let line = match posting {
            Posting::Posted(line) => Some(line),
            Posting::Discrepancy { adjustment, .. } => adjustment.as_ref(),
            Posting::AlreadyPosted => None,
        };
        let Some(account) = self.attempts.iter_mut().find(|account| account.number == number) else {
            if let Some(line) = line {
                // Hardly any reservation has a second one, and a list that grows takes room for four at once.
                self.attempts.reserve_exact(1);
                self.attempts.push(AttemptAccount {
                    number,
                    total: line.total,
                    source: record.source,
                    last_seq: line.key.seq,
                    causes: vec![record.cause.clone()],
                });
            }
            return;
        };
        if let Some(line) = line {
            account.total = line.total;
            account.last_seq = line.key.seq;
        }
        if record.source.rank() > account.source.rank() {
            account.source = record.source;
        }
        if !account.causes.contains(&record.cause) && account.causes.len() < MAX_CAUSES {
            account.causes.push(record.cause.clone());
        }
    }

    /// The account that stored lines of one reservation, in order of `seq`, amount to.
    #[must_use]
    pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a LedgerLine>) -> Self {
        let mut account = Self::default();
        for line in lines {
            account.take(line.key.attempt, &line.record, &Posting::Posted(Box::new(line.clone())));
        }
        account
    }
}

/// How many distinct causes of one attempt are remembered: more than any feed revises, and a bound on memory. Beyond
/// it a repeated cause is judged by its figures alone.
const MAX_CAUSES: usize = 32;

fn line(
    context: Context<'_>,
    record: &Arc<UsageRecord>,
    seq: u32,
    amount: Charge,
    total: Charge,
    corrects: Option<u32>,
) -> LedgerLine {
    LedgerLine {
        key: LineKey { reservation: context.created.id, attempt: context.number, seq },
        created: Arc::clone(context.created),
        target: context.target.cloned(),
        record: Arc::clone(record),
        amount,
        total,
        corrects,
        flagged: record.source.is_flagged(),
        posted_at_ms: context.recorded_at_ms,
        source: context.source,
    }
}
