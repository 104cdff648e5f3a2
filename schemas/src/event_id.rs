//! The identity of a fact.

use sha2::{Digest, Sha256};
use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::reservation::EventKind;

/// Sets these hashes apart from every other use of SHA-256; a changed recipe gets a new word.
const RECIPE: &[u8] = b"weir.event.1\0";

/// The id of the event of `kind` about `attempt` of `reservation`, for `cause`.
///
/// Sixteen bytes of a SHA-256 over the recipe's name, the reservation's sixteen bytes, the attempt as a big-endian
/// `u16`, the kind's name, a zero byte and the cause. It depends on the fact and on nothing else, neither time nor
/// process nor chance, so that a retry, a second reconciler or a redelivery gives the same id (O55). 128 bits: two
/// facts that share one are not to be expected before 10¹⁸ events.
#[must_use]
pub fn event_id(reservation: ReservationId, attempt: AttemptNumber, kind: EventKind, cause: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    hash.update(reservation.as_bytes());
    hash.update(attempt.to_be_bytes());
    hash.update(kind.as_str().as_bytes());
    hash.update([0]);
    hash.update(cause.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    id
}
