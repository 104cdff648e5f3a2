//! Checkpoints: an image in parts, each a partition of its own, and a head that counts once every part is there.
//!
//! Each partition of the log has its own, on a shelf of heads that it shares with few others; those of several partitions
//! together have a shelf too. Numbers are of the whole table, because parts are found by them alone: the lane of whose
//! they are is in the remainder.

use futures_util::future::try_join_all;
use scylla::DeserializeRow;

use crate::contract::{LedgerError, StoredCheckpoint};

use super::ledger::CqlLedger;
use super::stored::{damaged, parsed, text};

/// Far below the greatest write that a server takes (half of a commit log segment), and small enough to be copied
/// between two other requests.
const PART_BYTES: usize = 256 * 1024;
/// Parts under way at once: some megabytes in the servers' queues.
const PARTS_AT_ONCE: usize = 8;
/// Shelves of single partitions, and the one of all others.
const SHELVES: u32 = 120;
/// Numbers of one lane are so far apart. A log has fewer partitions.
const STRIDE: i64 = 1024;

/// Where checkpoints of `partitions` are: the shelf, and the remainder of their numbers.
fn lane_of(partitions: &[u32]) -> (i8, i64) {
    const OTHERS: (i8, i64) = (120, STRIDE - 1);
    match partitions {
        [partition] if i64::from(*partition) < STRIDE - 1 => {
            (i8::try_from(partition % SHELVES).unwrap_or(OTHERS.0), i64::from(*partition))
        }
        _ => OTHERS,
    }
}

/// Tries to take a number that another process takes at the same time.
const CLAIMS: usize = 16;

#[derive(Debug, DeserializeRow)]
struct Head {
    number: i64,
    is_complete: Option<bool>,
    taken_at_ms: Option<i64>,
    positions: Option<String>,
    format: Option<i32>,
    sha256: Option<Vec<u8>>,
    parts: Option<i32>,
}

impl Head {
    fn is_complete(&self) -> bool {
        self.is_complete == Some(true)
    }
}

impl CqlLedger {
    pub(super) async fn write_checkpoint(&self, checkpoint: &StoredCheckpoint, keep: usize) -> Result<(), LedgerError> {
        let partitions = checkpoint.partitions();
        let (shelf, lane) = lane_of(&partitions);
        let number = self.claim_number(shelf, lane).await?;
        let parts: Vec<(i32, &[u8])> = (0..).zip(checkpoint.image.chunks(PART_BYTES)).collect();
        for parts in parts.chunks(PARTS_AT_ONCE) {
            let puts = parts.iter().map(|(part, bytes)| {
                let values = (number, *part, *bytes);
                self.cql.execute(&self.statements.checkpoints.put_part, values)
            });
            try_join_all(puts).await?;
        }
        let positions = text("checkpoint", &checkpoint.positions)?;
        let format = i32::try_from(checkpoint.format).map_err(|error| damaged("checkpoint", &error))?;
        let count = i32::try_from(parts.len()).map_err(|error| damaged("checkpoint", &error))?;
        let head = (checkpoint.taken_at_ms, positions, format, &checkpoint.sha256[..], count, shelf, number);
        self.cql.conditional(&self.statements.checkpoints.finish_checkpoint, head).await?;
        self.prune((shelf, lane), number, keep).await
    }

    async fn heads(&self, (shelf, lane): (i8, i64)) -> Result<Vec<Head>, LedgerError> {
        let heads: Vec<Head> = self.cql.rows(&self.statements.checkpoints.checkpoints, (shelf,)).await?;
        Ok(heads.into_iter().filter(|head| head.number % STRIDE == lane).collect())
    }

    /// The next number, which nobody else has.
    async fn claim_number(&self, shelf: i8, lane: i64) -> Result<i64, LedgerError> {
        for _ in 0..CLAIMS {
            let number =
                self.heads((shelf, lane)).await?.first().map_or(STRIDE + lane, |newest| newest.number + STRIDE);
            if self.cql.conditional(&self.statements.checkpoints.claim_checkpoint, (shelf, number)).await? {
                return Ok(number);
            }
        }
        Err(LedgerError::Unavailable { reason: "other processes take every number of a checkpoint".to_owned() })
    }

    /// Removes what is older than the newest `keep`, and what was never finished before `own`. The head goes first, so
    /// that nobody begins to read what goes.
    async fn prune(&self, of: (i8, i64), own: i64, keep: usize) -> Result<(), LedgerError> {
        let heads = self.heads(of).await?;
        let (complete, broken): (Vec<_>, Vec<_>) = heads.into_iter().partition(Head::is_complete);
        let surplus = complete.into_iter().skip(keep.max(1));
        // A process may be writing one now; one that is two numbers behind was left by one that died.
        let broken = broken.into_iter().filter(|head| head.number < own - STRIDE);
        for head in surplus.chain(broken) {
            self.cql.conditional(&self.statements.checkpoints.delete_checkpoint, (of.0, head.number)).await?;
            let parts: Vec<i32> = (0..head.parts.unwrap_or(0)).collect();
            for parts in parts.chunks(PARTS_AT_ONCE) {
                let delete =
                    |part: &i32| self.cql.execute(&self.statements.checkpoints.delete_part, (head.number, *part));
                try_join_all(parts.iter().map(delete)).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn read_checkpoint(
        &self,
        partitions: &[u32],
        nth: usize,
    ) -> Result<Option<StoredCheckpoint>, LedgerError> {
        let heads = self.heads(lane_of(partitions)).await?;
        let mut of_these = Vec::with_capacity(heads.len());
        for head in heads.into_iter().filter(Head::is_complete) {
            let positions: Vec<(u32, u64)> = parsed("checkpoint", head.positions.as_deref().unwrap_or("[]"))?;
            if positions.iter().map(|(partition, _)| partition).eq(partitions) {
                of_these.push(head);
            }
        }
        let Some(head) = of_these.into_iter().nth(nth) else { return Ok(None) };
        let Head { number, taken_at_ms, positions, format, sha256, parts, .. } = head;
        let missing = || damaged("checkpoint", &"its head is half written");
        let (Some(taken_at_ms), Some(positions), Some(format)) = (taken_at_ms, positions, format) else {
            return Err(missing());
        };
        let sha256 =
            sha256.ok_or_else(missing)?.try_into().map_err(|_| damaged("checkpoint", &"its digest is short"))?;
        let mut image = Vec::new();
        let parts: Vec<i32> = (0..parts.ok_or_else(missing)?).collect();
        for parts in parts.chunks(PARTS_AT_ONCE) {
            let read = parts
                .iter()
                .map(|part| self.cql.first::<(Vec<u8>,)>(&self.statements.checkpoints.part, (number, *part)));
            for bytes in try_join_all(read).await? {
                // A part that is missing was removed meanwhile: the digest will not fit, and the next one serves.
                image.extend(bytes.map(|(bytes,)| bytes).unwrap_or_default());
            }
        }
        let format = u32::try_from(format).map_err(|error| damaged("checkpoint", &error))?;
        Ok(Some(StoredCheckpoint { taken_at_ms, positions: parsed("checkpoint", &positions)?, format, sha256, image }))
    }
}
