//! I6: nothing that a process prints, logs, stores or answers holds a secret, a prompt or a completion.
//!
//! Words that can be found are planted where secrets and content are: in the provider's key, the pepper, virtual keys,
//! prompts, tools, answers and the provider's own error messages. Then every output of the run is searched: both log
//! formats at their most talkative, every file in the data folder, metrics, the commands and the error bodies. That the
//! words really went through is proved by the provider's journal, which has them.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::path::Path;

use serde_json::{Value, json};

use weir_stub::script::Scripts;
use weir_tests::catalog::{Catalog, KEY, Model, PEPPER, PROVIDER_KEY, TENANT};
use weir_tests::{House, PATIENCE, Setup};

const SYSTEM: &str = "planted-system-prompt-quietwater";
const PROMPT: &str = "planted-user-prompt-bluegentian";
const TOOL: &str = "planted-tool-description-oldmill";
const END_USER: &str = "planted-end-user-jane.doe";
const COMPLETION: &str = "planted-completion-redlarch";
const ARGUMENTS: &str = "planted-tool-arguments-greyheron";
const UNKNOWN_KEY: &str = "weir_live_PlantedUnknownKeyPlantedUnknown";

/// What must be in no output. The content words are looked for in what is kept; a client's own answer has them.
const SECRETS: &[&str] = &[PROVIDER_KEY, PEPPER, KEY, UNKNOWN_KEY];
const CONTENT: &[&str] = &[SYSTEM, PROMPT, TOOL, END_USER, COMPLETION, ARGUMENTS];

fn setup(format: &str) -> Setup {
    let scripts = Scripts::from_toml(&format!(
        r#"
[default]
text = "{COMPLETION} {COMPLETION}"

[scripts.tools]
chunks = 0
tool_calls = [{{ name = "lookup", arguments = '{{"q":"{ARGUMENTS}"}}' }}]

# What real providers do: they repeat the key and the prompt in their complaint.
[scripts.rejects]
status = 401
body = {{ error = {{ message = "Incorrect API key provided: {PROVIDER_KEY}", type = "invalid_request_error" }} }}

[scripts.complains]
status = 400
body = {{ error = {{ message = "cannot serve: {PROMPT}", type = "invalid_request_error" }} }}

[scripts.fails]
status = 500
body = "<html>{PROMPT} {PROVIDER_KEY}</html>"

[scripts.breaks]
text = "{COMPLETION} {COMPLETION}"
fault = {{ kind = "reset", after_chunks = 1 }}

[scripts.errs]
text = "{COMPLETION}"
fault = {{ kind = "error", after_chunks = 1, message = "{PROVIDER_KEY} {PROMPT}" }}

[scripts.garbles]
fault = {{ kind = "garbage", after_chunks = 0, bytes = "data: {{{COMPLETION} {PROVIDER_KEY}" }}

[scripts.leaves]
text = "{COMPLETION} {COMPLETION} {COMPLETION} {COMPLETION}"
chunks = 4
gap_ms = 200
"#
    ));
    let names = ["fast", "tools", "rejects", "complains", "fails", "breaks", "errs", "garbles", "leaves"];
    Setup {
        catalog: Catalog::of(&names.map(Model::named)),
        config: format!("[telemetry]\nformat = \"{format}\"\nfilter = \"trace\"\n"),
        scripts: scripts.unwrap(),
        ..Setup::default()
    }
}

fn body(model: &str, stream: bool) -> Value {
    json!({
        "model": model,
        "stream": stream,
        "user": END_USER,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}],
        "tools": [{"type": "function", "function": {"name": "lookup", "description": TOOL}}],
    })
}

/// Everything that came out of a run, by where.
struct Outputs(Vec<(String, Vec<u8>)>);

impl Outputs {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    /// Every file under `folder`.
    fn add_files(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.add_files(&path);
            } else {
                // A file that a running process just removed held nothing that stays.
                self.add(path.display().to_string(), std::fs::read(&path).unwrap_or_default());
            }
        }
    }

    fn found(&self, words: &[&str]) -> Vec<String> {
        let holds = |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        let in_place = |(place, bytes): &(String, Vec<u8>)| {
            let words = words.iter().filter(|word| holds(bytes, word));
            words.map(|word| format!("{place} holds {word}")).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(in_place).collect()
    }
}

/// Requests of all kinds. Returns the answers that are errors.
async fn run_requests(house: &House) -> Outputs {
    let mut answers = Outputs(Vec::new());
    for model in ["fast", "tools", "rejects", "complains", "fails", "breaks", "errs", "garbles"] {
        for stream in [false, true] {
            let answer = house.client.chat(&body(model, stream)).await;
            let head = format!("{:?}", answer.headers);
            answers.add(format!("{model}, stream {stream}"), [head.as_bytes(), &answer.body].concat());
        }
    }
    let mut open = house.client.open_chat(&body("leaves", true)).await.unwrap();
    drop(open.next().await);
    drop(open);
    let stranger = house.client.with_key(UNKNOWN_KEY);
    answers.add("unknown key", stranger.chat(&body("fast", false)).await.expect(401).body);
    let unknown = house.client.chat(&body("none", false)).await.expect(404);
    answers.add("unknown model", unknown.body);
    let broken =
        house.client.post("/v1/chat/completions", format!("{{\"model\": \"fast\", {PROMPT}")).await.expect(400);
    answers.add("broken body", broken.body);
    answers
}

