//! Every command in a pseudo-terminal and in a pipe: the same words and codes, and progress only where a person looks.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::support::{Place, eventually, plain};

/// Runs `command` with output and errors on a terminal: its code, and everything that was shown, with the terminal's
/// line ends as a file has them.
fn in_terminal(mut command: Command) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let screen = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(screen()).stderr(screen()).spawn().unwrap();
    // The command keeps copies of the screen; without them the last reader would never see the end.
    drop(command);
    let (mut master, mut shown, mut chunk) = (File::from(master), Vec::new(), [0; 4096]);
    // A terminal that nobody holds any more answers with an error and not with an end.
    while let Ok(count @ 1..) = master.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..count]);
    }
    let code = child.wait().unwrap().code();
    (code, String::from_utf8(shown).unwrap().replace("\r\n", "\n"))
}

#[test]
fn every_command_says_the_same_to_a_person_and_to_a_pipe() {
    let place = Place::new();
    let process = place.up_with_stub("");
    let reservation = process.ask(process.key(), &plain()).reservation.unwrap();
    eventually("the ledger line", || {
        let story: Value = serde_json::from_str(&place.run(&["show", &reservation, "--json"]).out).ok()?;
        (story["derived"] == true).then_some(())
    });
    let catalog = place.write("catalog.toml", "[[tenant]]\nname = \"default\"\n");
    let map = place.write(
        "map.json",
        r#"{"m": {"input_cost_per_token": 4e-07, "output_cost_per_token": 1e-06, "litellm_provider": "p", "mode": "chat"}}"#,
    );
    let (catalog, map) = (catalog.to_str().unwrap(), map.to_str().unwrap());
    let unknown = "01980000-0000-7000-8000-000000000000";
    let commands: &[(&[&str], i32)] = &[
        (&["check-config"], 0),
        (&["catalog", "check", catalog], 0),
        (&["catalog", "import", "litellm", map], 0),
        (&["key", "list"], 0),
        (&["budget", "show", "--tenant", "default"], 0),
        (&["show", &reservation], 0),
        (&["ledger", "export", "--tenant", "default"], 0),
        (&["pending"], 0),
        (&["replay", "--verify"], 0),
        (&["dead-letters", "list"], 0),
        (&["topics"], 0),
        (&["catalog", "check", "missing.toml"], 2),
        (&["show", unknown], 3),
        (&["key", "revoke", "key_unknown"], 3),
        (&["key", "create", "--tenant", "nobody", "--name", "a"], 1),
        (&["reconcile", "import", "missing.jsonl"], 2),
        (&["spool", "forward", "missing"], 2),
        (&["dead-letters", "replay", "k", "--consumer", "ledger", "--who", "a", "--why", "b"], 3),
        (&["dead-letters", "skip", "k", "--consumer", "ledger", "--who", "a", "--why", "b", "--offset", "1"], 3),
    ];
    for (args, code) in commands {
        let piped = place.run(args);
        assert_eq!(piped.code, Some(*code), "{args:?}: {piped:#?}");
        assert!(!piped.out.contains('\x1b') && !piped.err.contains('\x1b'), "{args:?}: {piped:#?}");
        let (in_terminal, shown) = in_terminal(place.command(args));
        assert_eq!(in_terminal, Some(*code), "{args:?}: {shown}");
        assert_eq!(shown, format!("{}{}", piped.out, piped.err), "{args:?}");

        let piped = place.run(&[args, &["--json"][..]].concat());
        assert_eq!(piped.code, Some(*code), "{args:?}: {piped:#?}");
        let json = if *code == 0 { &piped.out } else { piped.err.lines().last().unwrap() };
        let parsed: Result<Value, _> = serde_json::from_str(json);
        assert!(parsed.is_ok(), "{args:?} --json: {piped:#?}");
    }
    let rebuild = ["quota", "rebuild", "--who", "a", "--why", "b"];
    let (code, shown) = in_terminal(place.command(&rebuild));
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.starts_with("the counters of 1 tenants and 0 open reservations are folded "), "{shown}");
    process.stop();
}

/// An admin API that takes its time for one answer.
fn slow_admin(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        let mut byte = [0; 1];
        while !head.ends_with(b"\r\n\r\n") {
            caller.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        // Longer than the second after which a person wonders; this is what is tested, and waits for nothing.
        std::thread::sleep(Duration::from_millis(1_700));
        let length = answer.len();
        write!(caller, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}").unwrap();
    });
    url
}

#[test]
fn progress_is_shown_to_a_person_after_a_second_and_never_to_a_pipe() {
    let place = Place::new();
    let answer = r#"{"tenants": 1, "reservations": 2, "events": 3, "closed_ms": 1700}"#;
    let rebuild = |url: &str| {
        let args = ["quota", "rebuild", "--who", "a", "--why", "b", "--admin-token", "t", "--admin-url", url];
        place.command(&args)
    };
    let (code, shown) = in_terminal(rebuild(&slow_admin(answer)));
    let result = "the counters of 1 tenants and 2 open reservations are folded from the log, 3 events since the \
                  checkpoint; nothing was admitted for 1700 ms\n";
    assert_eq!(code, Some(0), "{shown}");
    let line = "\r\x1b[Kfolding the counters; nothing is admitted meanwhile … 1 s";
    assert!(shown.starts_with(line) && shown.ends_with(&format!("\r\x1b[K{result}")), "{shown:?}");
    let piped = rebuild(&slow_admin(answer)).output().unwrap();
    assert_eq!((String::from_utf8(piped.stdout).unwrap().as_str(), piped.stderr.as_slice()), (result, &b""[..]));
}

#[test]
fn help_tells_the_exit_codes_and_shells_complete_every_command() {
    let place = Place::new();
    let help = place.run(&["help"]).ok();
    for told in ["Exit codes:\n  0  done", "\n  3  not found", "--json", "dead-letters", "completions"] {
        assert!(help.contains(told), "{told}:\n{help}");
    }
    assert_eq!(place.run(&[]).code, Some(2));
    assert_eq!(place.run(&["nonsense"]).code, Some(2));
    for shell in ["bash", "zsh", "fish"] {
        let script = place.run(&["completions", shell]).ok();
        for word in ["dead-letters", "rebuild", "--dead-letters", "litellm"] {
            let word = if shell == "fish" { word.trim_start_matches("--") } else { word };
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(place.run(&["completions", "tcsh"]).code, Some(2));
    let script = place.write("weir.bash", &place.run(&["completions", "bash"]).ok());
    assert!(Command::new("bash").arg("-n").arg(script).status().unwrap().success());
}
