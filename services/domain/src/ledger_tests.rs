//! The ledger's ranks as a table, and lines as a function of the log.

use std::collections::BTreeMap;

use super::*;
use crate::testing::*;
use crate::usage::UsageSource::{self, BucketResidual, Estimate, Person, ProviderReport, Response, Split};

/// A ledger of one reservation, and the log it reads.
struct Ledger {
    created: Arc<Created>,
    account: ReservationAccount,
    lines: Vec<LedgerLine>,
    offset: i64,
}

impl Ledger {
    fn new(adjust_on_mismatch: bool) -> Self {
        let created = Arc::new(Request { adjust_on_mismatch, ..request(1) }.created());
        Self { created, account: ReservationAccount::default(), lines: Vec::new(), offset: 0 }
    }

    /// The next usage on the log.
    fn usage(&mut self, number: AttemptNumber, record: &Arc<UsageRecord>) -> Posting {
        let source = SourcePosition { partition: 0, offset: self.offset };
        let context = Context { created: &self.created, target: None, number, recorded_at_ms: NOON_MS, source };
        let posting = self.account.post(context, record);
        self.account.take(number, record, &posting);
        self.lines.extend(posted(&posting).cloned());
        self.offset += 1;
        posting
    }

    fn lines_of(&self, number: AttemptNumber) -> impl Iterator<Item = &LedgerLine> {
        self.lines.iter().filter(move |line| line.key.attempt == number)
    }

    /// What any number of usages must leave true.
    fn assert_sums(&self) {
        let mut requests = 0;
        for account in &self.account.attempts {
            let sum: Charge = self.lines_of(account.number).map(|line| line.amount).sum();
            assert_eq!(sum, account.total, "lines of attempt {} sum to its total", account.number);
            let seqs: Vec<_> = self.lines_of(account.number).map(|line| (line.key.seq, line.corrects)).collect();
            let expected = (0..).map(|seq: u32| (seq, seq.checked_sub(1))).take(seqs.len());
            assert_eq!(seqs, expected.collect::<Vec<_>>());
            requests += account.total.requests;
        }
        assert_eq!(requests, i64::from(!self.lines.is_empty()), "the request is charged exactly once");
    }
}

fn posted(posting: &Posting) -> impl Iterator<Item = &LedgerLine> {
    let line = match posting {
        Posting::Posted(line) => Some(line.as_ref()),
        Posting::Discrepancy { adjustment, .. } => adjustment.as_deref(),
        Posting::AlreadyPosted => None,
    };
    line.into_iter()
}

fn in_words(posting: &Posting) -> String {
    match posting {
        Posting::Posted(line) => format!("line {}", line.amount.usd),
        Posting::AlreadyPosted => "nothing".to_owned(),
        Posting::Discrepancy { adjustment: None, .. } => "discrepancy".to_owned(),
        Posting::Discrepancy { adjustment: Some(line), .. } => format!("discrepancy, line {}", line.amount.usd),
    }
}

