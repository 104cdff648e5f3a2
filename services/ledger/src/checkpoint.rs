//! Checkpoints: the fold at a position, so that a start reads the tail of the log and not all of it (design section 9).
//!
//! An image is everything: counters, open and retained reservations, the sliding minute, idempotency records, applied
//! positions. It is trusted only when its digest, its format and its options fit; otherwise the one before it serves,
//! and at last the log itself, from its first segment. A checkpoint is never needed, only fast.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use weir_domain::fold::{Fold, FoldImage};
use weir_domain::quota::BookOptions;

use crate::contract::StoredCheckpoint;
use crate::projection::Projection;

/// The number of the bytes' meaning. A change of any type in [`FoldImage`] is a new number: older images are then
/// passed over. A test holds the number and the types together.
pub const FORMAT: u32 = 3;

/// When checkpoints are taken, and how many stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Events after which a new one is due: at 200,000 a second, a start then folds for a second. A fold that keeps more
    /// than ten thousand reservations waits for sixteen events of each, up to four million.
    pub every_events: u64,
    /// Time after which a new one is due if anything came, ms.
    pub every_ms: i64,
    /// How many stay; more than one, because the newest may turn out to be damaged.
    pub keep: usize,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { every_events: 200_000, every_ms: 5 * 60 * 1000, keep: 3 }
    }
}

/// An image of so many takes milliseconds, and is taken as often as the operator says.
const SMALL_IMAGE: usize = 10_000;
/// A larger one costs as much as it holds, so what it holds is folded some times over before the next one.
const EVENTS_PER_RESERVATION: u64 = 16;
/// Whatever an image holds, a start folds no more than this behind it: some five seconds.
const MOST_EVENTS: u64 = 4_000_000;

impl CheckpointOptions {
    /// Events after which a new one is due, where the fold keeps `reservations`.
    pub(crate) fn events_between(&self, reservations: usize) -> u64 {
        if reservations <= SMALL_IMAGE {
            return self.every_events;
        }
        let in_proportion = EVENTS_PER_RESERVATION.saturating_mul(reservations as u64);
        self.every_events.max(in_proportion.min(MOST_EVENTS))
    }
}

/// Why a stored checkpoint is not used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckpointFlaw {
    #[error("it has format {found}, this program reads {FORMAT}")]
    Format { found: u32 },
    #[error("its digest does not fit its bytes")]
    Digest,
    #[error("its image cannot be read: {0}")]
    Image(String),
    #[error("it was taken with other options of the book")]
    Options,
    #[error("it is ahead of the ledger's position, or behind what the log still has")]
    Position,
}

/// A key whose records are not in the image from `offset` on: they were parked when it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub partition: u32,
    pub key: Vec<u8>,
    pub offset: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Image {
    latest_ms: i64,
    left_out: Vec<LeftOut>,
    fold: FoldImage,
}

/// A checkpoint that can be trusted.
#[derive(Debug)]
pub(crate) struct Opened {
    pub projection: Projection,
    pub left_out: Vec<LeftOut>,
}

/// A copy of the fold that can be written down later, on another thread.
#[derive(Debug)]
pub(crate) struct Snapshot {
    image: Image,
    positions: Vec<(u32, u64)>,
    taken_at_ms: i64,
}

impl Snapshot {
    pub fn of(projection: &Projection, positions: Vec<(u32, u64)>, left_out: Vec<LeftOut>, taken_at_ms: i64) -> Self {
        let image = Image { latest_ms: projection.latest_ms(), left_out, fold: projection.fold().image() };
        Self { image, positions, taken_at_ms }
    }

    pub fn seal(self) -> Result<StoredCheckpoint, CheckpointFlaw> {
        let image = postcard::to_stdvec(&self.image).map_err(|error| CheckpointFlaw::Image(error.to_string()))?;
        let sha256 = digest(FORMAT, &self.positions, &image);
        let Self { positions, taken_at_ms, .. } = self;
        Ok(StoredCheckpoint { taken_at_ms, positions, format: FORMAT, sha256, image })
    }
}

/// What `stored` describes, if it can be trusted.
pub(crate) fn open(stored: &StoredCheckpoint, options: BookOptions) -> Result<Opened, CheckpointFlaw> {
    if stored.format != FORMAT {
        return Err(CheckpointFlaw::Format { found: stored.format });
    }
    if digest(stored.format, &stored.positions, &stored.image) != stored.sha256 {
        return Err(CheckpointFlaw::Digest);
    }
    let image: Image = postcard::from_bytes(&stored.image).map_err(|error| CheckpointFlaw::Image(error.to_string()))?;
    if image.fold.options() != options {
        return Err(CheckpointFlaw::Options);
    }
    let projection = Projection::new(Fold::from_image(image.fold), image.latest_ms);
    Ok(Opened { projection, left_out: image.left_out })
}

fn digest(format: u32, positions: &[(u32, u64)], image: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(format.to_be_bytes());
    for (partition, offset) in positions {
        hash.update(partition.to_be_bytes());
        hash.update(offset.to_be_bytes());
    }
    hash.update(image);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_image_is_taken_as_often_as_the_operator_says_and_a_large_one_in_proportion() {
        let often = CheckpointOptions { every_events: 5, ..CheckpointOptions::default() };
        let due = [0, 10_000, 10_001, 1_000_000].map(|reservations| often.events_between(reservations));
        assert_eq!(due, [5, 5, 160_016, 4_000_000]);
        let seldom = CheckpointOptions { every_events: 9_000_000, ..often };
        assert_eq!(seldom.events_between(1_000_000), 9_000_000);
    }
}
