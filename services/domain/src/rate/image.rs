//! A rolling window as stored bytes: only the seconds that hold something, because most scopes are quiet.

use serde::{Deserialize, Serialize};

use super::{Rolling, plus};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RollingImage {
    latest_s: i64,
    /// Second and sums of each bucket that is counted and not zero, oldest first.
    buckets: Vec<(i64, [i64; 2])>,
}

impl<const SECONDS: usize> From<Rolling<SECONDS>> for RollingImage {
    fn from(rolling: Rolling<SECONDS>) -> Self {
        let everything = rolling.latest_s.saturating_add(Rolling::<SECONDS>::length());
        let buckets = rolling.expiring(everything).filter(|(_, sums)| *sums != [0; 2]).collect();
        Self { latest_s: rolling.latest_s, buckets }
    }
}

impl<const SECONDS: usize> From<RollingImage> for Rolling<SECONDS> {
    fn from(image: RollingImage) -> Self {
        let mut rolling = Self { latest_s: image.latest_s, ..Self::default() };
        for (second, sums) in image.buckets {
            rolling.buckets[Self::slot(second)] = sums;
            rolling.sum = plus(rolling.sum, sums);
        }
        rolling
    }
}