#[test]
fn the_table_of_ranks() {
    let (same, other) = ("0.05", "0.06");
    // first usage, then another, with the same figures or others: what the second comes to
    let table = [
        (Estimate, Estimate, "nothing", "discrepancy"),
        (Estimate, Split, "line 0", "line 0.01"),
        (Estimate, BucketResidual, "line 0", "line 0.01"),
        (Estimate, Response, "line 0", "line 0.01"),
        (Estimate, ProviderReport, "line 0", "line 0.01"),
        (Estimate, Person, "line 0", "line 0.01"),
        (Split, Estimate, "nothing", "nothing"),
        (Split, Split, "nothing", "discrepancy"),
        (Split, BucketResidual, "line 0", "line 0.01"),
        (Split, Response, "line 0", "line 0.01"),
        (Split, ProviderReport, "line 0", "line 0.01"),
        (Split, Person, "line 0", "line 0.01"),
        (BucketResidual, Estimate, "nothing", "nothing"),
        (BucketResidual, Split, "nothing", "nothing"),
        (BucketResidual, BucketResidual, "nothing", "discrepancy"),
        (BucketResidual, Response, "line 0", "line 0.01"),
        (BucketResidual, ProviderReport, "line 0", "line 0.01"),
        (BucketResidual, Person, "line 0", "line 0.01"),
        (Response, Estimate, "nothing", "nothing"),
        (Response, Split, "nothing", "nothing"),
        (Response, BucketResidual, "nothing", "nothing"),
        (Response, Response, "nothing", "discrepancy"),
        (Response, ProviderReport, "nothing", "discrepancy"),
        (Response, Person, "line 0", "line 0.01"),
        (ProviderReport, Estimate, "nothing", "nothing"),
        (ProviderReport, Split, "nothing", "nothing"),
        (ProviderReport, BucketResidual, "nothing", "nothing"),
        (ProviderReport, Response, "nothing", "discrepancy"),
        (ProviderReport, ProviderReport, "nothing", "discrepancy"),
        (ProviderReport, Person, "line 0", "line 0.01"),
        (Person, Estimate, "nothing", "nothing"),
        (Person, Split, "nothing", "nothing"),
        (Person, BucketResidual, "nothing", "nothing"),
        (Person, Response, "nothing", "nothing"),
        (Person, ProviderReport, "nothing", "nothing"),
        (Person, Person, "nothing", "discrepancy"),
    ];
    for (first, second, when_same, when_other) in table {
        for (dollars, expected) in [(same, when_same), (other, when_other)] {
            for adjusts in [false, true] {
                let mut ledger = Ledger::new(adjusts);
                ledger.usage(1, &record(first, of_attempt(900, same), "1"));
                let posting = ledger.usage(1, &record(second, of_attempt(900, dollars), "2"));
                let expected = match expected {
                    "discrepancy" if adjusts => "discrepancy, line 0.01",
                    expected => expected,
                };
                assert_eq!(in_words(&posting), expected, "{first:?}, then {second:?} at {dollars}, {adjusts}");
                ledger.assert_sums();
            }
        }
    }
}

#[test]
fn a_line_names_who_says_it_and_what_it_corrects() {
    let mut ledger = Ledger::new(false);
    ledger.usage(1, &record(Estimate, of_attempt(1_600, "0.08"), "ceiling"));
    ledger.usage(1, &record(ProviderReport, of_attempt(900, "0.05"), "report-1"));
    let [estimate, report] = &ledger.lines[..] else { panic!("{:?}", ledger.lines) };
    // The flag of the estimate stays, and the report carries none.
    assert_eq!((estimate.flagged, report.flagged), (true, false));
    assert_eq!((estimate.key.seq, estimate.corrects, report.key.seq, report.corrects), (0, None, 1, Some(0)));
    assert_eq!((estimate.amount, report.amount), (amounts(1, 1_600, "0.08"), of_attempt(-700, "-0.03")));
    assert_eq!((report.total, report.source.offset), (amounts(1, 900, "0.05"), 1));
}

#[test]
fn a_discrepancy_says_who_disagrees_about_what() {
    for adjusted in [false, true] {
        let mut ledger = Ledger::new(adjusted);
        ledger.usage(1, &record(Response, of_attempt(900, "0.05"), ""));
        let posting = ledger.usage(1, &record(ProviderReport, of_attempt(1_000, "0.07"), "report-1"));
        let Posting::Discrepancy { discrepancy, adjustment } = posting else { panic!("{posting:?}") };
        let expected = Discrepancy {
            reservation: id(1),
            attempt: 1,
            recorded: amounts(1, 900, "0.05"),
            recorded_source: Response,
            reported: amounts(1, 1_000, "0.07"),
            reported_source: ProviderReport,
            cause: "report-1".to_owned(),
            adjusted,
        };
        assert_eq!((*discrepancy, adjustment.is_some()), (expected, adjusted));
        // A copy of the report is nothing new.
        let copy = ledger.usage(1, &record(ProviderReport, of_attempt(1_000, "0.07"), "report-1"));
        assert_eq!(copy, Posting::AlreadyPosted);
    }
}

#[test]
fn scenario_15_the_first_provider_had_run_it_after_all() {
    let mut ledger = Ledger::new(false);
    // The answer came from attempt 2; the report on attempt 1 comes a day later.
    ledger.usage(2, &record(Response, of_attempt(120, "0.00014"), ""));
    ledger.usage(1, &record(ProviderReport, of_attempt(1_000, "0.028"), "report-1"));
    let amounts_of = |ledger: &Ledger| ledger.lines.iter().map(|line| line.amount).collect::<Vec<_>>();
    assert_eq!(amounts_of(&ledger), [amounts(1, 120, "0.00014"), of_attempt(1_000, "0.028")]);
    ledger.assert_sums();
}

