//! The counters of a book by scope, and the way to them.
//!
//! A reservation counts on some six scopes, and each of its events moves them. So the scopes are looked up once, when
//! the reservation comes, and their places are kept beside it.

use std::sync::Arc;

use crate::calendar::Window;
use crate::ids::OwnMap;
use crate::quota::{Scope, ScopeCounters};
use crate::reservation::{Position, Reservation};

/// Where the counters of a reservation stand. A place is never given to another scope.
pub(super) type Places = Arc<[u32]>;

#[derive(Debug, Clone, Default)]
pub(super) struct Scopes {
    places: OwnMap<Scope, u32>,
    counters: Vec<ScopeCounters>,
    /// Lists that were looked up lately. The list itself is held, so that its address means no other.
    recent: Vec<(Arc<[Scope]>, Places)>,
}

/// Lists that are remembered: one for each pair of key and model that is busy at a time.
const RECENT: usize = 16;

impl Scopes {
    pub fn get(&self, scope: &Scope) -> Option<&ScopeCounters> {
        self.places.get(scope).map(|place| &self.counters[*place as usize])
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Scope, &ScopeCounters)> {
        self.places.iter().map(|(scope, place)| (scope, &self.counters[*place as usize]))
    }

    /// The places of `scopes`; new ones for those that were never counted on.
    pub fn places(&mut self, scopes: &Arc<[Scope]>) -> Places {
        if let Some((_, places)) = self.recent.iter().find(|(known, _)| Arc::ptr_eq(known, scopes)) {
            return Arc::clone(places);
        }
        let places: Places = scopes.iter().map(|scope| self.place(scope)).collect();
        // Only a list that somebody shares can come again.
        if Arc::strong_count(scopes) > 1 {
            if self.recent.len() >= RECENT {
                self.recent.remove(0);
            }
            self.recent.push((Arc::clone(scopes), Arc::clone(&places)));
        }
        places
    }

    fn place(&mut self, scope: &Scope) -> u32 {
        if let Some(place) = self.places.get(scope) {
            return *place;
        }
        // Four thousand million scopes of one tenant do not fit into memory.
        let place = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        self.places.insert(scope.clone(), place);
        self.counters.push(ScopeCounters::default());
        place
    }

    pub fn at(&mut self, place: u32) -> &mut ScopeCounters {
        &mut self.counters[place as usize]
    }
}

impl FromIterator<(Scope, ScopeCounters)> for Scopes {
    fn from_iter<T: IntoIterator<Item = (Scope, ScopeCounters)>>(all: T) -> Self {
        let mut scopes = Self::default();
        for (scope, counters) in all {
            let place = scopes.place(&scope);
            *scopes.at(place) = counters;
        }
        scopes
    }
}

/// What a change of position is counted on.
pub(super) struct Moved<'a> {
    pub windows: &'a [Window; 4],
    pub admitted_at_ms: i64,
    pub now_ms: i64,
}

impl<'a> Moved<'a> {
    pub fn of(reservation: &'a Reservation, now_ms: i64) -> Self {
        let created = &reservation.created;
        Self { windows: &created.counting.windows, admitted_at_ms: created.admitted_at_ms, now_ms }
    }

    /// Moves every counter by the difference of two positions.
    pub fn shift(&self, scopes: &mut Scopes, places: &[u32], before: Position, after: Position) {
        if before == after {
            return;
        }
        let charged = after.charged - before.charged;
        let held = after.held - before.held;
        let pending = after.pending - before.pending;
        let (admitted_s, now_s) = (self.admitted_at_ms.div_euclid(1000), self.now_ms.div_euclid(1000));
        for place in places {
            let counters = scopes.at(*place);
            for window in self.windows {
                counters.change(*window, charged, held, pending);
            }
            counters.change_rate(admitted_s, now_s, charged + held);
            counters.change_slots(after.slots - before.slots);
            counters.prune(self.windows);
        }
    }
}
