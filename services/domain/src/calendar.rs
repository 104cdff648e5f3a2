//! Calendar windows in a tenant's zone: days, ISO weeks, months, and the one that never ends.
//!
//! A window is a small number, so that counting costs no text and no time zone arithmetic; its compact id
//! (`d2026-03-01`, `w2026-W09`, `m2026-03`, `total`) is how it is printed and stored. Windows are half-open and never
//! go back: a day begins at the first instant whose local date is that day or later, also where the local midnight is
//! skipped, and lasts until the next begins, be that 23, 24 or 25 hours.
//!
//! Changing a tenant's zone must not give two resets in one day (O51). [`Calendar`] therefore keeps the windows that
//! were in force until the new zone can take over; see [`takes_over_ms`].

mod window;
mod zone;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use window::{Window, WindowError, WindowKind};
pub use zone::{Zone, ZoneError};
use zone::{local_day, start_of_day_ms};

/// The shortest time between two resets that a zone change may cause.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The windows that `now_ms` (milliseconds since 1970 UTC) falls into, in the order of [`WindowKind::ALL`].
#[must_use]
pub fn windows_at(now_ms: i64, zone: &Zone) -> [Window; 4] {
    let day = local_day(now_ms, zone);
    WindowKind::ALL.map(|kind| Window::containing(kind, day))
}

/// When `window` ends in `zone`, in milliseconds since 1970 UTC; `None` for the total.
#[must_use]
pub fn end_ms(window: &Window, zone: &Zone) -> Option<i64> {
    window.next_first_day().map(|day| start_of_day_ms(day, zone))
}

/// How long until `window` ends in `zone`: zero when it is over, `None` for the total, which never resets.
#[must_use]
pub fn resets_in_ms(window: &Window, now_ms: i64, zone: &Zone) -> Option<i64> {
    end_ms(window, zone).map(|end_ms| end_ms.saturating_sub(now_ms).max(0))
}

/// When windows of `kind` in a `new` zone take over from one of the old zone that ends at `old_end_ms`.
///
/// At that end, unless the new zone resets again within a day of it: then the old window goes on until that reset, so
/// that one reset stands for both.
#[must_use]
pub fn takes_over_ms(old_end_ms: i64, kind: WindowKind, new: &Zone) -> i64 {
    let current = Window::containing(kind, local_day(old_end_ms, new));
    let before = Window::containing(kind, local_day(old_end_ms.saturating_sub(1), new));
    match end_ms(&current, new) {
        Some(next_ms) if current == before && next_ms - old_end_ms < DAY_MS => next_ms,
        Some(_) | None => old_end_ms,
    }
}

/// The windows in force and until when they stay so: computed once, then compared with the clock by every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentWindows {
    windows: [Window; 4],
    /// By [`WindowKind::ALL`]; the total's is `i64::MAX`.
    ends_ms: [i64; 4],
    valid_from_ms: i64,
    valid_until_ms: i64,
}

impl CurrentWindows {
    /// Whether these are the windows at `now_ms`. If not, ask [`Calendar::at`] again.
    #[must_use]
    pub const fn hold_at(&self, now_ms: i64) -> bool {
        self.valid_from_ms <= now_ms && now_ms < self.valid_until_ms
    }

    #[must_use]
    pub const fn windows(&self) -> &[Window; 4] {
        &self.windows
    }

    /// How long until the window of `kind` ends; `None` for the total.
    #[must_use]
    pub fn resets_in_ms(&self, kind: WindowKind, now_ms: i64) -> Option<i64> {
        match kind {
            WindowKind::Day | WindowKind::Week | WindowKind::Month => {
                Some(self.ends_ms[kind as usize].saturating_sub(now_ms).max(0))
            }
            WindowKind::Total => None,
        }
    }

    /// The first instant at which one of the windows is another.
    #[must_use]
    pub const fn valid_until_ms(&self) -> i64 {
        self.valid_until_ms
    }
}

/// A tenant's zone, and the windows that an earlier zone still holds in force. A value of the tenant's snapshot, so that
/// every replica computes the same windows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calendar {
    zone: Zone,
    /// At most one of each kind, because each change replaces them all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    held: Vec<HeldWindow>,
}

/// A window of a former zone that stays in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldWindow {
    window: Window,
    until_ms: i64,
}

impl Calendar {
    #[must_use]
    pub const fn new(zone: Zone) -> Self {
        Self { zone, held: Vec::new() }
    }

    #[must_use]
    pub const fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The calendar after the tenant's zone was set to `zone` at `now_ms`. Setting the same zone changes nothing.
    #[must_use]
    pub fn with_zone(&self, zone: Zone, now_ms: i64) -> Self {
        if zone == self.zone {
            return self.clone();
        }
        let current = self.at(now_ms);
        let held = [WindowKind::Day, WindowKind::Week, WindowKind::Month].map(|kind| HeldWindow {
            window: current.windows[kind as usize],
            until_ms: takes_over_ms(current.ends_ms[kind as usize], kind, &zone),
        });
        Self { zone, held: held.to_vec() }
    }

    /// The windows in force at `now_ms`.
    #[must_use]
    pub fn at(&self, now_ms: i64) -> CurrentWindows {
        let mut windows = windows_at(now_ms, &self.zone);
        let mut ends_ms = windows.map(|window| end_ms(&window, &self.zone).unwrap_or(i64::MAX));
        for held in self.held.iter().filter(|held| now_ms < held.until_ms) {
            windows[held.window.kind as usize] = held.window;
            ends_ms[held.window.kind as usize] = held.until_ms;
        }
        let valid_until_ms = ends_ms.into_iter().fold(i64::MAX, i64::min);
        CurrentWindows { windows, ends_ms, valid_from_ms: now_ms, valid_until_ms }
    }
}
