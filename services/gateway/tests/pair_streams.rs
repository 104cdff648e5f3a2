//! The cases about streams that streams.rs has for chat, for all four pairs: one table, told by each provider in its own
//! words and read by each client in its own.

use std::time::Duration;

use crate::support::canned::{Canned, Ending, Reply};
use crate::support::pairs::{Client, PAIRS, Pair, Story};
use crate::support::raw::Raw;
use crate::support::{House, KEY, Read, Setup};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::registry::{Deadlines, ProviderDialect};
use weir_domain::reservation::ReservationStatus;
use weir_gateway::GatewayOptions;
use weir_runtime::units::HumanDuration;

const ANTHROPIC: ProviderDialect = ProviderDialect::Anthropic;

async fn alone(pair: Pair, provider: &Canned) -> House {
    with(pair, provider, Deadlines::default(), GatewayOptions::default()).await
}

async fn with(pair: Pair, provider: &Canned, deadlines: Deadlines, options: GatewayOptions) -> House {
    let (providers, speak) = (vec![provider.url()], vec![pair.provider]);
    House::build(Setup { tiers: Vec::new(), providers, speak, deadlines, options, ..Setup::default() }).await
}

/// Before a second tier of the same API that tells `second`.
async fn before(pair: Pair, first: &Canned, second: &Canned, deadlines: Deadlines) -> House {
    let (providers, speak) = (vec![first.url(), second.url()], vec![pair.provider; 2]);
    House::build(Setup { tiers: Vec::new(), providers, speak, deadlines, ..Setup::default() }).await
}

async fn ask(house: &House, pair: Pair) -> Read {
    house.send(pair.client.request(house, true)).await
}

fn second() -> Story {
    Story { prompt_tokens: 3, output_tokens: 2, ..Story::said(&["from ", "b"]) }
}

async fn ready(pair: Pair) -> Canned {
    Canned::start(Reply::stream(second().stream(pair.provider))).await
}

/// Signs of life that are no content.
fn alive(provider: ProviderDialect) -> &'static str {
    match provider {
        ProviderDialect::Openai => ": PROCESSING\n\n",
        ProviderDialect::Anthropic => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    }
}

fn in_band_error(provider: ProviderDialect, code: u16) -> String {
    match provider {
        ProviderDialect::Openai => {
            format!("data: {{\"error\":{{\"message\":\"boom\",\"type\":\"server_error\",\"code\":{code}}}}}\n\n")
        }
        ProviderDialect::Anthropic => {
            let kind = if code < 500 { "invalid_request_error" } else { "api_error" };
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"boom\"}}}}\n\n"
            )
        }
    }
}

/// The story's first event and what comes up to the first text, and the text events.
fn opening(pair: Pair, story: &Story) -> (String, Vec<String>) {
    let events = story.events(pair.provider);
    let at = events.iter().position(|event| event.contains(&story.text[0])).unwrap();
    (events[..at].concat(), events[at..].to_vec())
}

#[tokio::test]
async fn o02_o03_comments_pings_and_line_ends_are_no_content() {
    let story = Story::default();
    for pair in PAIRS {
        for line_end in ["\n", "\r\n", "\r"] {
            let events: String =
                story.events(pair.provider).iter().map(|event| format!("{}{event}", alive(pair.provider))).collect();
            let provider = Canned::start(Reply::stream(events.replace('\n', line_end))).await;
            let house = alone(pair, &provider).await;
            let read = ask(&house, pair).await;
            read.told(pair.client, true).assert_whole(&story);
            assert!(!read.text().contains("PROCESSING"));
            assert_eq!(house.reservation_of(&read).await.charged().tokens, story.tokens(), "{pair:?} {line_end:?}");
        }
    }
}

#[tokio::test]
async fn o03_signs_of_life_do_not_extend_the_first_content_budget() {
    for pair in PAIRS {
        let pieces = (0..200).map(|_| alive(pair.provider).into()).collect();
        let slow = Reply { pieces, gap: Duration::from_millis(20), ..Reply::stream("") };
        let (first, other) = (Canned::start(slow).await, ready(pair).await);
        let deadlines = Deadlines { first_content_ms: 300, ..Deadlines::default() };
        let house = before(pair, &first, &other, deadlines).await;
        let read = ask(&house, pair).await;
        read.told(pair.client, true).assert_whole(&second());
        let reservation = house.reservation_of(&read).await;
        assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation, "{pair:?}");
        assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::MayHaveExecuted));
        assert_eq!(reservation.charged().tokens, second().tokens());
    }
}

