//! What it costs to write and to read one event of each kind: `cargo run --release -p weir-schemas --example codec_speed`.
//!
//! The events are those of the golden files. Figures are the best of several rounds, since the machine is shared.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use weir_schemas::released::RELEASED;
use weir_schemas::reservation_event::ReservationEvent;

const ROUNDS: u32 = 15;
const EVENTS_PER_ROUND: u32 = 20_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/reservations");
    println!("{:<24} {:>6} {:>10} {:>10} {:>10}", "event", "bytes", "make ns", "encode ns", "decode ns");
    for released in RELEASED.iter().filter(|released| released.topic == "reservations") {
        let text = fs::read_to_string(golden.join(released.record).join(format!("v{}.hex", released.version)))?;
        let frame = hex::decode(text.split_whitespace().collect::<String>())?;
        let event = ReservationEvent::decode(&frame)?;
        let (header, fact) = event.clone().into_parts();
        let mut out = Vec::with_capacity(64 * 1024);
        let make = best(|| drop(black_box(ReservationEvent::new(header.clone(), fact.clone()))));
        let encode = best(|| {
            out.clear();
            drop(black_box(event.encode(&mut out)));
        });
        let decode = best(|| drop(black_box(ReservationEvent::decode(black_box(&frame)))));
        println!("{:<24} {:>6} {make:>10} {encode:>10} {decode:>10}", released.record, frame.len());
    }
    Ok(())
}

/// Nanoseconds per call.
fn best(mut call: impl FnMut()) -> u128 {
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..EVENTS_PER_ROUND).for_each(|_| call());
        start.elapsed().as_nanos() / u128::from(EVENTS_PER_ROUND)
    };
    (0..ROUNDS).map(|_| round(&mut call)).min().unwrap_or_default()
}
