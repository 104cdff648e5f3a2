//! What abandoned attempts cost, under each policy: a tier that answers with headers and then falls silent, and clients
//! of whom a third leaves. The tables are printed (`--nocapture`); they are in `STREAM_CONTRACT.md`.
//!
//! A brownout of a minute and its first-content budget of ten seconds are scaled 1:10, so that a hundred requests a
//! second are a tenth of those that a minute would bring; `WEIR_BROWNOUT_SECONDS=60` makes it a minute.
//! `WEIR_STREAMS=2000` sends as many streams as the table was made with.

#![cfg(test)]

#[expect(dead_code, reason = "each program uses its own part of the harness")]
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use http_body_util::BodyExt;
use support::{House, MODEL, PATIENCE, Setup, body, tenant};
use tokio::sync::Mutex;
use tokio::time::{Duration, Instant, interval, sleep};
use weir_domain::ids::PriceVersion;
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::registry::{Deadlines, Deployment, OnAbandon};
use weir_domain::reservation::{Closing, Command, Reservation, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};
use weir_gateway::GatewayOptions;
use weir_quota::QuotaStore;
use weir_runtime::units::HumanDuration;
use weir_stub::journal::{Billed, State};
use weir_stub::script::{Script, UsageScript};

type Policy = (&'static str, fn(&mut Deployment));

const POLICIES: [Policy; 3] = [
    ("close", |deployment| Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::Close),
    ("drain_within", |deployment| Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::DrainWithin),
    ("drain", |deployment| Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::Drain),
];

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

/// A random number that tells its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What a provider charges for `billed`, by the prices of the harness.
fn charge(billed: &Billed) -> Amounts {
    let usd = NanoUsd::from_nanos(billed.prompt * 10_000 + billed.completion * 30_000);
    Amounts { requests: 0, tokens: billed.prompt + billed.completion, usd }
}

/// What is charged, held and pending, over all of a tenant.
#[derive(Debug, Clone, Copy)]
struct Books {
    charged: Amounts,
    held: Amounts,
    pending: u64,
}

impl std::fmt::Display for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} | ${} | ${}", self.pending, self.held.usd, self.charged.usd)
    }
}

async fn books(house: &House, ids: &[weir_domain::ids::ReservationId]) -> Books {
    let reading = house.quota.read(&tenant()).await.unwrap();
    let mut charged = Amounts::ZERO;
    for id in ids {
        charged += house.quota.find(&tenant(), *id).await.unwrap().unwrap().charged();
    }
    Books { charged, held: reading.held, pending: reading.pending }
}