#[tokio::test]
async fn o04_a_silent_stream_is_kept_open_in_words_that_the_clients_decoders_skip() {
    let story = Story::said(&["la", "te"]);
    for pair in PAIRS {
        let (opening, rest) = opening(pair, &story);
        // An `id:` field, after which some decoders dispatch an empty event at a blank line, never passes.
        let first = format!("id: 1\n{}", rest[0]);
        let pieces = vec![opening.into(), first.into(), rest[1..].concat().into()];
        let reply = Reply { pieces, gap: Duration::from_millis(150), ..Reply::stream("") };
        let provider = Canned::start(reply).await;
        let options = GatewayOptions {
            status_after: HumanDuration::from_ms(40),
            keep_alive_every: HumanDuration::from_ms(30),
            ..GatewayOptions::default()
        };
        let house = with(pair, &provider, Deadlines::default(), options).await;
        let read = ask(&house, pair).await;
        read.told(pair.client, true).assert_whole(&story);
        let text = read.text();
        let sign = match pair.client {
            Client::Chat => ": ping\n\n",
            Client::Messages => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        };
        assert!(text.starts_with(sign), "before content: {text}");
        assert!(!text.lines().any(|line| line.starts_with("id:")), "{text}");
        let after = text.split_once("la\"").unwrap().1;
        assert!(after.split_once("te\"").unwrap().0.contains(sign), "after content: {text}");
    }
}

#[tokio::test]
async fn exhaustion_after_an_early_status_is_the_error_event_with_nothing_delivered() {
    for pair in PAIRS {
        let dying = Reply { gap: Duration::from_millis(120), ..Reply::stream("") };
        let pieces =
            vec![alive(pair.provider).into(), alive(pair.provider).into(), in_band_error(pair.provider, 500).into()];
        let provider = Canned::start(Reply { pieces, ..dying }).await;
        let options = GatewayOptions { status_after: HumanDuration::from_ms(20), ..GatewayOptions::default() };
        let house = with(pair, &provider, Deadlines::default(), options).await;
        let read = ask(&house, pair).await;
        let told = read.told(pair.client, true);
        assert_eq!(told.broken()["chunks_delivered"], 0, "{pair:?}");
        assert_eq!(told.text, "");
    }
}

#[tokio::test]
async fn a_preamble_at_its_bound_is_committed() {
    let story = Story::said(&["hi"]);
    for pair in PAIRS {
        // Events without content: a delta that says nothing, a block without text.
        let (opening, rest) = opening(pair, &story);
        let nothing = match pair.provider {
            ProviderDialect::Openai => {
                "data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}]}\n\n"
            }
            ProviderDialect::Anthropic => {
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\n\n"
            }
        };
        for (count, is_committed) in [(200, false), (300, true)] {
            let broken = opening.clone() + &nothing.repeat(count);
            let (first, other) = (Canned::start(Reply::stream(broken).ending(Ending::Reset)).await, ready(pair).await);
            let house = before(pair, &first, &other, Deadlines::default()).await;
            let told = ask(&house, pair).await.told(pair.client, true);
            if is_committed {
                assert_eq!(told.broken()["chunks_delivered"], 0, "{pair:?}");
            } else {
                told.assert_whole(&second());
            }
            assert_eq!(other.asked().len(), usize::from(!is_committed), "{pair:?}");
        }
        // With content after as many, all of it arrives.
        let provider = Canned::start(Reply::stream(opening + &nothing.repeat(300) + &rest.concat())).await;
        ask(&alone(pair, &provider).await, pair).await.told(pair.client, true).assert_whole(&story);
    }
}

