//! One session: how statements are sent, how long, how many at once, and what their failures mean.
//!
//! Statements that can be repeated (plain upserts of a fixed content, and reads) are marked so, and the driver tries
//! another node by itself. A conditional one never is: its repetition could answer "refused" about its own success. Its
//! unknown outcomes are repeated here, by a caller who compares what it finds with what it wrote (O56).

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::PagingState;
use scylla::response::query_result::QueryResult;
use scylla::serialize::batch::BatchValues;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::Row;
use secrecy::ExposeSecret as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::sets::CqlSet;

use super::error::{CqlError, damaged, unavailable};
use super::options::CqlOptions;
use super::runner;

/// A connection that says nothing for this long is asked, and cut after as long again: a stopped node is found in ten
/// seconds and not in the driver's sixty.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Rows that one answer brings.
const PAGE_ROWS: i32 = 1000;
/// How often a conditional statement whose outcome is unknown is repeated before the caller hears of it, and does the
/// whole again: ten seconds of timeouts, or half a second of refused connections.
const REPEATS: u64 = 6;

/// A keyspace that is open.
pub struct Cql {
    session: Session,
    permits: Semaphore,
}

impl fmt::Debug for Cql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cql").field("permits", &self.permits.available_permits()).finish_non_exhaustive()
    }
}

pub(super) async fn connect(options: &CqlOptions) -> Result<Session, CqlError> {
    let policy = DefaultPolicy::builder()
        .token_aware(true)
        .prefer_datacenter(options.datacenter.clone())
        .permit_dc_failover(false)
        .build();
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(options.request_timeout.duration()))
        .load_balancing_policy(policy)
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.nodes)
        .default_execution_profile_handle(profile.into_handle())
        .connection_timeout(options.connect_timeout.duration())
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE)
        .keyspaces_to_fetch([&options.keyspace]);
    if let Some(user) = &options.user {
        let password = options.password.as_ref().map(weir_runtime::secrets::SecretRef::resolve).transpose();
        let password = password.map_err(unavailable)?;
        builder = builder.user(user, password.as_ref().map_or("", |password| password.expose_secret()));
    }
    builder.build().await.map_err(unavailable)
}

impl Cql {
    /// Connects and checks that the tables of `set` are those of this binary. It makes none.
    ///
    /// # Errors
    /// `Unavailable` while no node answers (try again: a role starts before its stores) and, told by its reason, while
    /// the keyspace is not migrated.
    pub async fn open(options: &CqlOptions, set: CqlSet) -> Result<Self, CqlError> {
        let session = connect(options).await?;
        runner::check(&session, &options.keyspace, set).await.map_err(unavailable)?;
        Ok(Self { session, permits: Semaphore::new(options.in_flight.max(1)) })
    }

    /// A plain statement: a read, or a write that may come twice.
    pub(super) async fn prepare(&self, text: &str) -> Result<PreparedStatement, CqlError> {
        let mut statement = self.session.prepare(text).await.map_err(unavailable)?;
        statement.set_is_idempotent(true);
        statement.set_page_size(PAGE_ROWS);
        Ok(statement)
    }

