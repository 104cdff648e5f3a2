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
        Self { latest_s: rolling.latest_s, buckets: rolling.buckets.into() }
    }
}

impl<const SECONDS: usize> From<RollingImage> for Rolling<SECONDS> {
    fn from(image: RollingImage) -> Self {
        let sum = image.buckets.iter().fold([0; 2], |sum, (_, bucket)| plus(sum, *bucket));
        Self { buckets: image.buckets.into(), sum, latest_s: image.latest_s }
    }
}
