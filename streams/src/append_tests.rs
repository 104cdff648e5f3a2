//! Progress in isolation: who is woken, and what a failure means for whom.

use std::time::Duration;

use tokio::time::timeout;

use super::*;
use crate::contract::CloseCause;

fn full() -> Closed {
    Closed { cause: CloseCause::DiskFull, detail: "no space".into() }
}

#[tokio::test]
async fn each_stage_wakes_its_own_waiters_up_to_the_count() {
    let progress = Progress::starting_at(0);
    let pending = |stage, offset| timeout(Duration::from_millis(1), progress.reached(stage, offset));
    assert!(pending(Stage::Written, 1).await.is_err());
    progress.advance(Stage::Written, 2);
    assert!(matches!(pending(Stage::Written, 2).await, Ok(Ok(()))));
    assert!(pending(Stage::Written, 3).await.is_err());
    assert!(pending(Stage::Durable, 1).await.is_err());

    let (woken, ()) = tokio::join!(progress.reached(Stage::Durable, 2), async { progress.advance(Stage::Durable, 2) });
    assert_eq!(woken, Ok(()));
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_no_trace() {
    let progress = Progress::starting_at(0);
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(1), progress.reached(Stage::Durable, 9)).await.is_err());
    }
    assert!(progress.waiting.lock().durable.is_empty());
}

#[tokio::test]
async fn a_failed_write_says_what_is_doubtful_and_lets_written_batches_become_durable() {
    let progress = Progress::starting_at(0);
    progress.advance(Stage::Written, 2);
    progress.fail_writes(full(), 3);
    assert_eq!(progress.reached(Stage::Written, 2).await, Ok(()));
    assert_eq!(progress.reached(Stage::Written, 3).await, Err(AppendError::Unknown(full())));
    assert_eq!(progress.reached(Stage::Durable, 4).await, Err(AppendError::Closed(full())));
    let (durable, ()) =
        tokio::join!(progress.reached(Stage::Durable, 2), async { progress.advance(Stage::Durable, 2) });
    assert_eq!(durable, Ok(()));
}

#[tokio::test]
async fn a_failed_sync_leaves_written_batches_unknown() {
    let progress = Progress::starting_at(0);
    progress.advance(Stage::Written, 2);
    let (durable, ()) = tokio::join!(progress.reached(Stage::Durable, 2), async { progress.fail_syncs(full()) });
    assert_eq!(durable, Err(AppendError::Unknown(full())));
    assert_eq!(progress.reached(Stage::Written, 2).await, Ok(()));
}
