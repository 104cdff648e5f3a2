//! Two control planes on one store: what either does holds everywhere, and one goes on while the other dies.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use weir_tests::catalog::{self, TENANT};
use weir_tests::client::{self, Client};
use weir_tests::stack::{RoleProcess, Stack, StackSetup, is_skipped};
use weir_tests::{eventually, weir_binary};

/// Keys that each plane makes while the other one does.
const KEYS_AT_ONCE: usize = 8;
/// Keys of an apply that takes its time: far more than the log of the store takes in one row.
const KEYS_OF_AN_APPLY: usize = 4_000;
/// When a plane is killed, in parts of a hundred of the time that an apply takes.
const KILLED_AFTER: [u32; 3] = [45, 80, 100];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_are_one_and_outlive_each_other() {
    if is_skipped("two control planes") {
        return;
    }
    let mut stack = Stack::start(StackSetup::default()).await;
    stack.join("control", "control-2");
    let mut second = stack.leave("control-2");
    assert_eq!(second.ready().await, Ok(()), "{}", second.process.told());
    let planes = [stack.admin.clone(), stack.admin_of(&second)];

    keys_made_through_either_are_valid_and_versions_only_rise(&stack, &planes).await;
    a_revocation_through_one_holds_at_once(&stack, &planes).await;
    a_tenant_has_its_name_on_every_machine(&stack);
    one_is_killed_in_the_middle_of_an_apply_and_the_other_goes_on(&mut stack, &mut second).await;
    stack.at_rest().await;
}

/// A new key, and its id.
async fn create(plane: &Client, name: &str) -> (String, String) {
    let answer = plane.post("/admin/v1/keys", json!({ "tenant": TENANT, "name": name }).to_string()).await;
    let made = answer.expect(201).json();
    let field = |field: &str| made[field].as_str().expect("a new key has it").to_owned();
    (field("key"), field("id"))
}

/// The version in force by the control store.
async fn version(plane: &Client) -> u64 {
    let shown = plane.get("/admin/v1/catalog").await.expect(200).json();
    shown["snapshot"]["version"].as_u64().expect("something is published")
}

async fn status(stack: &Stack, gateway: usize, key: &str) -> u16 {
    stack.client(gateway).with_key(key).chat(&client::chat("fast", false, &json!({}))).await.status.as_u16()
}

async fn keys_made_through_either_are_valid_and_versions_only_rise(stack: &Stack, planes: &[Client; 2]) {
    let mut last = version(&planes[0]).await;
    let mut keys = Vec::new();
    for number in 0..4 {
        keys.push(create(&planes[number % 2], &format!("turn-{number}")).await);
        // Whichever is asked, and at once.
        for plane in planes {
            assert_eq!(version(plane).await, last + 1);
        }
        last += 1;
    }
    let mut making = JoinSet::new();
    for number in 0..2 * KEYS_AT_ONCE {
        let plane = planes[number % 2].clone();
        making.spawn(async move { create(&plane, &format!("at-once-{number}")).await });
    }
    keys.extend(making.join_all().await);
    for plane in planes {
        assert_eq!(version(plane).await, last + 2 * KEYS_AT_ONCE as u64, "each key is a version of its own");
        let listed = plane.get("/admin/v1/keys").await.expect(200).json();
        let listed = listed["keys"].as_array().expect("keys are listed").clone();
        let ids: BTreeSet<&str> = listed.iter().filter_map(|key| key["id"].as_str()).collect();
        assert!(keys.iter().all(|(_, id)| ids.contains(id.as_str())), "{listed:?}");
    }
    for (key, id) in &keys {
        stack.knows(key).await;
        for gateway in 0..stack.gateways.len() {
            assert_eq!(status(stack, gateway, key).await, 200, "{id}");
        }
    }
}

async fn a_revocation_through_one_holds_at_once(stack: &Stack, planes: &[Client; 2]) {
    for (maker, revoker) in [(0, 1), (1, 0)] {
        let (key, id) = create(&planes[maker], &format!("revoked-{maker}")).await;
        stack.knows(&key).await;
        let path = format!("/admin/v1/keys/{id}?why=leaked");
        drop(planes[revoker].send(Method::DELETE, &path, "application/json", Bytes::new()).await.expect(200));
        for gateway in 0..stack.gateways.len() {
            assert_eq!(status(stack, gateway, &key).await, 401, "revoked through plane {revoker}");
        }
    }
}

