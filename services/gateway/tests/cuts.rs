//! Streams cut at every event boundary and one byte beside it, over real sockets, for all four pairs and three ways to
//! end: what the client has, and what the ledger's events say that it costs. (Every byte, without sockets:
//! `src/course_tests.rs`.)

use std::collections::BTreeSet;

use crate::support::canned::{Canned, Ending, Reply};
use crate::support::pairs::{PAIRS, Pair, Story, Told};
use crate::support::{House, Read, Setup};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::registry::{Deadlines, ProviderDialect};
use weir_domain::reservation::{Reservation, ReservationStatus};

/// Short, because every stall waits for it; long enough that nothing else does.
const IDLE_MS: i64 = 120;

async fn house(pair: Pair, provider: &Canned) -> House {
    let deadlines = Deadlines { idle_ms: IDLE_MS, usage_after_finish_ms: IDLE_MS / 2, ..Deadlines::default() };
    let (providers, speak) = (vec![provider.url()], vec![pair.provider]);
    House::build(Setup { tiers: Vec::new(), providers, speak, deadlines, ..Setup::default() }).await
}

/// Where the story's events end.
fn boundaries(events: &[String]) -> Vec<usize> {
    events
        .iter()
        .scan(0, |at, event| {
            *at += event.len();
            Some(*at)
        })
        .collect()
}

/// The least and the most that the cut stream can have told: an event that lacks its blank line is one if the stream
/// closes, and none if it stalls.
fn whole_events(boundaries: &[usize], cut: usize) -> (usize, usize) {
    let within = |slack: usize| boundaries.iter().filter(|end| **end <= cut + slack).count();
    (within(0), within(1))
}

struct Expected<'a> {
    pair: Pair,
    story: &'a Story,
    events: &'a [String],
    least: usize,
    most: usize,
}

impl Expected<'_> {
    fn first(&self, what: &str) -> usize {
        self.events.iter().position(|event| event.contains(what)).unwrap() + 1
    }

    /// After how many events the answer is whole, and after how many its usage is final.
    fn ends(&self) -> (usize, usize) {
        match self.pair.provider {
            ProviderDialect::Openai => (self.first("\"finish_reason\":\"tool_calls\""), self.first("prompt_tokens")),
            ProviderDialect::Anthropic => {
                (self.first("\"type\":\"message_stop\""), self.first("\"stop_reason\":\"tool_use\""))
            }
        }
    }

    #[track_caller]
    fn check(&self, read: &Read, reservation: &Reservation, at: &str) {
        let (whole, used) = self.ends();
        let text = self.first("Let me");
        let is_known = |count: usize| count >= used;
        if read.status != 200 {
            assert!(self.least < text, "{at}: {}", read.text());
            assert!([502, 504].contains(&read.status.as_u16()), "{at}");
            assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::MayHaveExecuted), "{at}");
        } else {
            assert!(self.most >= text, "{at}");
            let told = Told::of_stream(self.pair.client, &read.text());
            if told.terminals == 1 {
                assert!(self.most >= whole, "{at}: {told:?}");
                told.assert_whole(self.story);
            } else {
                assert!(self.least < whole, "{at}: {told:?}");
                let error = told.broken();
                assert!(error["chunks_delivered"].as_u64().unwrap() >= 1, "{at}: {error}");
                assert!(self.story.text.concat().starts_with(&told.text), "{at}: {told:?}");
                assert!(self.story.arguments.concat().starts_with(&told.arguments), "{at}: {told:?}");
                let said = match self.pair.provider {
                    ProviderDialect::Openai => None,
                    // Its own stop reason comes before the end of its message.
                    ProviderDialect::Anthropic => Some("tool_calls").filter(|_| is_known(self.most)),
                };
                assert!(told.finish.is_none() || told.finish.as_deref() == said, "{at}: an invented finish");
            }
        }
        match reservation.status() {
            ReservationStatus::Settled => {
                assert!(is_known(self.most), "{at}");
                assert_eq!(reservation.charged().tokens, self.story.tokens(), "{at}");
            }
            ReservationStatus::PendingReconciliation => {
                assert!(!is_known(self.least), "{at}");
                assert!(reservation.held().tokens > 0, "{at}: what is unknown stays held");
                assert_eq!(reservation.charged().tokens, 0, "{at}");
            }
            other @ (ReservationStatus::Reserved | ReservationStatus::Released) => panic!("{at}: {other:?}"),
        }
    }
}

async fn cut_all(pair: Pair, ending: Ending) {
    let story = Story::default();
    let events = story.events(pair.provider);
    let stream = events.concat();
    let boundaries = boundaries(&events);
    let provider = Canned::start(Reply::stream("")).await;
    let mut cuts = BTreeSet::new();
    for boundary in [0].iter().chain(&boundaries) {
        cuts.extend([boundary.saturating_sub(1), *boundary, boundary + 1]);
    }
    cuts.retain(|cut| *cut <= stream.len());
    for (number, cut) in cuts.into_iter().enumerate() {
        let at = format!("{pair:?}, {ending:?} at {cut}");
        // A gateway of its own for each, whose circuit is closed.
        let house = house(pair, &provider).await;
        provider.answer(Reply::stream(stream.as_bytes()[..cut].to_vec()).ending(ending));
        let read = house.send(pair.client.request(&house, true)).await;
        let reservation = house.reservation_of(&read).await;
        let (least, most) = whole_events(&boundaries, cut);
        let expected = Expected { pair, story: &story, events: &events, least, most };
        expected.check(&read, &reservation, &at);
        house.assert_at_rest().await;
        assert_eq!(provider.asked().len(), number + 1, "{at}: one call, and no other generation");
        let kinds = house.kinds().await;
        let count = |kind: &str| kinds.iter().filter(|found| **found == kind).count();
        let closing = count("ReservationSettled") + count("ReservationPending");
        assert_eq!((count("ReservationCreated"), count("AttemptStarted"), closing), (1, 1, 1), "{at}: {kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o07_o08_a_stream_that_closes_early_at_any_boundary() {
    for pair in PAIRS {
        for ending in [Ending::Whole, Ending::Close] {
            cut_all(pair, ending).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o11_a_stream_that_is_reset_at_any_boundary() {
    for pair in PAIRS {
        cut_all(pair, Ending::Reset).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o45_a_stream_that_falls_silent_at_any_boundary() {
    for pair in PAIRS {
        cut_all(pair, Ending::Stall).await;
    }
}
