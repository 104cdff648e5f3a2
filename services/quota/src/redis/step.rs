//! One call of the `apply` script: its keys and arguments, and what it saw.
//!
//! The order of both is in the head of `lua/apply.lua`. Amounts travel as decimals, and each is bounded here, before the
//! script writes anything.

use weir_domain::calendar::Window;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::SourcePosition;
use weir_domain::money::Amounts;
use weir_domain::quota::{Counting, Entry, Limit, Measure, Scope, Seen, Unit};
use weir_domain::rate::RateWindow;
use weir_domain::reservation::Reserve;

use crate::contract::QuotaError;

use super::keys::{Keys, scope_code, total_field, unit_code, window_code};
use super::link::{Call, Found, malformed};
use super::plan::Question;
use super::record::{Known, body};

/// 18 decimals: two of them cannot overflow 64 bits, and in nano-USD it is a billion dollars.
const LARGEST: i64 = 999_999_999_999_999_999;

#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: ReservationId,
    /// What the step was decided on.
    pub(super) known: Option<&'a Known>,
    /// The version afterwards: an id of the operation, by which the store knows a repeat.
    pub(super) operation: &'a str,
    pub(super) effect: Effect<'a>,
    pub(super) question: Option<&'a Question>,
    pub(super) creates: Option<&'a Reserve>,
    pub(super) if_over: bool,
    /// The holder of the `Idempotency-Key` that was found to be free again, and the version of its record.
    pub(super) frees: Option<&'a (ReservationId, String)>,
    pub(super) source: Option<SourcePosition>,
    pub(super) horizon_ms: i64,
}

#[derive(Debug)]
pub(super) enum Effect<'a> {
    /// Nothing: the decision changes nothing, and must still be of the newest record.
    Look,
    Write(&'a Entry),
    /// A ledger line whose record is gone.
    Charge {
        counting: &'a Counting,
        admitted_at_ms: i64,
        amount: Amounts,
    },
}

/// How the counters move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Moves {
    total: Amounts,
    charged: Amounts,
    pending: Amounts,
}

impl Moves {
    fn of(known: Option<&Known>, effect: &Effect<'_>) -> Self {
        match effect {
            Effect::Look => Self::default(),
            Effect::Write(after) => {
                let before = known.map(|known| known.entry.reservation.position()).unwrap_or_default();
                let after = after.reservation.position();
                let charged = after.charged - before.charged;
                Self { total: charged + (after.held - before.held), charged, pending: after.pending - before.pending }
            }
            Effect::Charge { amount, .. } => Self { total: *amount, charged: *amount, pending: Amounts::ZERO },
        }
    }

    fn in_units(self) -> impl Iterator<Item = i64> {
        [self.total, self.charged, self.pending].into_iter().flat_map(|a| [a.requests, a.tokens, a.usd.nanos()])
    }
}

