//! The provider behind both: the scripted stub on one thread, its journal off, one script per model.
//!
//! A request chooses its script by its model's name, because names pass through a gateway unchanged where the catalog
//! says so, and headers do not.

use std::collections::HashMap;
use std::net::SocketAddr;

use weir_stub::journal::JournalOptions;
use weir_stub::script::{Fault, FaultKind, Script, Scripts, UsageScript};
use weir_stub::{Stub, StubOptions};

use crate::case::{CHUNKS, Case, IDLE_MODEL, SLOW_MODEL, Shape};
use crate::error::BenchError;
use crate::slow;

/// Serves until the process is ended.
pub(crate) async fn serve(listen: SocketAddr) -> Result<(), BenchError> {
    let scripts = Scripts { default: Script::default(), scripts: scripts() };
    let journal = JournalOptions { entries: 0, body_bytes: 0 };
    let options = StubOptions { listen, scripts, journal, ..StubOptions::default() };
    let _stub = Stub::start(options).map_err(|error| BenchError::unexpected("the provider", error))?;
    std::future::pending().await
}

fn scripts() -> HashMap<String, Script> {
    let mut scripts: HashMap<String, Script> = Case::all().iter().map(|case| (case.model(), script(case))).collect();
    let stalls =
        Fault { kind: FaultKind::Stall, after_chunks: 1, after_bytes: None, code: None, message: None, bytes: None };
    scripts.insert(IDLE_MODEL.to_owned(), Script { fault: Some(stalls), ..Script::default() });
    // What is billed is said, or the request's cap would end the answer sooner.
    let usage = UsageScript { completion: Some(256), ..UsageScript::default() };
    let torrent = Script { chunks: slow::CHUNKS, chunk_bytes: Some(slow::CHUNK_BYTES), usage, ..Script::default() };
    scripts.insert(SLOW_MODEL.to_owned(), torrent);
    scripts
}

fn script(case: &Case) -> Script {
    let before_headers_ms = case.provider_delay_ms;
    match case.shape {
        Shape::Plain => Script { before_headers_ms, chunks: CHUNKS, ..Script::default() },
        Shape::Stream => Script { before_headers_ms, chunks: CHUNKS, gap_ms: case.gap_ms, ..Script::default() },
    }
}