#[tokio::test]
async fn tiers_are_asked_in_order_and_a_slow_one_is_not_overtaken() {
    let story = Story::said(&["slow"]);
    for pair in PAIRS {
        let (opening, rest) = opening(pair, &story);
        let pieces = vec![opening.into(), rest.concat().into()];
        let slow = Canned::start(Reply { pieces, gap: Duration::from_millis(400), ..Reply::stream("") }).await;
        let quick = ready(pair).await;
        let house = before(pair, &slow, &quick, Deadlines { first_content_ms: 5_000, ..Deadlines::default() }).await;
        for _ in 0..2 {
            ask(&house, pair).await.told(pair.client, true).assert_whole(&story);
        }
        assert_eq!((slow.asked().len(), quick.asked().len()), (2, 0), "{pair:?}");
        let house = before(pair, &slow, &quick, Deadlines { first_content_ms: 100, ..Deadlines::default() }).await;
        ask(&house, pair).await.told(pair.client, true).assert_whole(&second());
        assert_eq!((slow.asked().len(), quick.asked().len()), (3, 1), "{pair:?}");
    }
}

#[tokio::test]
async fn o06_an_error_in_a_200_before_content_is_a_failover_or_a_true_status() {
    for pair in PAIRS {
        let (opening, _) = opening(pair, &Story::default());
        for preamble in [String::new(), opening] {
            let first = Canned::start(Reply::stream(preamble.clone() + &in_band_error(pair.provider, 500))).await;
            let other = ready(pair).await;
            let house = before(pair, &first, &other, Deadlines::default()).await;
            ask(&house, pair).await.told(pair.client, true).assert_whole(&second());
            let read = ask(&alone(pair, &first).await, pair).await;
            assert_eq!(read.status, 500, "{pair:?}: {}", read.text());
            assert!(read.text().contains("boom"), "{}", read.text());

            let client_error = Canned::start(Reply::stream(preamble + &in_band_error(pair.provider, 400))).await;
            let unasked = ready(pair).await;
            let house = before(pair, &client_error, &unasked, Deadlines::default()).await;
            let read = ask(&house, pair).await;
            assert_eq!((read.status.as_u16(), unasked.asked().len()), (400, 0), "{pair:?}: {}", read.text());
            house.assert_at_rest().await;
        }
    }
}

#[tokio::test]
async fn o08_what_finished_is_whole_without_the_sentinel_and_its_usage_is_awaited() {
    let story = Story::default();
    for pair in PAIRS.into_iter().filter(|pair| pair.provider != ANTHROPIC) {
        let events = story.events(pair.provider);
        let (finished, usage) = (events[..events.len() - 2].concat(), events[events.len() - 2].clone());
        let late =
            Reply { pieces: vec![finished.into(), usage.into()], gap: Duration::from_millis(300), ..Reply::stream("") };
        for ending in [Ending::Whole, Ending::Close, Ending::Reset] {
            let provider = Canned::start(late.clone().ending(ending)).await;
            let house = alone(pair, &provider).await;
            let read = ask(&house, pair).await;
            read.told(pair.client, true).assert_whole(&story);
            assert_eq!(house.reservation_of(&read).await.charged().tokens, story.tokens(), "{pair:?} {ending:?}");
        }
    }
}

#[tokio::test]
async fn o09_a_finished_answer_without_content_is_whole() {
    let empty = Story { output_tokens: 1, ..Story::said(&[]) };
    for pair in PAIRS {
        let provider = Canned::start(Reply::stream(empty.stream(pair.provider))).await;
        let house = alone(pair, &provider).await;
        let read = ask(&house, pair).await;
        read.told(pair.client, true).assert_whole(&empty);
        assert_eq!(house.reservation_of(&read).await.status(), ReservationStatus::Settled, "{pair:?}");
    }
}

