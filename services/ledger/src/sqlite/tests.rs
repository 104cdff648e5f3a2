//! The suites on a SQLite file, and what is its own.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;

use weir_streams::EventLog;
use weir_streams::conformance::consumer::ConsumerHarness;
use weir_streams::consumer::{Parking, Positions};
use weir_streams::segment::{SegmentLog, SegmentOptions};

use super::SqliteLedger;
use crate::conformance::{Harness, Outcome, scene};
use crate::contract::{LedgerError, LedgerStore};

struct OneFile {
    folder: TempDir,
    log: tokio::sync::Mutex<Option<Arc<SegmentLog>>>,
}

async fn fresh() -> OneFile {
    OneFile { folder: tempfile::tempdir().unwrap(), log: tokio::sync::Mutex::default() }
}

impl OneFile {
    fn ledger(&self) -> Result<Arc<SqliteLedger>, LedgerError> {
        SqliteLedger::open(&self.folder.path().join("ledger.db")).map(Arc::new)
    }
}

#[async_trait]
impl Harness for OneFile {
    async fn open(&self) -> Result<Arc<dyn LedgerStore>, Box<dyn Error + Send + Sync>> {
        Ok(self.ledger()?)
    }
}

#[async_trait]
impl ConsumerHarness for OneFile {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>> {
        let mut log = self.log.lock().await;
        if let Some(open) = log.take() {
            open.close().await;
        }
        let opened = Arc::new(SegmentLog::open(SegmentOptions::new(self.folder.path().join("log")))?);
        *log = Some(Arc::clone(&opened));
        Ok(opened)
    }

    async fn positions(&self) -> Result<Arc<dyn Positions>, Box<dyn Error + Send + Sync>> {
        Ok(self.ledger()?)
    }

    async fn parking(&self) -> Result<Arc<dyn Parking>, Box<dyn Error + Send + Sync>> {
        Ok(self.ledger()?)
    }
}

mod ledger {
    crate::ledger_store_conformance!(super::fresh);
}

mod consumers {
    weir_streams::consumer_conformance!(super::fresh);
}

#[tokio::test]
async fn a_reader_sees_what_the_running_process_posted_and_changes_nothing() -> Outcome {
    let file = fresh().await;
    let path = file.folder.path().join("ledger.db");
    assert!(SqliteLedger::open_read_only(&path).is_err(), "reading makes no file");
    let writer = file.ledger()?;
    let reader = SqliteLedger::open_read_only(&path)?;
    let created = Arc::new(scene::created(1, "acme"));
    writer.post(Arc::from([scene::charged(&created, 500, 10)])).await?;
    assert_eq!(reader.find(created.id).await?, writer.find(created.id).await?);
    let refused = reader.post(Arc::from([scene::charged(&created, 500, 10)])).await;
    assert_eq!(refused, Err(LedgerError::ReadOnly));
    drop(writer);
    let alone = SqliteLedger::open_read_only(&path)?;
    assert_eq!(alone.count().await?.lines, 1);
    Ok(())
}

#[tokio::test]
async fn lines_can_be_neither_changed_nor_removed_by_hand() -> Outcome {
    let file = fresh().await;
    let created = Arc::new(scene::created(1, "acme"));
    file.ledger()?.post(Arc::from([scene::charged(&created, 500, 10)])).await?;
    let shell = rusqlite::Connection::open(file.folder.path().join("ledger.db"))?;
    for sql in ["UPDATE lines SET amount_nusd = 0", "DELETE FROM lines"] {
        let refused = shell.execute(sql, []).unwrap_err().to_string();
        assert!(refused.contains("append-only"), "{sql}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn the_views_show_dollars_dates_and_names() -> Outcome {
    let file = fresh().await;
    let created = Arc::new(scene::created(1, "acme"));
    file.ledger()?.post(Arc::from([scene::charged(&created, -82_200_000, 10)])).await?;
    let shell = rusqlite::Connection::open(file.folder.path().join("ledger.db"))?;
    let row = |sql: &str| -> rusqlite::Result<Vec<String>> {
        shell.query_row(sql, [], |row| (0..row.as_ref().column_count()).map(|at| row.get(at)).collect())
    };
    let id = created.id.to_string();
    let line = row("SELECT reservation, posted_at, source, usd, deployment, model, price_version FROM v_lines")?;
    let expected = [&id, "2026-03-01T12:00:02.000Z", "response", "-0.082200000", "small-eu", "small", "prices-1"];
    assert_eq!(line, expected);
    let event = row("SELECT reservation, kind, recorded_at, CAST(log_offset AS TEXT) FROM v_events")?;
    assert_eq!(event, [&id, "UsageRecorded", "2026-03-01T12:00:01.010Z", "10"]);
    let reservation = row("SELECT reservation, status, admitted_at, held_usd, window_day FROM v_reservations")?;
    assert_eq!(reservation, [&id, "settled", "2026-03-01T12:00:01.000Z", "0.000000000", "2026-03-01"]);
    let attempt = row("SELECT reservation, deployment, outcome, charge_usd FROM v_attempts")?;
    assert_eq!(attempt, [&id, "small-eu", "executed", "-0.082200000"]);
    Ok(())
}
