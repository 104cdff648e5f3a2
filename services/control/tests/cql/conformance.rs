//! The suite of control stores, on the real server.

use std::sync::Arc;

use tempfile::TempDir;

use weir_control::conformance::Harness;
use weir_control::secrets::ControlSecrets;
use weir_control::store::{ControlStore, SqliteControlStore, StoreError};

use crate::support::{Turn, is_skipped, open, turn};

struct OnServer {
    /// Absent where real servers are left out.
    turn: Option<Turn>,
    folder: TempDir,
}

fn fresh() -> OnServer {
    let turn = if is_skipped("conformance") { None } else { Some(turn().unwrap()) };
    OnServer { turn, folder: tempfile::tempdir().unwrap() }
}

impl Harness for OnServer {
    fn open_with(&self, secrets: &ControlSecrets) -> Result<Arc<dyn ControlStore>, StoreError> {
        match &self.turn {
            Some(turn) => open(&turn.server.options(), secrets),
            None => Ok(Arc::new(SqliteControlStore::open(&self.folder.path().join("control.sqlite"), secrets)?)),
        }
    }
}

weir_control::control_store_conformance!(fresh);
