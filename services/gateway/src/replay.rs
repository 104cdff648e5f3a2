//! What a client may ask for again: answers to requests with an `Idempotency-Key`, while they run and for a while after.
//!
//! With a key, a client never gets the bytes from the relay itself: a task of the gateway takes the answer in its place
//! and keeps it on a [`Tape`], from which the first client, and whoever comes with the same key, read at their own pace.
//! So a client that leaves cancels nothing, and one that comes back gets the same bytes from the start. The quota
//! store's record of the key stays the authority (I3): whatever is not on a tape here is refused there, never called
//! twice.
//!
//! Bounds: `replay_entry` a tape, `replay_total` all tapes, `replay_for` the time. Beyond the first two an answer is only
//! passed on, and can be asked for no more.

mod reader;
mod recorder;
mod tape;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::policy::TenantSecret;
use weir_runtime::listener::Connection;
use weir_wire::Dialect;

use crate::client::ClientBody;
use crate::lifecycle::Prepared;
use crate::options::GatewayOptions;
use crate::reserve::hashed;
use crate::respond::{IdempotencyRefusal, Refusal};
use crate::server::Inner;

pub(crate) use reader::{Reader, ReplayBody};
use tape::{Join, Tape};

/// A client's `Idempotency-Key` and the request that came with it, both as HMACs under the tenant's secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyed {
    pub key_hash: [u8; 32],
    pub fingerprint: [u8; 32],
}

/// The longest `Idempotency-Key`.
const MOST_KEY_BYTES: usize = 255;

impl Keyed {
    /// Reads the key of a request, if it has one. The same body on another path is another request.
    pub(crate) fn of(
        headers: &HeaderMap,
        secret: &TenantSecret,
        dialect: Dialect,
        body: &[u8],
    ) -> Result<Option<Self>, IdempotencyRefusal> {
        let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
        let sane = |text: &&str| !text.is_empty() && text.len() <= MOST_KEY_BYTES;
        let text = value.to_str().ok().map(str::trim).filter(sane).ok_or(IdempotencyRefusal::BadKey)?;
        Ok(Some(Self {
            key_hash: hashed(secret, b"idempotency-key", &[text.as_bytes()]),
            fingerprint: hashed(secret, b"body", &[dialect.name().as_bytes(), body]),
        }))
    }
}

type Key = (TenantId, [u8; 32]);

/// The unit in which the memory of all tapes is counted.
const PERMIT_BYTES: usize = 1024;
/// What a tape takes without its pieces: the head of an answer, its place in the table, its task.
const TAPE_BYTES: usize = 4 * 1024;

/// The tapes of this gateway.
#[derive(Debug)]
pub(crate) struct Replays {
    memory: Arc<Semaphore>,
    entry_bytes: usize,
    keep_for: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    tapes: HashMap<Key, Arc<Tape>>,
    /// Tapes of calls that ended, in the order of their ends: the oldest makes room first.
    ended: BTreeMap<u64, Key>,
    ended_so_far: u64,
}

/// What a request is to do.
pub(crate) enum Turn {
    /// Make the call. Without a key, or where the bounds allow no tape, nothing is recorded.
    Call(Option<First>),
    /// Read the answer of a call that was made.
    Read(Reader),
}

/// The first with its key.
pub(crate) struct First {
    pub claim: Claim,
    pub reader: Reader,
    pub recording: Recording,
}

/// Finds out whether a request is the first with its key, here. Who makes a call that is recorded gives its connection
/// to the tape, which ends it when it takes nothing.
pub(crate) async fn turn(gateway: &Inner, prepared: &mut Prepared) -> Result<Turn, Refusal> {
    let Some(keyed) = prepared.keyed else { return Ok(Turn::Call(None)) };
    let connection = prepared.arrival.connection.as_ref();
    let turn = gateway.replays.find(&prepared.key.tenant.id, &keyed, connection).await?;
    match &turn {
        Turn::Call(None) => {}
        Turn::Call(Some(_)) => prepared.arrival.connection = None,
        Turn::Read(reader) => {
            gateway.metrics.replayed(reader.how());
            tracing::info!(
                request_id = %prepared.arrival.request_id,
                reservation_id = reader.reservation().map(tracing::field::display),
                tenant = %prepared.key.tenant.id,
                key = %prepared.key.id,
                how = reader.how(),
                "request answered by its idempotency key"
            );
        }
    }
    Ok(turn)
}

/// What a look at the table came to.
enum Place {
    Taken(Turn),
    /// The call of the key has failed and not closed yet.
    Undecided(Arc<Tape>),
}

/// The calling side of a tape. Dropping it says how the call ended; unless told otherwise, without execution.
#[derive(Debug)]
pub(crate) struct Claim {
    tape: Arc<Tape>,
    executed: bool,
}

