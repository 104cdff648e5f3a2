//! The scanner against `serde_json` as the oracle, and its positions and bounds.

use proptest::prelude::*;

use super::text::plain_run;
use super::*;

fn oracle(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[test]
fn what_is_json_and_what_is_not() {
    for text in
        ["null", " true ", "-0.5e+3", "[]", "{}", "[1,2 , 3]", r#"{"a":{"b":[{}]},"c":"\u00e9\n"}"#, "\"\u{7f}é\"", "0"]
    {
        assert!(validate(text.as_bytes()).is_ok() && oracle(text), "{text}");
    }
    for text in [
        "",
        "nul",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "1e",
        "[1,]",
        "[,1]",
        "{,}",
        r#"{"a":1,}"#,
        r#"{"a"}"#,
        "{a:1}",
        "[1 2]",
        r#"{"a":1 "b":2}"#,
        "\"\n\"",
        r#""\x""#,
        r#""\u12g4""#,
        "\"",
        "1 2",
        "]",
        "[}",
        "{]",
        "NaN",
        "'a'",
    ] {
        assert!(validate(text.as_bytes()).is_err() && !oracle(text), "{text}");
    }
    assert_eq!(validate(b"\"\xff\"").map_err(|error| error.fault), Err(Fault::NotUtf8));
}

#[test]
fn depth_is_bounded_over_visited_and_skipped_levels_alike() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(validate(nested(128).as_bytes()).is_ok());
    assert_eq!(validate(nested(129).as_bytes()).map_err(|error| error.fault), Err(Fault::TooDeep));
    let mixed = |levels: usize| format!(r#"{}1{}"#, r#"{"a":["#.repeat(levels), "]}".repeat(levels));
    assert!(validate(mixed(64).as_bytes()).is_ok());
    assert!(validate(mixed(65).as_bytes()).is_err());
    let text = format!(r#"{{"a":{}}}"#, nested(128));
    let mut cursor = Cursor::new(text.as_bytes());
    let read: Result<_, JsonError> = cursor.members(|cursor, _| cursor.skip().map(|_| ()));
    assert_eq!(read.map_err(|error| error.fault), Err(Fault::TooDeep));
    assert!(validate("[".repeat(10_000_000).as_bytes()).is_err(), "no recursion: no stack to overflow");
}

#[test]
fn positions_count_lines_and_columns_from_one() {
    let text = b"{\n  \"a\": tru\n}";
    let error = validate(text).unwrap_err();
    let position = Position::of(text, error.offset);
    assert_eq!(position, Position { offset: 9, line: 2, column: 8 });
    assert_eq!(position.to_string(), "byte 9, line 2, column 8");
}

#[test]
fn strings_compare_and_decode_whatever_their_escapes() {
    let decode = |text: &str| Cursor::new(text.as_bytes()).string().map(|text| text.decode().into_owned());
    for (text, decoded) in [
        (r#""plain""#, "plain"),
        (r#""\u006dodel""#, "model"),
        (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r#""\ud83d\ude00!""#, "😀!"),
        (r#""\ud83d""#, "\u{fffd}"),
        (r#""\ud83dx""#, "\u{fffd}x"),
        (r#""中文\u00e9""#, "中文é"),
    ] {
        assert_eq!(decode(text).as_deref(), Ok(decoded), "{text}");
    }
    let key = Cursor::new(br#""m\u006fdel""#).string().unwrap();
    assert!(key.is("model") && !key.is("m\\u006fdel"));
}

proptest! {
    #[test]
    fn agrees_with_serde_json_on_noise(text in r#"[\[\]{},:"\\ntu0-9.eE+\- alsrf]{0,40}"#) {
        prop_assert_eq!(validate(text.as_bytes()).is_ok(), oracle(&text));
    }

    #[test]
    fn agrees_with_serde_json_on_documents_with_one_byte_changed(
        value in document(), at in any::<prop::sample::Index>(), with in r#"[\[\]{},:"\\0a\x01]"#,
    ) {
        let text = value.to_string();
        prop_assert!(validate(text.as_bytes()).is_ok());
        let at = at.index(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
            let changed = format!("{}{with}{}", &text[..at], &text[at + 1..]);
            prop_assert_eq!(validate(changed.as_bytes()).is_ok(), oracle(&changed), "{}", changed);
        }
    }

    #[test]
    fn quoting_and_decoding_are_inverse(text in any::<String>()) {
        let quoted = quoted(&text);
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text.clone());
        prop_assert_eq!(Cursor::new(quoted.as_bytes()).string().unwrap().decode(), text);
    }

    #[test]
    fn a_plain_run_ends_where_the_first_special_byte_is(bytes in prop::collection::vec(prop_oneof![
        20 => 0x20..=0xffu8, 1 => Just(b'"'), 1 => Just(b'\\'), 1 => 0..0x20u8,
    ], 0..150)) {
        let expected = bytes.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\').unwrap_or(bytes.len());
        prop_assert_eq!(plain_run(&bytes), expected);
    }
}

fn document() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        "[a-z\"\\\\\n é中]{0,12}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z]{0,4}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}