const SOURCES: [UsageSource; 6] = [Estimate, Split, BucketResidual, Response, ProviderReport, Person];

/// A usage by anybody; a small number of figures, so that some agree. Its cause is new.
fn random_usage(dice: &mut Dice, n: i64) -> (AttemptNumber, Arc<UsageRecord>) {
    let number = if dice.chance(70) { 1 } else { 2 };
    let charge = of_attempt(dice.between(0, 2), "0.01");
    (number, record(*dice.pick(&SOURCES), charge, &format!("cause-{n}")))
}

#[test]
fn lines_always_sum_to_totals_and_the_request_is_charged_once_in_any_order() {
    for seed in 0..runs(2_000) {
        let mut dice = Dice::new(seed);
        let mut ledger = Ledger::new(dice.chance(50));
        let mut heard: Vec<(AttemptNumber, Arc<UsageRecord>)> = Vec::new();
        for n in 0..12 {
            let is_copy = !heard.is_empty() && dice.chance(30);
            let (number, usage) = if is_copy { dice.pick(&heard).clone() } else { random_usage(&mut dice, n) };
            let posting = ledger.usage(number, &usage);
            assert!(!is_copy || posting == Posting::AlreadyPosted, "seed {seed}: a copy made {posting:?}");
            heard.push((number, usage));
            ledger.assert_sums();
        }
    }
}

/// The same prefix gives the same lines, read at once or with a stop after any event, copied or not.
#[test]
fn lines_are_a_function_of_the_prefix() {
    for seed in 0..runs(500) {
        let mut dice = Dice::new(seed);
        let adjusts = dice.chance(50);
        let log: Vec<_> = (0..8).map(|n| random_usage(&mut dice, n)).collect();
        let read = |log: &[(AttemptNumber, Arc<UsageRecord>)], copies: usize| {
            let mut ledger = Ledger::new(adjusts);
            for (number, usage) in log {
                (0..copies).for_each(|_| drop(ledger.usage(*number, usage)));
            }
            // Offsets differ where copies lie between; everything else may not.
            let lines = ledger.lines.into_iter().map(|line| (line.key, line.amount, line.total, line.corrects));
            lines.collect::<Vec<_>>()
        };
        let whole = read(&log, 1);
        assert_eq!(read(&log, 3), whole, "seed {seed}");
        for end in 0..log.len() {
            let prefix = read(&log[..end], 1);
            assert_eq!(prefix, whole[..prefix.len()], "seed {seed}: a longer log changes no earlier line");
        }
    }
}

#[test]
fn stored_lines_go_on_as_the_live_account_does() {
    for seed in 0..runs(2_000) {
        let mut dice = Dice::new(seed);
        let mut live = Ledger::new(dice.chance(50));
        for n in 0..dice.between(1, 6) {
            let (number, usage) = random_usage(&mut dice, n);
            live.usage(number, &usage);
        }
        let mut stored = Ledger { account: ReservationAccount::of_lines(&live.lines), ..Ledger::new(false) };
        (stored.created, stored.offset) = (Arc::clone(&live.created), live.offset);
        for n in 100..106 {
            let is_copy_of_a_line = dice.chance(30);
            let (number, usage) = if is_copy_of_a_line {
                let line = dice.pick(&live.lines);
                (line.key.attempt, Arc::clone(&line.record))
            } else {
                random_usage(&mut dice, n)
            };
            assert_eq!(stored.usage(number, &usage), live.usage(number, &usage), "seed {seed}");
        }
        let totals = |account: &ReservationAccount| -> BTreeMap<_, _> {
            account.attempts.iter().map(|a| (a.number, (a.total, a.source, a.last_seq))).collect()
        };
        assert_eq!(totals(&stored.account), totals(&live.account), "seed {seed}");
    }
}

#[test]
fn causes_are_bounded_and_beyond_the_bound_figures_alone_decide() {
    let mut ledger = Ledger::new(true);
    for n in 0..200 {
        ledger.usage(1, &record(ProviderReport, of_attempt(n, "0.01"), &format!("report-{n}")));
    }
    assert_eq!(ledger.account.attempts[0].causes.len(), MAX_CAUSES);
    let same_figures = record(ProviderReport, of_attempt(199, "0.01"), "report-199");
    assert_eq!(ledger.usage(1, &same_figures), Posting::AlreadyPosted);
    ledger.assert_sums();
}
