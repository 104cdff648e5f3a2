//! Bytes that were once written stay readable, and say the same.
//!
//! `golden/<topic>/<record>/v<version>.hex` is a frame, `.json` beside it what people see of it. With
//! `WEIR_UPDATE_GOLDEN=1` the files of the newest versions are written; those of older versions are never touched, for
//! nobody can write them any more.

use std::fs;
use std::path::{Path, PathBuf};

use crate::frame;
use crate::json;
use crate::released::{RELEASED, Released};

use super::{reread, sample_frames};

fn path(released: &Released, extension: &str) -> PathBuf {
    let Released { topic, record, version, .. } = released;
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{topic}/{record}/v{version}.{extension}"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; a new version needs WEIR_UPDATE_GOLDEN=1 cargo test -p weir-schemas golden",
            path.display()
        )
    })
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Thirty-two bytes a line, so that a difference has a place.
fn to_hex(frame: &[u8]) -> String {
    frame.chunks(32).map(|line| json::hex(line) + "\n").collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    hex::decode(text.split_whitespace().collect::<String>()).unwrap()
}

#[test]
fn the_newest_versions_are_written_as_the_golden_files_have_them() {
    let is_update = std::env::var_os("WEIR_UPDATE_GOLDEN").is_some();
    for frame in sample_frames() {
        let released = frame::open(&frame).unwrap().released;
        if is_update {
            let shown = serde_json::to_string_pretty(&json::of_frame(&frame).unwrap()).unwrap();
            write(&path(released, "hex"), &to_hex(&frame));
            write(&path(released, "json"), &format!("{shown}\n"));
        }
        assert_eq!(to_hex(&frame), read(&path(released, "hex")), "{} is written otherwise", released.record);
    }
}

#[test]
fn every_released_version_is_readable_and_says_the_same() {
    for released in RELEASED {
        let frame = from_hex(&read(&path(released, "hex")));
        assert_eq!(frame::open(&frame).unwrap().released, released);
        let known: serde_json::Value = serde_json::from_str(&read(&path(released, "json"))).unwrap();
        assert_eq!(json::of_frame(&frame).unwrap(), known, "{} v{}", released.record, released.version);
        let as_its_type = reread(&frame).unwrap_or_else(|error| panic!("{}: {error}", released.record));
        if as_its_type.json["version"] == known["version"] {
            assert_eq!(as_its_type.json, known, "{}", released.record);
        }
    }
}

/// The vector that Confluent's clients agree on: schema 23, a record whose only field is the long 3.
#[test]
fn the_frame_is_confluents() {
    #[derive(serde::Serialize)]
    struct OneLong {
        number: i64,
    }
    let mut out = Vec::new();
    frame::encode("OneLong", 23, &OneLong { number: 3 }, &mut out).unwrap();
    assert_eq!(out, [0x00, 0x00, 0x00, 0x00, 0x17, 0x06]);
}

#[test]
fn people_see_ids_money_times_and_windows_in_words() {
    let frame = &sample_frames()[0];
    let shown = json::of_frame(frame).unwrap();
    assert_eq!(shown["record"], "ReservationCreated");
    assert_eq!(shown["header"]["reservation_id"], "0195502a-3f7b-7c31-9a54-2f6d1c0b8e11");
    assert_eq!(shown["header"]["recorded_at"], "2026-03-01T09:30:00.123456Z");
    assert_eq!(shown["hold"]["usd"], "0.105");
    assert_eq!(shown["counted_windows"], serde_json::json!(["d2026-03-01", "w2026-W09", "m2026-03", "total"]));
    assert_eq!(shown["labels"]["app"], "søk");
}
