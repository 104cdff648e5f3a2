//! Figures to look at, not to fail on: machines are shared. Run with `--release -- --nocapture timing`.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use weir_wire::json::validate;
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{ChatRequest, DeveloperRole, Limits, StreamEditor, StreamReader, UpstreamEdits};
use weir_wire::sse::Decoder;

use crate::support::*;

fn best_nanos(rounds: u32, mut work: impl FnMut()) -> u128 {
    let measure = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos()
    };
    (0..rounds).map(measure).min().unwrap_or_default()
}

#[test]
fn timing_of_requests() {
    for bytes in [6_000, 200_000, 20_000_000] {
        let line = "The quick brown fox jumps over the lazy dog and then some more.\\n";
        let prompt = line.repeat(bytes / line.len());
        let body = format!(r#"{{"model":"fast","messages":[{{"role":"user","content":"{prompt}"}}],"stream":true}}"#);
        let body = Bytes::from(body);
        let rounds = if bytes > 1_000_000 { 3 } else { 50 };
        let json = best_nanos(rounds, || assert!(validate(&body).is_ok()));
        let parse = best_nanos(rounds, || assert!(ChatRequest::parse(body.clone(), &Limits::default()).is_ok()));
        let request = ChatRequest::parse(body.clone(), &Limits::default()).unwrap();
        let edits = UpstreamEdits {
            model: "vendor/m",
            cap: None,
            supports_stream_options: true,
            correlation: None,
            developer_role: DeveloperRole::Keep,
        };
        let rewrite = best_nanos(rounds, || assert!(request.rewrite(&edits).len() > bytes / 2));
        println!("request of {bytes} B: validate {json} ns, parse {parse} ns, rewrite {rewrite} ns");
    }
}

#[test]
fn timing_of_streams() {
    let mut stream = role();
    for n in 0..40 {
        stream.push_str(&ok(&format!(" word{n}")).replace(
            "\"model\":\"m\"",
            "\"model\":\"vendor/model\",\"service_tier\":\"default\",\"system_fingerprint\":\"fp_0123456789\"",
        ));
    }
    stream.push_str(&[stop(), usage(20, 40), DONE.into()].concat());
    let stream = Bytes::from(stream);
    let mut out = BytesMut::new();
    let mut count = 0_u128;
    let nanos = best_nanos(2_000, || {
        let mut decoder = Decoder::new(1 << 20);
        let mut reader = StreamReader::new(1);
        let mut editor = StreamEditor::new(ALIAS, FALLBACK_ID, false);
        out.clear();
        count = 0;
        for start in (0..stream.len()).step_by(1_400) {
            decoder.push(stream.slice(start..stream.len().min(start + 1_400)));
            while let Some(event) = decoder.next_event().unwrap() {
                count += 1;
                if let StreamStep::Chunk(facts) = reader.feed(&event) {
                    editor.edit(&event, &facts, &mut out);
                }
            }
        }
        assert!(reader.is_settled());
    });
    println!("stream of {count} events, {} B: {} ns an event", stream.len(), nanos / count.max(1));
}

#[test]
fn timing_of_a_3_mb_line_is_linear() {
    let delta = format!(r#"{{"index":0,"delta":{{"content":"{}"}}}}"#, "A".repeat(3_145_728));
    let stream = Bytes::from(chunk(&delta));
    let nanos = best_nanos(5, || {
        let mut decoder = Decoder::new(8 << 20);
        let mut events = 0;
        for start in (0..stream.len()).step_by(16 * 1024) {
            decoder.push(stream.slice(start..stream.len().min(start + 16 * 1024)));
            while decoder.next_event().unwrap().is_some() {
                events += 1;
            }
        }
        assert_eq!(events, 1);
    });
    println!("one event of {} B in 16 KiB pieces: {} µs", stream.len(), nanos / 1_000);
}
