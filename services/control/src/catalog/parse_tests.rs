//! Places in a file, whatever an editor made of it.

use super::check_tests::{GOOD, problems, read};
use super::*;

#[test]
fn columns_are_characters_and_lines_end_as_they_like() {
    let text = "[[tenant]]\r\nname = \"ä\"\r\n\r\n[[team]]\r\n# äöü\r\ntenant = \"x\"\r\nname = \"ü\", y = 1\r\n";
    assert_eq!(problems(text), "catalog.toml:7:11: catalog: unexpected key or value, expected newline, `#`");
}

proptest::proptest! {
    /// Whatever an editor leaves behind is read or refused, never a panic, and every message points into the file.
    #[test]
    fn a_torn_catalog_is_read_or_refused_with_places_inside_the_file(
        from in 0..GOOD.len(),
        length in 0..40_usize,
        inserted in "[\\PC\n\"\\[\\]={}.,é]{0,12}",
    ) {
        let to = (from + length).min(GOOD.len());
        let text = format!("{}{inserted}{}", &GOOD[..from], &GOOD[to..]);
        if let Err(CatalogProblems(problems)) = read(&text) {
            proptest::prop_assert!(!problems.is_empty());
            let lines: Vec<&str> = text.split('\n').collect();
            for problem in problems {
                let line = lines.get(problem.at.line - 1);
                let width = line.map(|line| line.chars().count());
                proptest::prop_assert!(width.is_some_and(|width| problem.at.column <= width + 1), "{problem}\n{text}");
            }
        }
    }
}
