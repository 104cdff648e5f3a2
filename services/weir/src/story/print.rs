//! A story as a person reads it.

use std::fmt;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::money::Amounts;
use weir_domain::reservation::{Event, PendCause, UsageRecord};
use weir_domain::usage::UsageSource;

use super::{Admission, AttemptStory, LineStory, Story};

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [(self.escalated, ", escalated to a person"), (self.flagged, ", flagged")];
        let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, text)| *text).collect();
        writeln!(f, "reservation {}: {}{flags}", self.reservation, self.status.unwrap_or("not derived yet"))?;
        if let Some(admission) = &self.admission {
            print_admission(f, admission)?;
        }
        writeln!(f, "\nevents")?;
        for event in &self.events {
            let attempt = if event.attempt == 0 { String::new() } else { format!(" #{}", event.attempt) };
            let kind = format!("{}{attempt}", event.kind);
            writeln!(f, "  {:>8}  {}  {kind:<22} {}", event.offset, event.at, fact(&event.fact))?;
        }
        writeln!(f, "\nattempts")?;
        self.attempts.iter().try_for_each(|attempt| print_attempt(f, attempt))?;
        writeln!(f, "\nledger")?;
        self.lines.iter().try_for_each(|line| print_line(f, line))?;
        writeln!(f, "\ncharged {}; held {}", amounts(self.charged), amounts(self.held))?;
        if !self.derived {
            writeln!(f, "the ledger has not read all of these events yet: ask again in a moment")?;
        }
        Ok(())
    }
}

fn print_admission(f: &mut fmt::Formatter<'_>, admission: &Admission) -> fmt::Result {
    let Admission { tenant, team, key, model, admitted_at, hold, price_version, .. } = admission;
    let team = team.as_ref().map(|team| format!(", team {team}")).unwrap_or_default();
    writeln!(f, "  tenant {tenant}{team}, key {key}, model {model}")?;
    writeln!(f, "  admitted {admitted_at}, holding {}, prices {price_version}", amounts(*hold))?;
    if !admission.labels.is_empty() {
        let labels: Vec<_> = admission.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(f, "  labels {}", labels.join(" "))?;
    }
    Ok(())
}

fn print_attempt(f: &mut fmt::Formatter<'_>, attempt: &AttemptStory) -> fmt::Result {
    let place = match (&attempt.deployment, &attempt.provider) {
        (Some(deployment), Some(provider)) => format!("{deployment} at {provider}"),
        (Some(_) | None, Some(_) | None) => "known from its ledger line only".to_owned(),
    };
    let outcome = attempt.outcome.map_or("running", outcome);
    let money = match attempt.charge {
        Some(charge) => format!("charged {}", amounts(charge)),
        None => format!("holds {}", amounts(attempt.held)),
    };
    writeln!(f, "  #{}  {place}: {outcome}, {money}", attempt.number)
}

fn print_line(f: &mut fmt::Formatter<'_>, line: &LineStory) -> fmt::Result {
    let usage: Vec<_> = line.usage.iter().map(|(meter, quantity)| format!("{meter} {quantity}")).collect();
    let corrects = line.corrects.map(|seq| format!(", corrects line {seq}")).unwrap_or_default();
    let flag = if line.flagged { ", flagged" } else { "" };
    let (attempt, seq, posted_at) = (line.attempt, line.seq, line.posted_at);
    let (amount, source, usage) = (amounts(line.amount), source(line.source), usage.join(", "));
    writeln!(f, "  #{attempt}.{seq}  {posted_at}  {amount}, by {source}{corrects}{flag}: {usage}")
}

/// What an event says beyond its kind.
fn fact(event: &Event) -> String {
    match event {
        Event::ReservationCreated(created) => format!("holds {}", amounts(created.hold)),
        Event::ReservationExtended { by, .. } => format!("holds {} more", amounts(*by)),
        Event::AttemptStarted { hold, target, .. } => {
            format!("{} at {}, holds {}", target.deployment, target.provider, amounts(*hold))
        }
        Event::AttemptCorrelated { provider_id, .. } => format!("the provider calls it {provider_id}"),
        Event::UsageBounded { hold, .. } => format!("at most {}", amounts(*hold)),
        Event::UsageRecorded { record, .. } => recorded(record),
        Event::AttemptClosed { outcome: closed, .. } => outcome(*closed).to_owned(),
        Event::ReservationPending { cause: PendCause::UsageUnknown, .. } => "the usage is not known".to_owned(),
        Event::ReservationPending { cause: PendCause::Expired, .. } => "its owner is gone".to_owned(),
        Event::ReservationSettled { charged } => format!("charged {}", amounts(*charged)),
        Event::ReservationReleased => "nothing was executed".to_owned(),
        Event::ReservationResumed { .. } => "its owner came back".to_owned(),
        Event::ReservationEscalated => "a person must say what was used".to_owned(),
        Event::SlotFreed | Event::LeaseRenewed { .. } | Event::ChargeCorrected { .. } => String::new(),
    }
}

fn recorded(record: &UsageRecord) -> String {
    let cause = if record.cause.is_empty() { String::new() } else { format!(" ({})", record.cause) };
    format!("{} by {}{cause}", amounts(record.charge), source(record.source))
}

const fn outcome(outcome: AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::NotExecuted => "not executed",
        AttemptOutcome::MayHaveExecuted => "may have executed",
        AttemptOutcome::Executed => "executed",
        AttemptOutcome::ExecutedUsageUnknown => "executed, usage unknown",
    }
}

const fn source(source: UsageSource) -> &'static str {
    match source {
        UsageSource::Estimate => "estimate",
        UsageSource::Split => "a share of a bucket",
        UsageSource::BucketResidual => "the rest of a bucket",
        UsageSource::Response => "response",
        UsageSource::ProviderReport => "provider's report",
        UsageSource::Person => "a person",
    }
}

/// `1 request, 21 tokens, $0.0000045`, without what is zero.
pub(crate) fn amounts(amounts: Amounts) -> String {
    let Amounts { requests, tokens, usd } = amounts;
    let mut parts = Vec::new();
    if requests != 0 {
        parts.push(format!("{requests} request{}", if requests == 1 { "" } else { "s" }));
    }
    if tokens != 0 {
        parts.push(format!("{tokens} tokens"));
    }
    if usd.nanos() != 0 {
        parts.push(if usd.nanos() < 0 { format!("-${}", -usd) } else { format!("${usd}") });
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}