#[tokio::test]
async fn o10_content_before_an_error_in_the_same_read_is_content() {
    let story = Story::said(&["Hel"]);
    for pair in PAIRS {
        let (opening, rest) = opening(pair, &story);
        let parts = [opening, rest[0].clone(), in_band_error(pair.provider, 500)];
        let one = Reply::stream(parts.concat());
        let pieces = parts.iter().map(|part| part.clone().into()).collect();
        let three = Reply { pieces, gap: Duration::from_millis(50), ..Reply::stream("") };
        let mut texts = Vec::new();
        for reply in [one, three] {
            let (first, unasked) = (Canned::start(reply).await, ready(pair).await);
            let house = before(pair, &first, &unasked, Deadlines::default()).await;
            let read = ask(&house, pair).await;
            let told = read.told(pair.client, true);
            assert_eq!((told.text.as_str(), told.broken()["reason"].as_str()), ("Hel", Some("upstream_in_band_error")));
            assert_eq!(unasked.asked().len(), 0, "{pair:?}: no other generation");
            let reservation = house.reservation_of(&read).await;
            assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation, "i07: partial usage is no bill");
            texts.push(told);
        }
        assert_eq!(texts[0].text, texts[1].text);
    }
}

#[tokio::test]
async fn o15_anthropics_usage_is_cumulative_and_never_added_up() {
    let story = Story { prompt_tokens: 25, output_tokens: 15, ..Story::said(&["hi"]) };
    for pair in PAIRS.into_iter().filter(|pair| pair.provider == ANTHROPIC) {
        let mut events = story.events(pair.provider);
        let early =
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":8}}\n\n";
        events.insert(events.len() - 2, early.to_owned());
        let provider = Canned::start(Reply::stream(events.concat())).await;
        let house = alone(pair, &provider).await;
        let read = ask(&house, pair).await;
        read.told(pair.client, true).assert_whole(&story);
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 40, "{pair:?}");
    }
}

#[tokio::test]
async fn i09_input_usage_that_came_first_tightens_what_a_broken_stream_holds() {
    let story = Story::default();
    for client in Client::BOTH {
        let pair = Pair { client, provider: ANTHROPIC };
        let (opening, rest) = opening(pair, &story);
        let provider = Canned::start(Reply::stream(opening + &rest[0]).ending(Ending::Close)).await;
        let house = alone(pair, &provider).await;
        let read = ask(&house, pair).await;
        let reservation = house.reservation_of(&read).await;
        assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
        // The nine tokens of input that the provider reported, and the cap of fifty.
        assert_eq!(reservation.held().tokens, story.prompt_tokens + 50, "{pair:?}");
        assert!(!reservation.slot, "the slot is free");
    }
}

#[tokio::test]
async fn o45_a_slow_healthy_stream_passes() {
    let story = Story { text: (0..8).map(|n| format!("{n} ")).collect(), ..Story::said(&[]) };
    for pair in PAIRS {
        let pieces = story.events(pair.provider).into_iter().map(Into::into).collect();
        let slow = Reply { pieces, gap: Duration::from_millis(40), ..Reply::stream("") };
        let provider = Canned::start(slow).await;
        let deadlines = Deadlines { idle_ms: 400, ..Deadlines::default() };
        let house = with(pair, &provider, deadlines, GatewayOptions::default()).await;
        ask(&house, pair).await.told(pair.client, true).assert_whole(&story);
    }
}

#[tokio::test]
async fn o46_a_client_that_leaves_frees_its_slot_closes_the_provider_and_starts_nothing_more() {
    for pair in PAIRS {
        for has_content in [false, true] {
            let (opening, rest) = opening(pair, &Story::default());
            let sent = if has_content { opening + &rest[0] } else { opening };
            let (first, unasked) = (Canned::start(Reply::stream(sent).ending(Ending::Stall)).await, ready(pair).await);
            let house = before(pair, &first, &unasked, Deadlines::default()).await;
            let body = pair.client.body(true).to_string();
            let mut raw = Raw::connect(house.gateway).await;
            let head = format!(
                "POST {} HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\nanthropic-version: 2023-06-01\r\ncontent-length: {}\r\n\r\n",
                pair.client.path(),
                body.len()
            );
            raw.send(head + &body).await.unwrap();
            first.until_asked().await;
            if has_content {
                raw.until("Let me").await;
            }
            drop(raw);
            house.assert_at_rest().await;
            first.until_closed().await;
            let events = house.events().await;
            let id = events[0].0;
            let reservation = house.settled(id).await;
            assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation, "{pair:?}");
            assert!(!reservation.slot && reservation.held().tokens > 0);
            assert_eq!((first.asked().len(), unasked.asked().len()), (1, 0), "{pair:?}");
        }
    }
}
