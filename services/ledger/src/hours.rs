//! Hours of posting: how every backend cuts a tenant's lines, so that a time range is a few look-ups.

use weir_domain::calendar::{Window, WindowKind};

pub(crate) const HOUR_MS: i64 = 3_600_000;

/// No line of the window was posted before this hour: a line follows its admission, and a local day begins at most 14
/// hours before the UTC day of the same number. A month of number n does not begin before day 30 n.
pub(crate) fn first_hour(window: Window) -> i64 {
    let ordinal = i64::from(window.ordinal);
    let first_day = match window.kind {
        WindowKind::Day => ordinal,
        WindowKind::Week => ordinal * 7 - 3,
        WindowKind::Month => ordinal * 30,
        WindowKind::Total => return i64::MIN,
    };
    (first_day - 1) * 24
}