async fn search(house: &House, mut outputs: Outputs) {
    let rest = house.at_rest(TENANT, PATIENCE).await;
    assert!(!rest.lines.is_empty() && !rest.pending.is_empty());
    outputs.add("/metrics", house.client.get("/metrics").await.expect(200).body);
    outputs.add("/readyz", house.client.get("/readyz").await.body);
    for path in ["keys", "catalog", "counters?tenant=acme", "pending", "health"] {
        outputs.add(path, house.admin.get(&format!("/admin/v1/{path}")).await.expect(200).body);
    }
    // A key where its hash belongs, and a secret where a reference belongs.
    let wrong = format!("[[key]]\nname = \"x\"\ntenant = \"acme\"\nhash = \"{KEY}\"\n");
    outputs.add("a key as a hash", house.admin.post("/admin/v1/catalog/check", wrong).await.expect(400).body);
    let wrong = format!(
        "[[provider]]\nid = \"p\"\ndialect = \"openai_chat\"\nbase_url = \"http://x\"\ncredential = \"{PROVIDER_KEY}\"\n"
    );
    outputs.add("a secret as a reference", house.admin.post("/admin/v1/catalog/check", wrong).await.expect(400).body);
    for reservation in rest.lines.iter().map(|line| line.key.reservation).chain(rest.pending.iter().map(|open| open.id))
    {
        for arguments in [vec!["show"], vec!["--json", "show"]] {
            let id = reservation.to_string();
            outputs.add(format!("{arguments:?} {id}"), house.command(&[&arguments[..], &[&id]].concat()));
        }
    }
    for arguments in [
        &["ledger", "export", "--tenant", TENANT, "--format", "csv"][..],
        &["ledger", "export", "--tenant", TENANT, "--format", "jsonl"],
        &["pending"],
        &["key", "list"],
        &["budget", "show", "--tenant", TENANT],
        &["replay", "--verify"],
    ] {
        outputs.add(format!("{arguments:?}"), house.command(arguments));
    }
    let config = house.folder().join("weir.toml");
    outputs.add("check-config", house.command(&["check-config", "--config", &config.display().to_string()]));
    outputs.add("stdout", std::fs::read(&house.process.stdout).unwrap());
    outputs.add("stderr", std::fs::read(&house.process.stderr).unwrap());
    let own = own_secrets(house);
    outputs.add_files(&house.data());
    // Its own secrets are in their own files alone.
    outputs.0.retain(|(place, _)| !place.contains("/data/secrets/"));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    assert_eq!(outputs.found(&[SECRETS, CONTENT, &own].concat()), [""; 0]);
    assert!(outputs.0.len() > 20, "only {} outputs were searched", outputs.0.len());
}

/// What the process made for itself.
fn own_secrets(house: &House) -> Vec<String> {
    let files = std::fs::read_dir(house.data().join("secrets")).unwrap();
    let secrets = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap().trim().to_owned());
    let secrets: Vec<String> = secrets.collect();
    assert!(secrets.len() >= 2, "master key and token");
    secrets
}

async fn nothing_is_told(format: &str) {
    let mut house = House::start(setup(format)).await;
    let answers = run_requests(&house).await;
    assert_eq!(answers.found(SECRETS), [""; 0], "answers to clients");
    // The search finds what is there: the client's answers have the completion, the provider got prompt and key.
    assert!(!answers.found(&[COMPLETION, ARGUMENTS]).is_empty());
    let journal = serde_json::to_vec(&house.stub.journal()).unwrap();
    let went_through = Outputs(vec![("journal".to_owned(), journal)]);
    for planted in [PROVIDER_KEY, SYSTEM, PROMPT, TOOL] {
        assert_eq!(went_through.found(&[planted]).len(), 1, "{planted} did not reach the provider");
    }
    assert_eq!(went_through.found(&[PEPPER, KEY, UNKNOWN_KEY]), [""; 0], "the provider sees its own key alone");
    let ids = answers.0.len();
    assert!(ids > 15);
    search(&house, Outputs(Vec::new())).await;
    house.stop().await;
    let mut after = Outputs(Vec::new());
    after.add("stderr", std::fs::read(&house.process.stderr).unwrap());
    after.add_files(&house.data());
    after.0.retain(|(place, _)| !place.contains("/data/secrets/"));
    assert_eq!(after.found(&[SECRETS, CONTENT].concat()), [""; 0], "after the stop");
    let log = std::fs::metadata(&house.process.stderr).unwrap().len();
    assert!(log > 1_000, "a log of {log} bytes proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i06_no_output_holds_a_secret_a_prompt_or_a_completion_in_text() {
    nothing_is_told("text").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i06_no_output_holds_a_secret_a_prompt_or_a_completion_in_json() {
    nothing_is_told("json").await;
}