impl Step<'_> {
    pub(super) fn call(&self, keys: &Keys) -> Result<Call, QuotaError> {
        let moves = Moves::of(self.known, &self.effect);
        if moves.in_units().any(|amount| amount.unsigned_abs() > LARGEST.unsigned_abs()) {
            return Err(QuotaError::OutOfBounds { what: "an amount of the reservation" });
        }
        let index = self.index();
        let counting = self.counting(moves, &index);
        let mut scopes: Vec<String> =
            counting.map_or_else(Vec::new, |counting| counting.scopes.iter().map(scope_code).collect());
        let counted = scopes.len();
        let limits = self.limits(&mut scopes);

        let mut call = Call::with_key(keys.book());
        call.key(keys.record(self.id)).key(keys.due()).key(keys.pending());
        for scope in &scopes {
            call.key(keys.rate(scope)).key(keys.slots(scope));
        }
        self.record_arguments(&mut call, &index)?;
        self.guard_arguments(&mut call, keys);
        call.number(counted).number(scopes.len());
        for window in counting.map_or([Window::TOTAL; 4], |counting| counting.windows) {
            call.text(&window_code(window));
        }
        for amount in moves.in_units() {
            call.number(amount);
        }
        for scope in &scopes {
            call.text(scope);
        }
        call.number(limits.len() / 4);
        for argument in &limits {
            call.text(argument);
        }
        Ok(call)
    }

    fn counting(&self, moves: Moves, index: &str) -> Option<&Counting> {
        let counting = match &self.effect {
            Effect::Look => return None,
            Effect::Write(after) => &after.reservation.created.counting,
            Effect::Charge { counting, .. } => counting,
        };
        let moves_slots = index.contains(['s', 'S']);
        (moves != Moves::default() || moves_slots).then_some(counting)
    }

    /// What changes in the sets that list reservations.
    fn index(&self) -> String {
        let Effect::Write(after) = &self.effect else { return String::new() };
        let (before, after) = (self.known.map(|known| &known.entry.reservation), &after.reservation);
        let was_open = before.is_some_and(|before| !before.closed);
        let was_pending = before.is_some_and(|before| before.closed && !before.status().is_final());
        let is_pending = after.closed && !after.status().is_final();
        let had_slot = before.is_some_and(|before| before.slot);
        let is_renewed = before.is_none_or(|before| before.due_ms != after.due_ms);
        let changes = [
            (!after.closed && (is_renewed || !was_open), 'd'),
            (after.closed && was_open, 'D'),
            (is_pending && !was_pending, 'p'),
            (!is_pending && was_pending, 'P'),
            (after.slot && (is_renewed || !had_slot), 's'),
            (!after.slot && had_slot, 'S'),
        ];
        changes.into_iter().filter(|(happens, _)| *happens).map(|(_, letter)| letter).collect()
    }

    /// Arguments 1 to 11: the record.
    fn record_arguments(&self, call: &mut Call, index: &str) -> Result<(), QuotaError> {
        call.text(self.known.map_or("-", |known| &known.version)).text(self.operation);
        let (admitted, due) = match &self.effect {
            Effect::Look => {
                call.text("look").text("");
                (String::new(), String::new())
            }
            Effect::Write(after) => {
                call.text("write").bytes(body(self.tenant, self.id, after)?);
                let reservation = &after.reservation;
                match self.creates {
                    Some(_) => ("now".to_owned(), format!("+{}", reservation.due_ms)),
                    None => (reservation.created.admitted_at_ms.to_string(), reservation.due_ms.to_string()),
                }
            }
            Effect::Charge { admitted_at_ms, .. } => {
                call.text("charge").text("");
                (admitted_at_ms.to_string(), "0".to_owned())
            }
        };
        call.bytes(self.id.as_bytes().to_vec()).text(&admitted).text(&due).text(index);
        let (life, not_before_ms) = self.life();
        call.text(life).number(self.horizon_ms).number(not_before_ms);
        Ok(())
    }

    /// How long the record stays, and until when at least: an `Idempotency-Key` answers from it.
    fn life(&self) -> (&'static str, i64) {
        let Effect::Write(after) = &self.effect else { return ("good", 0) };
        let key_until_ms = after.reservation.created.idempotency.as_ref().map_or(0, |record| record.expires_at_ms);
        let was_leaving = self.known.is_some_and(|known| known.entry.leaving);
        match (after.leaving, was_leaving) {
            (false, _) => ("good", 0),
            (true, true) => ("keep", 0),
            (true, false) => ("go", key_until_ms),
        }
    }

    /// Arguments 12 to 19: what only the store can compare.
    fn guard_arguments(&self, call: &mut Call, keys: &Keys) {
        let created = self.creates.map(|reserve| &reserve.created);
        call.text(&created.map_or_else(String::new, |created| created.admitted_at_ms.to_string()));
        call.text(if self.if_over { "over" } else { "" });
        call.text(created.map_or("", |created| created.key.as_str()));
        match created.and_then(|created| created.idempotency.as_ref()) {
            Some(record) => {
                call.number(record.expires_at_ms).key(keys.idempotency(&record.key_hash));
            }
            None => {
                call.text("");
            }
        }
        match self.frees {
            Some((holder, version)) => {
                call.bytes(holder.as_bytes().to_vec()).text(version).key(keys.record(*holder));
            }
            None => {
                call.text("").text("");
            }
        }
        match self.source {
            Some(source) => call.number(source.partition).number(source.offset),
            None => call.text("").text(""),
        };
    }

    /// Four arguments for each limit. A limit on a scope that the reservation does not count on brings its scope along.
    fn limits(&self, scopes: &mut Vec<String>) -> Vec<String> {
        let Some(question) = self.question else { return Vec::new() };
        let mut arguments = Vec::with_capacity(4 * question.limits.len());
        for limit in question.limits.iter() {
            let code = scope_code(&limit.scope);
            let at = scopes.iter().position(|scope| *scope == code).unwrap_or_else(|| {
                scopes.push(code.clone());
                scopes.len() - 1
            });
            let (kind, what) = kind_of(question, limit, &code);
            arguments.extend([kind.to_owned(), (at + 1).to_string(), what, most(question, limit)]);
        }
        arguments
    }
}