    /// A conditional statement, alone or in a batch.
    pub(super) async fn prepare_conditional(&self, text: &str) -> Result<PreparedStatement, CqlError> {
        let mut statement = self.session.prepare(text).await.map_err(unavailable)?;
        statement.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy::new())));
        Ok(statement)
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, CqlError> {
        self.permits.acquire().await.map_err(unavailable)
    }

    pub async fn execute(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<QueryResult, CqlError> {
        let _permit = self.permit().await?;
        self.session.execute_unpaged(statement, values).await.map_err(unavailable)
    }

    /// Upserts of one partition, as one write.
    pub async fn execute_together(&self, batch: &Batch, values: impl BatchValues) -> Result<(), CqlError> {
        let _permit = self.permit().await?;
        self.session.batch(batch, values).await.map(|_| ()).map_err(unavailable)
    }

    /// Rows, one page after the other, until there are no more or `take` has enough.
    pub async fn pages<R, E>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
        mut take: impl FnMut(R) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
        E: From<CqlError>,
    {
        let mut state = PagingState::start();
        loop {
            let (page, next) = {
                let _permit = self.permit().await?;
                let page = self.session.execute_single_page(statement, &values, state).await;
                page.map_err(unavailable)?
            };
            let page = page.into_rows_result().map_err(damaged)?;
            for row in page.rows::<R>().map_err(damaged)? {
                if take(row.map_err(damaged)?)?.is_break() {
                    return Ok(());
                }
            }
            match next.into_paging_control_flow() {
                ControlFlow::Continue(next) => state = next,
                ControlFlow::Break(()) => return Ok(()),
            }
        }
    }

    /// All rows of an answer that is bounded by its statement.
    pub async fn rows<R>(&self, statement: &PreparedStatement, values: impl SerializeRow) -> Result<Vec<R>, CqlError>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
    {
        let mut rows = Vec::new();
        let take = |row| {
            rows.push(row);
            Ok::<_, CqlError>(ControlFlow::Continue(()))
        };
        self.pages(statement, values, take).await?;
        Ok(rows)
    }

    pub async fn first<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Option<R>, CqlError>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
    {
        let answer = self.execute(statement, values).await?;
        let answer = answer.into_rows_result().map_err(damaged)?;
        answer.maybe_first_row::<R>().map_err(damaged)
    }

    /// Whether a conditional statement was applied. Repeats it while its outcome is unknown, so `false` may be about a
    /// success of its own: the caller looks what is there.
    pub async fn conditional(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<bool, CqlError> {
        let mut batch = conditional_batch();
        batch.append_statement(statement.clone());
        self.conditional_together(&batch, std::slice::from_ref(&values)).await
    }

    /// As [`Cql::conditional`], for statements of one partition that are applied together or not at all.
    pub async fn conditional_together(&self, batch: &Batch, values: &[impl SerializeRow]) -> Result<bool, CqlError> {
        let mut repeat = 0;
        loop {
            let answer = {
                let _permit = self.permit().await?;
                self.session.batch(batch, values).await
            };
            match answer {
                Ok(answer) => return is_applied(answer),
                // Once one outcome is unknown, an absent server does not make it known either.
                Err(error) if repeat < REPEATS && (is_unknown(&error) || (repeat > 0 && is_absent(&error))) => {
                    repeat += 1;
                }
                Err(error) if repeat > 0 || is_unknown(&error) => {
                    return Err(CqlError::Unknown { reason: error.to_string() });
                }
                Err(error) => return Err(unavailable(error)),
            }
            // Two writers that collided must not collide again: the session's random id spreads their pauses.
            let spread_ms = u64::from(self.session.session_id().as_bytes()[0] % 40);
            tokio::time::sleep(Duration::from_millis(20 * repeat + spread_ms)).await;
        }
    }
}

/// A batch whose statements are applied together, if at all.
#[must_use]
pub fn conditional_batch() -> Batch {
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_serial_consistency(Some(SerialConsistency::LocalSerial));
    batch.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy::new())));
    batch
}

/// `count` times the same upsert. One partition, so nothing has to be logged for it to be whole.
#[must_use]
pub fn upserts(statement: &PreparedStatement, count: usize) -> Batch {
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_is_idempotent(true);
    for _ in 0..count {
        batch.append_statement(statement.clone());
    }
    batch
}

/// By name, because servers differ in which columns come with it.
fn is_applied(answer: QueryResult) -> Result<bool, CqlError> {
    let answer = answer.into_rows_result().map_err(damaged)?;
    let at = answer.column_specs().get_by_name("[applied]").map(|(at, _)| at);
    let row: Row = answer.first_row().map_err(damaged)?;
    let applied = at.and_then(|at| row.columns.get(at)).and_then(Option::as_ref);
    applied.and_then(|value| value.as_boolean()).ok_or_else(|| CqlError::Damaged {
        what: "answer",
        reason: "a conditional statement was answered without [applied]".to_owned(),
    })
}

/// Whether it may have happened. A timeout of a conditional write is one even when it comes at once.
fn is_unknown(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::RequestTimeout(_)
            | ExecutionError::LastAttemptError(
                RequestAttemptError::BrokenConnectionError(_)
                    | RequestAttemptError::DbError(
                        DbError::WriteTimeout { .. }
                            | DbError::ReadTimeout { .. }
                            | DbError::WriteFailure { .. }
                            | DbError::ReadFailure { .. },
                        _
                    )
            )
    )
}

/// Whether nobody was there to be asked.
const fn is_absent(error: &ExecutionError) -> bool {
    matches!(error, ExecutionError::ConnectionPoolError(_) | ExecutionError::EmptyPlan)
}
