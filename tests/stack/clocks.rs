//! Gateways whose clocks differ: three seconds change nothing, thirty are refused by name.
//!
//! The calendar window of a charge is that of the quota store's clock, and the gateway's own clock dates its events. A
//! gateway too far off would date what the store counts elsewhere, so the store takes nothing from it.

use std::collections::HashMap;

use serde_json::json;
use tokio::task::JoinSet;

use weir_stub::script::Scripts;
use weir_tests::catalog::{Catalog, TENANT};
use weir_tests::client::{self, Client};
use weir_tests::eventually;
use weir_tests::failpoints::Plan;
use weir_tests::stack::{LONG, Stack, StackSetup, is_skipped};

/// Requests that the day has room for, and how many are tried at once through each gateway.
const ROOM: usize = 20;
const TRIES: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_three_seconds_apart_admit_exactly_and_thirty_seconds_are_refused() {
    if is_skipped("clocks three and thirty seconds apart") {
        return;
    }
    let plans = HashMap::from([("gateway-0", Plan::default()), ("gateway-1", Plan::default())]);
    plans["gateway-0"].set_clock_ahead_ms(3_000);
    plans["gateway-1"].set_clock_ahead_ms(-3_000);
    let limit = format!("\n[[limit]]\ntenant = \"{TENANT}\"\nkind = \"requests per day\"\nmax = {ROOM}\n");
    let scripts = Scripts::from_toml("[default]\nbefore_headers_ms = 300").expect("it is a script");
    let mut stack =
        Stack::start(StackSetup { catalog: Catalog::default().and(&limit), scripts, plans, ..StackSetup::default() })
            .await;

    let mut burst = JoinSet::new();
    for number in 0..2 * TRIES {
        let client = stack.client(number % 2);
        burst
            .spawn(async move { client.chat(&client::chat("fast", number % 4 > 1, &json!({}))).await.status.as_u16() });
    }
    let statuses = burst.join_all().await;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(admitted, ROOM, "{statuses:?}\n{}", stack.told());
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    assert_eq!(stack.stub.journal().len(), ROOM);
    stack.at_rest().await;

    stack.plans["gateway-1"].set_clock_ahead_ms(30_000);
    let folder = stack.folder().to_owned();
    stack.gateways[1].restart(&folder);
    let probe = Client::new(&stack.gateways[1].url, "");
    let unready = async || {
        let answer = probe.probe("/readyz").await?;
        let told = answer.text();
        (!answer.status.is_success() && told.contains("clock")).then_some(told)
    };
    let told = eventually("a gateway that says its clock is off", LONG, unready).await;
    assert!(told.contains("synchronise"), "{told}");
    let asked = async || {
        let open = stack.client(1).open_chat(&client::chat("fast", false, &json!({}))).await;
        open.ok().map(|open| open.status.as_u16())
    };
    assert_eq!(eventually("an answer of a gateway that is off", LONG, asked).await, 503);
    assert_eq!(stack.stub.journal().len(), ROOM, "nothing went to the provider");

    stack.plans["gateway-1"].set_clock_ahead_ms(-1);
    stack.gateways[1].restart(&folder);
    stack.ready().await;
    assert_eq!(stack.client(1).chat(&client::chat("fast", false, &json!({}))).await.status, 429, "the day is full");
    stack.at_rest().await;
}