fn kind_of(question: &Question, limit: &Limit, scope: &str) -> (&'static str, String) {
    match limit.measure {
        Measure::Calendar { unit, window: kind } => {
            let window = question.counting.windows.iter().find(|window| window.kind == kind);
            window.map_or(("n", String::new()), |window| ("c", total_field(unit, *window, scope)))
        }
        Measure::PerMinute { unit: Unit::Usd } => ("n", String::new()),
        Measure::PerMinute { unit } if all_are_taken(question, &limit.scope) => ("r", unit_code(unit).to_owned()),
        Measure::PerMinute { unit } => ("R", unit_code(unit).to_owned()),
        Measure::Concurrent => ("s", String::new()),
    }
}

/// Whether the step adds to every rate that `scope` is limited by. Then the present second is the last that clears, and
/// sums say as much as buckets.
fn all_are_taken(question: &Question, scope: &Scope) -> bool {
    let Some((extra, slots)) = question.extra else { return false };
    let rates = question.limits.iter().filter(|limit| matches!(limit.measure, Measure::PerMinute { .. }));
    // Nobody is told how the rates stand after an extension.
    let is_extension = slots == 0;
    is_extension || rates.filter(|limit| limit.scope == *scope).all(|limit| limit.share_of(extra, slots) > 0)
}

/// What may be counted before the step: empty for anything, `!` if the step alone is too much.
fn most(question: &Question, limit: &Limit) -> String {
    let Some((extra, slots)) = question.extra else { return String::new() };
    let needed = limit.share_of(extra, slots);
    if needed <= 0 {
        String::new()
    } else if needed > limit.max {
        "!".to_owned()
    } else {
        (limit.max - needed).to_string()
    }
}

/// Reads what the script found for each limit.
pub(super) fn seen(question: &Question, found: &[Found]) -> Result<Seen, QuotaError> {
    let mut seen = Seen::default();
    for (limit, found) in question.limits.iter().zip(found) {
        match (limit.measure, found) {
            (_, Found::Bytes(nothing)) if nothing.is_empty() => {}
            (Measure::Calendar { unit, window: kind }, found) => {
                let window = question.counting.windows.iter().find(|window| window.kind == kind);
                if let Some(window) = window {
                    seen.total(&limit.scope, *window, unit, found.number()?);
                }
            }
            (Measure::PerMinute { .. }, Found::List(numbers)) => seen.rate(&limit.scope, rate_of(numbers)?),
            (Measure::PerMinute { .. }, Found::Bytes(_) | Found::Number(_)) => return Err(malformed("a rate")),
            (Measure::Concurrent, found) => seen.slots(&limit.scope, found.number()?),
        }
    }
    Ok(seen)
}

fn rate_of(numbers: &[Found]) -> Result<RateWindow, QuotaError> {
    let (latest_s, buckets) = numbers.split_first().ok_or_else(|| malformed("a rate"))?;
    let buckets = buckets
        .chunks_exact(3)
        .map(|bucket| Ok((bucket[0].number()?, [bucket[1].number()?, bucket[2].number()?])))
        .collect::<Result<Vec<_>, QuotaError>>()?;
    Ok(RateWindow::of_buckets(latest_s.number()?, buckets))
}