/// Commands find names in the store, not in a folder.
fn a_tenant_has_its_name_on_every_machine(stack: &Stack) {
    let elsewhere = stack.folder().join("elsewhere");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(weir_binary());
        command.args(arguments).args(["--config", "weir.toml", "--data"]).arg(&elsewhere).current_dir(stack.folder());
        command.output().expect("the binary can be run")
    };
    for arguments in [&["pending", "--tenant", TENANT, "--json"][..], &["ledger", "export", "--tenant", TENANT]] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let unknown = run(&["pending", "--tenant", "nobody"]);
    let told = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(told.contains("there is no tenant `nobody`; there are: ") && told.contains(TENANT), "{told}");
}

/// The catalog of the stack with many keys that no other round has.
fn large_catalog(stack: &Stack, round: usize) -> String {
    let mut text = std::fs::read_to_string(stack.folder().join("catalog.toml")).expect("the catalog of the stack");
    for number in 0..KEYS_OF_AN_APPLY {
        let name = format!("r{round}-{number}");
        let hash = catalog::key_hash(&name);
        write!(text, "\n[[key]]\nname = \"{name}\"\ntenant = \"{TENANT}\"\nhash = \"{hash}\"\n").expect("a text");
    }
    text
}

/// Whether it was answered that the catalog is in force; `false` when the process ended before that.
async fn apply(plane: &Client, text: String) -> bool {
    let body = Bytes::from(text);
    let Ok(mut open) = plane.open(Method::POST, "/admin/v1/catalog/apply", "text/plain", body).await else {
        return false;
    };
    while let Some(piece) = open.next().await {
        if piece.is_err() {
            return false;
        }
    }
    assert_eq!(open.status.as_u16(), 200, "a catalog that is right is taken");
    true
}

/// Active keys by the store, without those that the tests made one by one.
async fn applied_keys(plane: &Client) -> BTreeSet<String> {
    let listed = plane.get("/admin/v1/keys").await.expect(200).json();
    let keys = listed["keys"].as_array().expect("keys are listed").clone();
    let is_applied =
        |key: &&Value| key["status"] == "active" && key["name"].as_str().is_some_and(|n| n.starts_with('r'));
    keys.iter().filter(is_applied).filter_map(|key| key["name"].as_str().map(str::to_owned)).collect()
}

fn names_of(round: usize) -> BTreeSet<String> {
    (0..KEYS_OF_AN_APPLY).map(|number| format!("r{round}-{number}")).collect()
}

async fn one_is_killed_in_the_middle_of_an_apply_and_the_other_goes_on(stack: &mut Stack, second: &mut RoleProcess) {
    let survivor = stack.admin.clone();
    let began = Instant::now();
    assert!(apply(&survivor, large_catalog(stack, 0)).await, "nobody is killed here");
    let took = began.elapsed();
    println!("an apply of {KEYS_OF_AN_APPLY} keys takes {took:.0?}");
    let mut before = names_of(0);
    let mut last = version(&survivor).await;
    for (round, killed_after) in (1..).zip(KILLED_AFTER) {
        let (doomed, text) = (stack.admin_of(second), large_catalog(stack, round));
        let kills = async {
            tokio::time::sleep(took * killed_after / 100).await;
            second.process.kill();
        };
        let (answered, ()) = tokio::join!(apply(&doomed, text), kills);

        // All of it or nothing, and whoever was told that it is done finds it.
        let found = applied_keys(&survivor).await;
        println!("killed after {killed_after} %: answered {answered}, applied {}", found == names_of(round));
        assert!(found == before || found == names_of(round), "{} keys of some", found.len());
        assert!(!answered || found == names_of(round), "an apply that was answered is lost");
        let now = version(&survivor).await;
        assert!(now == last || now == last + 1, "{now} after {last}");
        // The other one goes on: the same again, and a key that the gateways take.
        assert!(apply(&survivor, large_catalog(stack, round)).await, "the survivor answers");
        before = names_of(round);
        assert_eq!(applied_keys(&survivor).await, before);
        assert_eq!(version(&survivor).await, last + 1, "one version, whoever brought it");
        let (key, _) = create(&survivor, &format!("after-{round}")).await;
        stack.knows(&key).await;

        let folder = stack.folder().to_owned();
        second.restart(&folder);
        assert_eq!(second.ready().await, Ok(()), "{}", second.process.told());
        let back = stack.admin_of(second);
        last = version(&survivor).await;
        assert_eq!(version(&back).await, last, "who comes back has what the other one wrote");
        let (key, _) = create(&back, &format!("back-{round}")).await;
        stack.knows(&key).await;
        last += 1;
    }
    // Both publishers have said their last word, and it is the same.
    let is_settled = async || {
        let ready = stack.control.ready().await.is_ok() && second.ready().await.is_ok();
        ready.then_some(())
    };
    eventually("control planes that have published everything", Duration::from_secs(30), is_settled).await;
}
