//! Inputs on disk: small, each worth keeping, named by what it shows.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The files of `corpus/<target>`, by name, so that a run with one seed is the same everywhere.
pub fn read(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut paths: Vec<PathBuf> = match fs::read_dir(folder(target)) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// Keeps an input that failed outside of the repository's tree, where nobody commits it by accident.
pub fn keep_failure(target: &str, round: &str, input: &[u8]) -> io::Result<PathBuf> {
    let folder = std::env::temp_dir().join("weir-fuzz");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{target}-{}", round.replace(':', "-")));
    fs::write(&path, input)?;
    Ok(path)
}

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}
