//! Both forms, every field, every kind of mistake.

use weir_domain::testing::{id, usd};
use weir_domain::usage::Meter;
use weir_schemas::usage_report::{CorrelationKind, ReportOutcome, ReportSource, UsageReport};

use super::{Format, ImportError, Importer, parse};

fn importer() -> Importer {
    Importer { who: "ada".to_owned(), why: "invoice of March".to_owned(), at_ms: 1_772_366_400_000 }
}

fn csv(text: &str) -> Result<Vec<UsageReport>, ImportError> {
    parse(Format::Csv, text.as_bytes(), &importer())
}

fn json(text: &str) -> Result<Vec<UsageReport>, ImportError> {
    parse(Format::JsonLines, text.as_bytes(), &importer())
}

#[test]
fn a_row_says_the_same_in_both_forms() {
    let of_csv = csv(&format!(
        "reservation_id,attempt,provider,in.uncached,out.visible,cost_usd,occurred_at,outcome,service_tier\n\
         {},1,openai,100,900,0.028,2026-03-01T12:00:00Z,completed,\n",
        id(1)
    ))
    .unwrap();
    let of_json = json(&format!(
        "\n{{\"reservation_id\": \"{}\", \"attempt\": 1, \"provider\": \"openai\", \"cost_usd\": \"0.028\", \
         \"meters\": {{\"in.uncached\": 100, \"out.visible\": 900}}, \"occurred_at\": \"2026-03-01T12:00:00Z\", \
         \"outcome\": \"completed\", \"service_tier\": null}}\n",
        id(1)
    ))
    .unwrap();
    assert_eq!(of_csv, of_json);
    let report = &of_csv[0];
    let correlation = report.correlation.as_ref().unwrap();
    assert_eq!((correlation.reservation, correlation.attempt), (Some(id(1)), Some(1)));
    assert_eq!((report.meters.get(Meter::InUncached), report.meters.get(Meter::OutVisible)), (100, 900));
    assert_eq!((report.cost_usd, report.occurred_at_ms), (Some(usd("0.028")), Some(1_772_366_400_000)));
    assert_eq!((report.source, report.outcome, report.revision), (ReportSource::Manual, ReportOutcome::Completed, 1));
    assert_eq!((report.reporter.as_str(), report.reason.as_str()), ("ada", "invoice of March"));
}

#[test]
fn the_same_words_are_the_same_report_and_others_another() {
    let row = |tokens: u32, reason: &str| {
        json(&format!(r#"{{"provider_response_id": "resp-1", "out.visible": {tokens}, "reason": "{reason}"}}"#))
    };
    let first = row(5, "").unwrap().remove(0);
    assert_eq!(first.correlation.as_ref().unwrap().kind, CorrelationKind::ProviderResponse);
    assert_eq!(first.report_id, row(5, "again").unwrap()[0].report_id);
    assert_ne!(first.report_id, row(6, "").unwrap()[0].report_id);
}

#[test]
fn a_repeated_row_counts_once_and_a_contradicting_one_is_refused() {
    let same = "report_id,revision,provider_response_id,out.visible\nr,1,p,5\nr,1,p,5\nr,2,p,6\n";
    assert_eq!(csv(same).unwrap().len(), 2);
    let other = "report_id,revision,provider_response_id,out.visible\nr,1,p,5\nr,1,p,6\n";
    assert!(csv(other).unwrap_err().to_string().starts_with("line 3, `revision`: line 2 has the same"));
}

#[test]
fn nothing_ran_is_a_statement() {
    let rows = "provider_response_id,requests,outcome\na,0,\nb,,failed\n";
    assert_eq!(csv(rows).unwrap().len(), 2);
}

#[test]
fn every_mistake_is_named_with_line_field_and_fix() {
    let id = id(1);
    let cases = [
        (format!("reservation_id,out.visibel\n{id},5\n"), "line 2, `out.visibel`: there is no such field; fields are"),
        (format!("reservation_id,out.visible\n{id},12.5\n"), "line 2, `out.visible`: `12.5` is not valid"),
        (
            format!("reservation_id,out.visible\n{id},-1\n"),
            "line 2, `out.visible`: `-1` is out of range; write a whole",
        ),
        ("reservation_id,out.visible\nnope,5\n".to_owned(), "line 2, `reservation_id`: `nope` is not valid"),
        ("out.visible\n5\n".to_owned(), "line 2, `reservation_id`: the row names no attempt; give"),
        (format!("reservation_id\n{id}\n"), "line 2, `meters`: it has neither meters"),
        (format!("reservation_id,cost_usd\n{id},0.5\n"), "line 2, `meters`: it has money without meters"),
        (format!("reservation_id,requests,out.visible\n{id},0,5\n"), "line 2, `meters`: it has meters, and says"),
        (format!("reservation_id,cost_usd,requests\n{id},1e3,0\n"), "line 2, `cost_usd`: `1e3` is not valid"),
        (format!("reservation_id,occurred_at,requests\n{id},yesterday,0\n"), "line 2, `occurred_at`: `yesterday`"),
        (format!("reservation_id,outcome\n{id},fine\n"), "line 2, `outcome`: `fine` is no outcome; write completed"),
        (format!("reservation_id,source,requests\n{id},usage_bucket,0\n"), "line 2, `source`: `usage_bucket`"),
        (format!("reservation_id,revision,requests\n{id},2,0\n"), "line 2, `revision`: it needs a `report_id`"),
        (format!("reservation_id,attempt,requests\n{id},0,0\n"), "line 2, `attempt`: `0` is out of range"),
        (format!("reservation_id,requests\n{id},0,9\n"), "line 2, `line`:"),
    ];
    for (text, expected) in cases {
        let error = csv(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n  gave {error}\n  not  {expected}");
    }
    for (text, expected) in [
        ("{\"a\": ", "line 1, `line`: it is no JSON"),
        ("[1]", "line 1, `line`: it is no JSON object; write one object per line"),
        (r#"{"provider": ["x"]}"#, "line 1, `provider`: it is neither a text nor a number"),
    ] {
        let error = json(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn one_bad_row_refuses_the_whole_file() {
    let rows = "provider_response_id,requests\na,0\nb,x\nc,0\n";
    let ImportError::Rows { problems, more } = csv(rows).unwrap_err() else { panic!("rows are at fault") };
    assert_eq!((problems.len(), more), (2, 0), "{problems:?}");
    assert!(problems.iter().all(|problem| problem.line == 3));
    let many: String = std::iter::once("provider_response_id,requests\n".to_owned())
        .chain((0..30).map(|n| format!("p{n},x,\n")))
        .collect();
    let ImportError::Rows { problems, more } = csv(&many).unwrap_err() else { panic!("rows are at fault") };
    assert_eq!((problems.len(), more), (20, 10));
}
