//! Requests as targets get them.

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_wire::openai::chat::{CapField, DeveloperRole, UpstreamEdits};

use crate::support::*;

const KEEP: UpstreamEdits<'static> = UpstreamEdits {
    model: "fast",
    cap: None,
    supports_stream_options: true,
    correlation: None,
    developer_role: DeveloperRole::Keep,
};

fn rewrite(body: &str, edits: &UpstreamEdits<'_>) -> String {
    let request = parse(body).unwrap();
    let whole = request.rewrite(edits);
    assert_eq!(request.rewrite_parts(edits).concat(), whole, "pieces and whole are the same bytes");
    String::from_utf8(whole.to_vec()).unwrap()
}

fn rewritten(body: &str, edits: &UpstreamEdits<'_>) -> Value {
    let text = rewrite(body, edits);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn o32_a_request_without_edits_is_the_same_bytes() {
    let body = "{ \"model\" :\"fast\" ,\"x_req\":1,\n\"messages\":[{\"role\":\"user\",\"content\":\"\\u4e2d\"}],\"metadata\":{\"f\":1.0,\"i\":1234567890123456789},\"temperature\":1e0}";
    assert_eq!(rewrite(body, &KEEP), body);
    let other = rewrite(body, &UpstreamEdits { model: "v/\"m\"", ..KEEP });
    assert_eq!(other, body.replace("\"fast\"", r#""v/\"m\"""#));
}

#[test]
fn o13_usage_is_asked_for_in_streams_only() {
    let options = |members: &str| rewritten(&with(members), &KEEP)["stream_options"].clone();
    for (members, expected) in [
        (r#""stream":true"#, json!({"include_usage": true})),
        (r#""stream":true,"stream_options":{"include_usage":false}"#, json!({"include_usage": true})),
        (r#""stream":true,"stream_options":{"include_usage":null,"x":[1]}"#, json!({"include_usage": true, "x": [1]})),
        (r#""stream":true,"stream_options":null"#, json!({"include_usage": true})),
        (r#""stream":true,"stream_options":{}"#, json!({"include_usage": true})),
        (
            r#""stream_options":{"include_obfuscation":false},"stream":true"#,
            json!({"include_obfuscation": false, "include_usage": true}),
        ),
        (r#""stream":false"#, Value::Null),
        (r#""stream":false,"stream_options":{"include_usage":true}"#, Value::Null),
    ] {
        assert_eq!(options(members), expected, "{members}");
    }
    let asked = with(r#""stream":true,"stream_options":{"include_usage":true}"#);
    assert_eq!(rewrite(&asked, &KEEP), asked);
    let never = UpstreamEdits { supports_stream_options: false, ..KEEP };
    for members in [r#""stream":true"#, r#""stream":true,"stream_options":{"include_usage":true}"#] {
        let body = rewritten(&with(members), &never);
        assert_eq!((body.get("stream_options"), &body["stream"]), (None, &json!(true)), "{members}");
    }
}

#[test]
fn o30_each_target_gets_one_cap_under_its_own_name() {
    let capped = |members: &str, field, tokens| {
        let body = rewritten(&with(members), &UpstreamEdits { cap: Some((field, tokens)), ..KEEP });
        (body.get("max_tokens").cloned(), body.get("max_completion_tokens").cloned())
    };
    let (older, newer) = (CapField::MaxTokens, CapField::MaxCompletionTokens);
    for members in [
        r#""max_tokens":500"#,
        r#""max_completion_tokens":500"#,
        r#""max_tokens":500,"max_completion_tokens":900"#,
        r#""max_completion_tokens":900,"x":1,"max_tokens":500"#,
        r#""max_tokens":null"#,
        r#""max_tokens":null,"max_completion_tokens":null"#,
        r#""temperature":1"#,
    ] {
        assert_eq!(capped(members, newer, 500), (None, Some(json!(500))), "{members}");
        assert_eq!(capped(members, older, 500), (Some(json!(500)), None), "{members}");
    }
    let plain = with(r#""max_tokens":500"#);
    assert_eq!(rewrite(&plain, &UpstreamEdits { cap: Some((older, 500)), ..KEEP }), plain);
}

#[test]
fn members_are_taken_out_wherever_they_stand() {
    let edits = UpstreamEdits { cap: Some((CapField::MaxTokens, 5)), supports_stream_options: false, ..KEEP };
    let rest = r#""model":"fast","messages":[{}]"#;
    let (cap, other, options) = (r#""max_tokens":5"#, r#""max_completion_tokens": 9"#, r#""stream_options": {}"#);
    let orders = [
        format!("{{{other} , {options},{rest} ,{cap}}}"),
        format!("{{{cap},{rest},{other} ,\n{options} }}"),
        format!("{{{options},{cap},{other},{rest}}}"),
        format!("{{ {rest}, {options}, {other}, {cap} }}"),
    ];
    for body in orders {
        let body = rewritten(&body, &edits);
        assert_eq!(body, json!({"model": "fast", "messages": [{}], "max_tokens": 5}));
    }
}

#[test]
fn o31_an_unknown_developer_role_becomes_system_in_its_place() {
    let body = r#"{"model":"fast","messages":[{"role":"developer","content":"developer"},{"content":"U","role":"user"},{"role":"developer","content":"2"}]}"#;
    assert_eq!(rewrite(body, &KEEP), body);
    let edits = UpstreamEdits { developer_role: DeveloperRole::System, ..KEEP };
    assert_eq!(rewrite(body, &edits), body.replace(r#""role":"developer""#, r#""role":"system""#));
}

#[test]
fn correlation_metadata_joins_the_clients_own() {
    let edits = UpstreamEdits { correlation: Some(("weir", "r\"1")), ..KEEP };
    let metadata = |members: &str| rewritten(&with(members), &edits)["metadata"].clone();
    assert_eq!(metadata(r#""n":1"#), json!({"weir": "r\"1"}));
    assert_eq!(metadata(r#""metadata":null"#), json!({"weir": "r\"1"}));
    assert_eq!(metadata(r#""metadata":{}"#), json!({"weir": "r\"1"}));
    assert_eq!(metadata(r#""metadata":{"a":"b","weir":"mine"}"#), json!({"a": "b", "weir": "r\"1"}));
    let full: Vec<String> = (0..16).map(|n| format!("\"k{n}\":\"v\"")).collect();
    assert_eq!(
        metadata(&format!("\"metadata\":{{{}}}", full.join(","))).as_object().map(|pairs| pairs.len()),
        Some(16)
    );
    assert_eq!(metadata(r#""metadata":[1]"#), json!([1]));
}

#[test]
fn o61_fields_that_direct_other_gateways_are_inert_bytes() {
    for member in [
        r#""api_base":"http://203.0.113.9/v1""#,
        r#""base_url":"http://203.0.113.9/v1""#,
        r#""api_key":"X""#,
        r#""custom_llm_provider":"openai""#,
        r#""extra_headers":{"authorization":"X"}"#,
        r#""extra_body":{"api_base":"http://203.0.113.9"}"#,
        r#""model_list":[{"model_name":"x"}]"#,
        r#""fallbacks":["premium"],"models":["a","b"]"#,
        r#""tools":[{"type":"x","api_base":"http://203.0.113.9"}]"#,
    ] {
        let body = with(member);
        let plain = parse(&with(r#""y":1"#)).unwrap();
        let request = parse(&body).unwrap();
        assert_eq!(request.facts().model, plain.facts().model, "{member}");
        assert_eq!(rewrite(&body, &KEEP), body, "{member}");
    }
    for model in ["openai/../../admin", "a@203.0.113.9/x"] {
        let body = with(r#""y":1"#).replace("fast", model);
        assert_eq!(parse(&body).unwrap().facts().model, model, "a name is a name");
    }
}

/// A member that Weir owns, in some order among members that it does not.
fn members() -> impl Strategy<Value = Vec<String>> {
    let cap = |name: &'static str| {
        prop::option::of(prop_oneof![Just("null".to_owned()), (1u64..9_999).prop_map(|n| n.to_string())])
            .prop_map(move |value| value.map(|value| format!("\"{name}\":{value}")))
    };
    let options = prop::option::of(prop_oneof![
        Just("null"),
        Just("{}"),
        Just(r#"{"include_usage":false}"#),
        Just(r#"{"a":1 , "include_usage":true}"#),
        Just(r#"{ "include_obfuscation": false }"#),
    ])
    .prop_map(|value| value.map(|value| format!("\"stream_options\":{value}")));
    let stream = any::<bool>().prop_map(|value| Some(format!("\"stream\" : {value}")));
    let unknown = |name: &'static str| {
        prop::option::of(prop_oneof![Just("1.0"), Just("1234567890123456789"), Just(r#"{"a":[1, "\u00e9"]}"#)])
            .prop_map(move |value| value.map(|value| format!("\"{name}\": {value}")))
    };
    let model = Just(Some("\"model\":\"fast\"".to_owned()));
    let messages = Just(Some("\"messages\":[{\"role\":\"user\",\"content\":\"max_tokens\"}]".to_owned()));
    (cap("max_tokens"), cap("max_completion_tokens"), options, stream, unknown("x"), unknown("y"), model, messages)
        .prop_map(|(a, b, c, d, e, f, g, h)| [a, b, c, d, e, f, g, h].into_iter().flatten().collect::<Vec<_>>())
        .prop_shuffle()
}

proptest! {
    #[test]
    fn a_rewrite_changes_what_it_owns_and_no_other_byte(
        members in members(), gap in prop_oneof![Just(""), Just(" "), Just("\n\t")],
        cap in prop::option::of((any::<bool>(), 1u64..9_999)), supports_stream_options in any::<bool>(),
    ) {
        let body = format!("{{{gap}{}{gap}}}", members.join(&format!("{gap},{gap}")));
        let field = |newer| if newer { CapField::MaxCompletionTokens } else { CapField::MaxTokens };
        let cap = cap.map(|(newer, tokens)| (field(newer), tokens));
        let out = rewrite(&body, &UpstreamEdits { model: "vendor/m", cap, supports_stream_options, ..KEEP });
        let value: Value = serde_json::from_str(&out).unwrap();
        prop_assert_eq!(&value["model"], "vendor/m");
        let streams = value["stream"] == true;
        let asks = value.get("stream_options").map(|options| options["include_usage"] == true);
        prop_assert_eq!(asks, (streams && supports_stream_options).then_some(true));
        if let Some((field, tokens)) = cap {
            let caps = ["max_tokens", "max_completion_tokens"].map(|name| value.get(name).cloned());
            let expected = ["max_tokens", "max_completion_tokens"].map(|name| (name == field.name()).then(|| json!(tokens)));
            prop_assert_eq!(caps, expected);
        }
        for unowned in members.iter().filter(|member| ["\"x\"", "\"y\"", "\"messages\"", "\"stream\" "].iter().any(|name| member.starts_with(name))) {
            prop_assert!(out.contains(unowned.as_str()), "{} lost in {}", unowned, out);
        }
        let again = parse(&out).unwrap();
        let same = UpstreamEdits { model: "vendor/m", cap, supports_stream_options, ..KEEP };
        prop_assert_eq!(again.rewrite(&same), out.as_bytes(), "a second rewrite has nothing to do");
    }
}
