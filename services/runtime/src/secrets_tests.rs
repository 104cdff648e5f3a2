//! References, files and what errors say, on a real disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::ExposeSecret;

use super::{SecretError, SecretRef, create_private_file, read_or_create_secret};
use crate::entropy::{OsEntropy, SeededEntropy};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_reference_round_trips_and_a_secret_in_its_place_is_refused_without_being_repeated() {
    for text in ["env:OPENAI_API_KEY", "file:/run/secrets/key", "file:relative:with:colons"] {
        let reference: SecretRef = text.parse().unwrap();
        assert_eq!(reference.to_string(), text);
        assert_eq!(serde_json::to_string(&reference).unwrap(), format!("{text:?}"));
    }
    for text in ["sk-planted-0123", "env:", "file:", "env:sk-planted=1", "vault:sk-planted", ""] {
        let error = serde_json::from_str::<SecretRef>(&format!("{text:?}")).unwrap_err().to_string();
        assert!(error.contains("env:NAME") && !error.contains("planted"), "{text}: {error}");
    }
}

#[test]
fn one_line_end_is_trimmed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    for (written, read) in [("abc\n", "abc"), ("abc\r\n", "abc"), ("abc\n\n", "abc\n"), (" a b ", " a b ")] {
        fs::write(&path, written).unwrap();
        assert_eq!(SecretRef::File(path.clone()).resolve().unwrap().expose_secret(), read);
    }
}

#[test]
fn every_failure_names_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        SecretRef::File(folder.path().join(name))
    };
    let missing = SecretRef::File(folder.path().join("missing"));
    assert!(matches!(missing.resolve(), Err(SecretError::Unreadable { .. })));
    assert!(matches!(file("empty", b"\n").resolve(), Err(SecretError::Empty { .. })));
    assert!(matches!(file("binary", b"\xff\xfe").resolve(), Err(SecretError::NotText { .. })));
    assert!(matches!(file("large", &vec![b'x'; 70_000]).resolve(), Err(SecretError::TooLarge { .. })));
    let unset = SecretRef::Env("WEIR_TEST_SURELY_NOT_SET".to_owned());
    let error = unset.resolve().unwrap_err().to_string();
    assert!(error.starts_with("env:WEIR_TEST_SURELY_NOT_SET is not set"), "{error}");
}

#[test]
fn a_resolved_secret_does_not_print() {
    let secret = SecretRef::Env("PATH".to_owned()).resolve().unwrap();
    assert!(!format!("{secret:?}").contains(secret.expose_secret()));
}

#[test]
fn a_private_file_is_0600_replaces_what_was_there_and_leaves_no_temporary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    create_private_file(&path, b"new").unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new", 0o600));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let nowhere = folder.path().join("no/such/folder/token");
    let error = create_private_file(&nowhere, b"new").unwrap_err();
    assert!(matches!(error, SecretError::Unwritable { .. }), "{error}");
}

#[test]
fn a_secret_is_made_once_and_then_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pepper");
    let first = read_or_create_secret(&path, 32, &SeededEntropy::new(1)).unwrap();
    assert_eq!((first.expose_secret().len(), mode(&path)), (64, 0o600));
    let second = read_or_create_secret(&path, 32, &SeededEntropy::new(2)).unwrap();
    assert_eq!(first.expose_secret(), second.expose_secret());
}

#[test]
fn of_many_that_start_at_once_all_get_the_same_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pepper");
    let start = |_| {
        let path = path.clone();
        std::thread::spawn(move || read_or_create_secret(&path, 32, &OsEntropy).unwrap().expose_secret().to_owned())
    };
    let threads: Vec<_> = (0..16).map(start).collect();
    let secrets: std::collections::HashSet<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(secrets.len(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}