impl Claim {
    pub(crate) fn admitted(&self, reservation: ReservationId) {
        self.tape.admitted(reservation);
    }

    /// The call may have been executed: its answer is the answer to the key from now on.
    pub(crate) fn executed(mut self) {
        self.executed = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.tape.decide(self.executed);
    }
}

/// The recording side of a tape, until its task takes it.
pub(crate) struct Recording {
    key: Key,
    tape: Arc<Tape>,
}

impl Recording {
    /// Takes the answer in the client's place, in a task of its own. A client that accepts nothing for `write_stall` is
    /// reset.
    pub(crate) fn start(
        self,
        gateway: &Arc<Inner>,
        response: oneshot::Receiver<Response<ClientBody>>,
        write_stall: Duration,
    ) {
        let Self { key, tape } = self;
        let recorder = recorder::Recorder { gateway: Arc::clone(gateway), key, tape, write_stall };
        gateway.tasks.spawn("replay", recorder.run(response));
    }
}

impl Replays {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let permits = (options.replay_total.as_usize() / PERMIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            memory: Arc::new(Semaphore::new(permits)),
            entry_bytes: options.replay_entry.as_usize(),
            keep_for: options.replay_for.duration(),
            table: Mutex::default(),
        }
    }

    /// Looks a key up, and claims it where nobody has. A call that failed and has not closed yet is waited for: if it was
    /// not executed, the key is free.
    async fn find(
        &self,
        tenant: &TenantId,
        keyed: &Keyed,
        connection: Option<&Connection>,
    ) -> Result<Turn, IdempotencyRefusal> {
        if self.keep_for.is_zero() {
            return Ok(Turn::Call(None));
        }
        let key = (tenant.clone(), keyed.key_hash);
        loop {
            let undecided = match self.at(&key, keyed, connection)? {
                Place::Taken(turn) => return Ok(turn),
                Place::Undecided(tape) => tape,
            };
            undecided.decided().await;
        }
    }

    fn at(&self, key: &Key, keyed: &Keyed, connection: Option<&Connection>) -> Result<Place, IdempotencyRefusal> {
        let mut table = self.table.lock();
        if let Some(tape) = table.tapes.get(key) {
            match tape.join(&keyed.fingerprint, connection.cloned()) {
                Join::Joined { id, is_ended } => {
                    return Ok(Place::Taken(Turn::Read(Reader::again(Arc::clone(tape), id, is_ended))));
                }
                Join::Undecided => return Ok(Place::Undecided(Arc::clone(tape))),
                Join::OtherBody => return Err(IdempotencyRefusal::KeyReused { reservation: tape.reservation() }),
                Join::TooLong => return Err(IdempotencyRefusal::KeyInUse { reservation: tape.reservation() }),
                Join::Free => {}
            }
        }
        let Some(permit) = self.take(&mut table, TAPE_BYTES) else { return Ok(Place::Taken(Turn::Call(None))) };
        let tape = Arc::new(Tape::new(keyed.fingerprint, permit));
        table.tapes.insert(key.clone(), Arc::clone(&tape));
        let id = tape.first(connection.cloned());
        Ok(Place::Taken(Turn::Call(Some(First {
            claim: Claim { tape: Arc::clone(&tape), executed: false },
            reader: Reader::first(Arc::clone(&tape), id),
            recording: Recording { key: key.clone(), tape },
        }))))
    }

    /// Memory for `bytes` more; the oldest answers that nobody reads make room.
    fn more(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.take(&mut self.table.lock(), bytes)
    }

    fn take(&self, table: &mut Table, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).ok()?;
        loop {
            if let Ok(permit) = Arc::clone(&self.memory).try_acquire_many_owned(permits) {
                return Some(permit);
            }
            let place = table.ended.iter().find_map(|(place, key)| {
                let is_unread = table.tapes.get(key).is_none_or(|tape| tape.clear());
                is_unread.then_some(*place)
            })?;
            if let Some(key) = table.ended.remove(&place) {
                table.tapes.remove(&key);
            }
        }
    }

    /// Queues the tape of a call that ended among those that may make room.
    fn ended(&self, key: &Key) -> u64 {
        let mut table = self.table.lock();
        table.ended_so_far += 1;
        let place = table.ended_so_far;
        table.ended.insert(place, key.clone());
        place
    }

    /// Forgets a tape, unless the key has a newer one.
    fn forget(&self, key: &Key, tape: &Arc<Tape>, place: Option<u64>) {
        let mut table = self.table.lock();
        if let Some(place) = place {
            table.ended.remove(&place);
        }
        if table.tapes.get(key).is_some_and(|kept| Arc::ptr_eq(kept, tape)) {
            table.tapes.remove(key);
        }
    }
}
