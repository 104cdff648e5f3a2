//! Starting and stopping a real process.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{PATIENCE, Place, eventually, files, plain, streamed};

#[test]
fn a_port_in_use_is_said_with_what_to_do() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = place.run(&["up", "--listen", &address, "--admin-listen", "127.0.0.1:0"]).refused(1);
    let expected = format!(
        "weir: {address} is in use by another process: stop it (`ss -ltnp 'sport = :{}'` names it) or choose another \
         port, 0 for a free one",
        taken.local_addr().unwrap().port()
    );
    assert_eq!(refused, expected);
}

#[test]
fn a_data_folder_that_takes_no_files_is_refused_before_anything_happens() {
    let place = Place::new();
    let file = place.write("file", "not a folder");
    let below = file.join("data");
    let refused = place.run(&["up", "--data", below.to_str().unwrap()]).refused(1);
    let expected = format!(
        "weir: the data folder {} cannot be made: Not a directory (os error 20); choose another with --data",
        below.display()
    );
    assert_eq!(refused, expected);

    let refused = place.run(&["up", "--data", "/proc/self"]).refused(1);
    assert!(refused.starts_with("weir: the data folder /proc/self/secrets cannot be made: "), "{refused}");
}

#[test]
fn a_second_process_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let first = place.up_with_stub("");
    let args = ["up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let refused = place.run(&args).refused(1);
    let expected = format!(
        "weir: {} is in use by process {}: stop it first, or give this one its own folder",
        place.data().join("log").display(),
        first.pid()
    );
    assert_eq!(refused, expected);
    assert_eq!(first.ask(first.key(), &plain()).status, 200);
    first.stop();
}

#[test]
fn a_first_key_is_shown_once_and_kept_nowhere() {
    let place = Place::new();
    let first = place.up_with_stub("");
    let key = first.key().to_owned();
    assert_eq!(first.ask(&key, &plain()).status, 200);
    let mut logs = first.stop();

    let second = place.up_with_stub("");
    assert_eq!(second.greeting["first_key"], Value::Null);
    assert_eq!(second.ask(&key, &plain()).status, 200, "the key is still good");
    logs.push_str(&second.stop());

    assert!(!logs.contains(&key), "the key is in the log");
    for path in files(&place.data()) {
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()), "the key is in {}", path.display());
    }
}

#[test]
fn secrets_are_made_once_and_readable_by_their_owner_alone() {
    let place = Place::new();
    place.up_with_stub("").stop();
    let read = || -> Vec<(String, u32, Vec<u8>)> {
        let mut secrets: Vec<_> = files(&place.data().join("secrets"))
            .into_iter()
            .map(|path| {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                (path.file_name().unwrap().to_string_lossy().into_owned(), mode, std::fs::read(&path).unwrap())
            })
            .collect();
        secrets.sort();
        secrets
    };
    let made = read();
    let names: Vec<_> = made.iter().map(|(name, mode, _)| (name.as_str(), *mode)).collect();
    assert_eq!(names, [("admin.token", 0o600), ("master.key", 0o600), ("pepper", 0o600), ("stub.key", 0o600)]);
    place.up_with_stub("").stop();
    assert_eq!(read(), made);
}

#[test]
fn a_quickstart_without_its_key_says_what_to_export() {
    let place = Place::new();
    let args = ["up", "--quickstart", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let refused = place.run(&args).refused(1);
    assert_eq!(
        refused,
        "weir: env:OPENAI_API_KEY is not set: export it for this process, or point the reference elsewhere"
    );
}

#[test]
fn a_graceful_stop_finishes_a_stream_and_leaves_nothing_to_fold() {
    let place = Place::new();
    let process = place.up_with_stub("[default]\nchunks = 8\ngap_ms = 100");
    let mut answer = process.ask(process.key(), &streamed());
    let reservation = answer.reservation.clone().unwrap();
    answer.event().unwrap();
    process.signal(Signal::TERM);
    let mut events = Vec::new();
    while let Some(event) = answer.event() {
        events.push(event);
    }
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert!(events.len() > 8, "all chunks: {events:?}");
    let (code, logs) = process.wait();
    assert_eq!(code, Some(0), "{logs}");

    let story = place.run(&["show", &reservation, "--json"]).json();
    assert_eq!(story["status"], "settled");
    assert_eq!(story["lines"].as_array().map(Vec::len), Some(1));
    let told = place.run(&["replay", "--verify", "--json"]).json();
    assert_eq!(told["agrees"], true, "{told}");
    assert_eq!(told["not_built_yet"], 0, "{told}");

    let again = place.up_with_stub("").stop();
    assert!(again.contains("counters folded events=0"), "the checkpoint of the stop serves: {again}");
}

#[test]
fn a_second_signal_ends_it_at_once_and_the_next_start_knows_what_is_open() {
    let place = Place::new();
    let process = place.up_with_stub("[default]\nchunks = 100\ngap_ms = 1000");
    let mut answer = process.ask(process.key(), &streamed());
    let reservation = answer.reservation.clone().unwrap();
    answer.event().unwrap();
    process.signal(Signal::INT);
    eventually("the end of admission", || ureq::get(format!("{}/healthz", process.url())).call().err());
    let asked = Instant::now();
    process.signal(Signal::INT);
    let (code, logs) = process.wait();
    assert_eq!(code, Some(1), "{logs}");
    assert!(asked.elapsed() < PATIENCE / 3, "it waited for its streams: {:?}", asked.elapsed());

    let process = place.up_with_stub("");
    let story = place.run(&["show", &reservation, "--json"]).json();
    assert_eq!(story["status"], "reserved", "{story}");
    assert_ne!(story["held"]["usd"], "0", "its worst case stays held");
    process.stop();
}

#[test]
fn counters_outlive_a_restart() {
    let place = Place::new();
    let process = place.up_with_stub("");
    for _ in 0..5 {
        assert_eq!(process.ask(process.key(), &plain()).status, 200);
    }
    let shown = |place: &Place| place.run(&["budget", "show", "--tenant", "default", "--json"]).json();
    let before = shown(&place);
    assert_eq!(before["counters"][0]["charged"]["requests"], 5, "{before}");
    process.stop();

    let process = place.up_with_stub("");
    let after = shown(&place);
    assert_eq!(after["counters"], before["counters"]);
    assert_eq!(after["held"], before["held"]);
    process.stop();
}

#[test]
fn a_deleted_ledger_is_built_again_from_the_log() {
    let place = Place::new();
    let process = place.up_with_stub("");
    for body in [plain(), streamed(), plain()] {
        process.ask(process.key(), &body).text();
    }
    process.stop();
    let export = ["ledger", "export", "--tenant", "default"];
    let before = place.run(&export).ok();
    for path in files(&place.data()) {
        if path.file_name().unwrap().to_string_lossy().starts_with("ledger.sqlite") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let process = place.up_with_stub("");
    let after = eventually("the lines", || Some(place.run(&export).ok()).filter(|lines| lines.lines().count() == 4));
    assert_eq!(after, before);
    process.stop();
    assert_eq!(place.run(&["replay", "--verify", "--json"]).json()["agrees"], true);
}
