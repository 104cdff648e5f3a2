//! What is told of a run: a table for people, JSON, JUnit, and the transcripts.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::clauses::Clause;
use super::evidence::{Evidence, Target};
use super::pair::Pair;
use super::verdict::{Outcome, Verdict};

/// A clause at a pair of APIs, and what was found.
#[derive(Debug)]
pub struct Played {
    pub clause: &'static Clause,
    pub pair: Pair,
    pub outcome: Outcome,
}

/// How many of each verdict.
#[must_use]
pub fn count(played: &[Played], verdict: Verdict) -> usize {
    played.iter().filter(|played| played.outcome.verdict == verdict).count()
}

/// For people: by pair, one line a clause, findings below it.
#[must_use]
pub fn table(all: &[Played]) -> String {
    let mut out = String::new();
    let mut pair = None;
    let width = |of: fn(&Clause) -> usize| all.iter().map(|played| of(played.clause)).max().unwrap_or(0);
    let (ids, injections) = (width(|clause| clause.id.len()), width(|clause| clause.injected.chars().count()));
    for Played { clause, pair: of, outcome } in all {
        if pair != Some(*of) {
            pair = Some(*of);
            put(&mut out, format_args!("\n{} client, {} provider\n", of.client.name(), of.provider.name()));
        }
        let (verdict, injected) = (outcome.verdict.name(), clause.injected);
        put(&mut out, format_args!("  {verdict:<7}  {:<ids$}  {injected:<injections$}  {}\n", clause.id, outcome.got));
        if outcome.verdict != Verdict::Pass {
            put(&mut out, format_args!("           must hold: {}\n", clause.title));
            outcome.findings.iter().for_each(|finding| put(&mut out, format_args!("           {finding}\n")));
        }
    }
    let [passed, differ, failed] = [Verdict::Pass, Verdict::Differs, Verdict::Fail].map(|verdict| count(all, verdict));
    put(&mut out, format_args!("\n{passed} kept, {differ} kept in another way, {failed} broken\n"));
    out
}

/// For programs.
#[must_use]
pub fn json(gateway: &str, all: &[Played]) -> Value {
    let clause = |Played { clause, pair, outcome }: &Played| {
        json!({
            "id": clause.id, "title": clause.title, "injected": clause.injected, "source": clause.source,
            "pair": pair.to_string(), "verdict": outcome.verdict.name(), "findings": outcome.findings,
            "got": outcome.got,
        })
    };
    json!({
        "gateway": gateway,
        "pass": count(all, Verdict::Pass), "differs": count(all, Verdict::Differs), "fail": count(all, Verdict::Fail),
        "clauses": all.iter().map(clause).collect::<Vec<_>>(),
    })
}

/// For CI servers: a suite a pair; what differs counts as skipped, with the reason.
#[must_use]
pub fn junit(all: &[Played]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"stream contract\">\n");
    for pair in Pair::ALL {
        let suite: Vec<_> = all.iter().filter(|played| played.pair == pair).collect();
        if suite.is_empty() {
            continue;
        }
        let of = |verdict| suite.iter().filter(|played| played.outcome.verdict == verdict).count();
        put(
            &mut out,
            format_args!(
                "  <testsuite name=\"{pair}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
                suite.len(),
                of(Verdict::Fail),
                of(Verdict::Differs)
            ),
        );
        for Played { clause, outcome, .. } in suite {
            put(&mut out, format_args!("    <testcase classname=\"{pair}\" name=\"{}\">", clause.id));
            let message = escaped(&format!("{}: {}; {}", clause.title, outcome.findings.join("; "), outcome.got));
            match outcome.verdict {
                Verdict::Pass => {}
                Verdict::Differs => put(&mut out, format_args!("<skipped message=\"{message}\"/>")),
                Verdict::Fail => put(&mut out, format_args!("<failure message=\"{message}\"/>")),
            }
            out.push_str("</testcase>\n");
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to say them.
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// Where transcripts are written, if anywhere: a file a clause, below a folder a pair.
#[derive(Debug, Default)]
pub struct Transcripts {
    folder: Option<PathBuf>,
}

impl Transcripts {
    /// Makes the folders.
    pub fn below(folder: Option<PathBuf>, pairs: &[Pair]) -> io::Result<Self> {
        for (folder, pair) in folder.iter().flat_map(|folder| pairs.iter().map(move |pair| (folder, pair))) {
            fs::create_dir_all(folder.join(pair.to_string()))?;
        }
        Ok(Self { folder })
    }

    /// Without a transcript the verdict stands all the same, so that a full disk is told and ends nothing.
    pub(super) fn write(&self, clause: &Clause, evidence: &Evidence) {
        let Some(folder) = &self.folder else { return };
        let file = folder.join(evidence.pair.to_string()).join(format!("{}.txt", clause.id));
        if let Err(error) = fs::write(&file, transcript(clause, evidence)) {
            eprintln!("weir: {}: {error}", file.display());
        }
    }
}

/// Every byte with its time, as ASCII with escapes, and the provider's calls.
fn transcript(clause: &Clause, evidence: &Evidence) -> String {
    let mut out = format!("{}: {}\ninjected: {}\n", clause.id, clause.title, clause.injected);
    for (number, step) in evidence.steps.iter().enumerate() {
        let transcript = &step.transcript;
        put(&mut out, format_args!("\nrequest {}\nstatus {:?}\n", number + 1, transcript.status));
        transcript.headers.iter().for_each(|(name, value)| put(&mut out, format_args!("{name}: {value}\n")));
        for piece in &transcript.pieces {
            put(&mut out, format_args!("{:>8} ms  {}\n", piece.at_ms, piece.bytes.escape_ascii()));
        }
        put(&mut out, format_args!("{:>8} ms  end: {:?}\n", transcript.ended_ms, transcript.end));
        for call in &step.calls {
            let target = match call.target {
                Target::First => "first",
                Target::Second => "second",
            };
            put(&mut out, format_args!("provider, {target} model: {}; asked {}\n", call.state, call.body));
        }
    }
    out
}

/// Writing to a string cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _written = out.write_fmt(text).is_ok();
}