/// Every reservation that the log knows.
async fn reservations(house: &House) -> Vec<weir_domain::ids::ReservationId> {
    let mut ids: Vec<_> = house.events().await.into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A hundred requests a second.
const EVERY_MS: u64 = 10;

/// How long the first tier is silent.
fn brownout() -> Duration {
    let asked = std::env::var("WEIR_BROWNOUT_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(6))
}

/// Waits until no request and no drain is open.
async fn at_rest(house: &House) {
    house.assert_at_rest().await;
    let deadline = Instant::now() + 2 * PATIENCE + brownout();
    while house.tasks.running().contains_key("request") || house.stubs.iter().any(|stub| stub.totals().open > 0) {
        assert!(Instant::now() < deadline, "{:?}", house.tasks.running());
        sleep(Duration::from_millis(20)).await;
    }
}

/// The provider's report for every attempt whose usage is unknown, by the id that Weir sent along.
async fn report_all(house: &House, ids: &[weir_domain::ids::ReservationId]) {
    let mut bill = HashMap::new();
    for entry in house.stubs.iter().flat_map(weir_stub::Stub::journal) {
        let ours = entry.headers.iter().find(|(name, _)| name == "x-client-request-id").unwrap().1.clone();
        bill.insert(ours, entry.billed);
    }
    for id in ids {
        let reservation: Reservation = house.quota.find(&tenant(), *id).await.unwrap().unwrap();
        for attempt in reservation.attempts.iter().filter(|attempt| !attempt.is_known()) {
            let number = attempt.number;
            let closing = bill[&format!("{id}-{number}")].map_or(Closing::NotExecuted, |billed| {
                let readings = [(Meter::InUncached, billed.prompt), (Meter::OutVisible, billed.completion)];
                Closing::Executed(Arc::new(UsageRecord {
                    usage: Usage::new(readings).unwrap(),
                    source: UsageSource::ProviderReport,
                    charge: charge(&billed),
                    price_version: PriceVersion::from("pv_test"),
                    served_tier: None,
                    cause: "report".to_owned(),
                }))
            });
            house.quota.execute(&tenant(), *id, &Command::CloseAttempt { number, closing }).await.unwrap();
        }
    }
}

/// What the providers bill in all.
fn bill(house: &House) -> Amounts {
    house.stubs.iter().map(|stub| charge(&stub.totals().billed)).sum()
}

/// Reports everything, and asserts that the books are the bill, to the last unit.
async fn assert_exact(house: &House, ids: &[weir_domain::ids::ReservationId]) -> Books {
    report_all(house, ids).await;
    let after = books(house, ids).await;
    let (charged, billed) = (after.charged, bill(house));
    assert_eq!((charged.tokens, charged.usd), (billed.tokens, billed.usd));
    assert_eq!((after.held, after.pending), (Amounts::ZERO, 0), "nothing is pending after the reports");
    after
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brownout_of_the_first_tier_costs_what_the_breaker_lets_through() {
    let _turn = TURN.lock().await;
    println!(
        "policy | clients served | attempts at the silent tier | pending | held | charged | billed | after reports"
    );
    let silent_ms = u64::try_from(brownout().as_millis()).unwrap();
    let (budget_ms, requests) = (silent_ms / 6, usize::try_from(silent_ms / EVERY_MS).unwrap());
    for (name, adapt) in POLICIES {
        // After the brownout it answers, for whoever still reads.
        let silent = Script { before_content_ms: silent_ms, chunks: 20, usage: usage(20, 20), ..Script::default() };
        let healthy = Script { chunks: 5, usage: usage(20, 5), ..Script::default() };
        let setup = Setup {
            tiers: vec![silent, healthy],
            adapt,
            deadlines: Deadlines { first_content_ms: budget_ms.cast_signed(), ..Deadlines::default() },
            options: GatewayOptions { drain_within: HumanDuration::from_ms(budget_ms), ..GatewayOptions::default() },
            ..Setup::default()
        };
        let house = Arc::new(House::build(setup).await);
        let mut ticks = interval(Duration::from_millis(EVERY_MS));
        let mut clients = Vec::new();
        for _ in 0..requests {
            ticks.tick().await;
            let (of_task, request) = (Arc::clone(&house), house.request(body(true)));
            clients.push(house.tasks.spawn("client", async move { of_task.send(request).await.status }));
        }
        let mut served = 0;
        for client in clients {
            served += usize::from(client.await.unwrap() == 200);
        }
        house.assert_at_rest().await;
        let ids = reservations(&house).await;
        let during = books(&house, &ids).await;
        at_rest(&house).await;
        let then = books(&house, &ids).await;
        let hung = house.stubs[0].journal().len();
        let billed = bill(&house).usd;
        let after = assert_exact(&house, &ids).await;
        println!(
            "{name} | {served} of {requests} | {hung} | {during} | (later: {then}) | ${billed} | ${}",
            after.charged.usd
        );
        assert!(hung < requests / 3, "the breaker bounds the damage: {hung} of {requests} asked the silent tier");
        assert!(then.held.usd + then.charged.usd >= billed, "what may be billed is held");
        if name == "drain" {
            let drained = u64::from(GatewayOptions::default().max_drains);
            assert_eq!(
                then.pending,
                (hung as u64).saturating_sub(drained),
                "of everything that is read, all is learnt"
            );
        }
    }
}

/// Busy machines distort each other's figures, so the two take turns.
static TURN: Mutex<()> = Mutex::const_new(());

fn streams() -> u64 {
    std::env::var("WEIR_STREAMS").ok().and_then(|streams| streams.parse().ok()).unwrap_or(300)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_streams_a_third_is_cancelled() {
    let _turn = TURN.lock().await;
    let streams = streams();
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_1234_u64);
    println!("seed {seed}\npolicy | cancelled | pending | held | charged | billed | after reports");
    for (name, adapt) in POLICIES {
        let script = Script { chunks: 20, gap_ms: 10, usage: usage(20, 20), ..Script::default() };
        let options = GatewayOptions { drain_within: HumanDuration::from_ms(100), ..GatewayOptions::default() };
        let house = Arc::new(House::build(Setup { tiers: vec![script], adapt, options, ..Setup::default() }).await);
        let mut dice = Dice(seed);
        let mut cancelled = 0;
        let mut running = Vec::new();
        for number in 0..streams {
            // Before the first piece, or after some.
            let leaves_after = (dice.below(10) < 3).then(|| dice.below(19));
            cancelled += u64::from(leaves_after.is_some());
            let of_task = Arc::clone(&house);
            running.push(house.tasks.spawn("client", async move { client(&of_task, leaves_after).await }));
            if number % 100 == 99 {
                for client in running.drain(..) {
                    client.await.unwrap();
                }
            }
        }
        house.assert_at_rest().await;
        let ids = reservations(&house).await;
        let during = books(&house, &ids).await;
        at_rest(&house).await;
        let then = books(&house, &ids).await;
        let billed = bill(&house).usd;
        let after = assert_exact(&house, &ids).await;
        println!("{name} | {cancelled} of {streams} | {during} | (later: {then}) | ${billed} | ${}", after.charged.usd);
        assert!(then.held.usd + then.charged.usd >= billed, "what may be billed is held");
        match name {
            "drain" => assert_eq!(then.pending, 0),
            "close" => assert!(then.pending > cancelled / 2, "{}", then.pending),
            _ => assert!(then.pending > 0),
        }
        assert_eq!(house.stubs[0].journal().iter().filter(|entry| entry.state == State::Running).count(), 0);
    }
}

async fn client(house: &House, leaves_after: Option<u64>) {
    let Some(pieces) = leaves_after else {
        assert_eq!(house.post(body(true)).await.status, 200);
        return;
    };
    let mut response = house.open(house.request(body(true))).await;
    assert_eq!(response.status(), 200, "{MODEL}");
    for _ in 0..pieces {
        if response.body_mut().frame().await.is_none() {
            break;
        }
    }
}
