//! The fence: when a book may be used, and how it comes back (I15).
//!
//! A book is in force under a generation and under the replication id that its node had when it was validated. A flushed
//! or new node has no generation; a promoted replica, a restarted node and a node that was promoted back all have another
//! replication id. Every script looks at both before anything else, so nobody has to notice a failover in time. What
//! follows is a rebuild from the log, tenant by tenant, or, where it is known that nothing was lost, a validation.
//!
//! A rebuild closes the book before anybody looks at the log, so that all that was admitted by the old one lies before
//! what is folded; between its two halves whoever rebuilds makes sure that it is also on the log.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use weir_domain::calendar::Window;
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, Counter, Entry, Scope};
use weir_domain::rate::RateWindow;

use crate::contract::QuotaError;

use super::RedisQuota;
use super::keys::{Keys, directory, scope_code, turn, unit_code, wanted, window_code};
use super::link::{Answer, Call, Found, Script, malformed};
use super::record;

/// Whether a tenant's book may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantState {
    /// In force.
    Open { generation: String },
    /// There is none: never built, or lost with everything else.
    Missing,
    /// Somebody is building it.
    Rebuilding,
    /// It was validated under another replication id: the node failed over or restarted since.
    Fenced { generation: String, validated: String, node: String },
}

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    pub generation: String,
    /// The store's clock from which open leases were counted anew, ms.
    pub leases_from_ms: i64,
    pub reservations: usize,
    pub counters: usize,
    pub took: Duration,
}

/// Which books a rebuild leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unless {
    /// Those that may be used.
    InForce,
    Never,
}

/// A rebuild under way: the tenant's book is closed and gone.
#[derive(Debug)]
pub struct Begun {
    token: String,
    answer: Answer,
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    pub address: String,
    pub version: String,
    /// What is missing for Weir's promises, each with the fix; empty when all is well.
    pub lacks: Vec<String>,
}

/// Commands of a rebuild that one script runs: some milliseconds, in which the node answers nobody else.
const COMMANDS_AT_ONCE: usize = 1000;

impl RedisQuota {
    /// Looks at every master: version, eviction, replicas. An empty list of lacks is a node that keeps the promises.
    pub async fn check(&self) -> Result<Vec<NodeReport>, QuotaError> {
        let versions = self.link.ask_nodes(redis::cmd("INFO").arg("server")).await?;
        let settings = ["maxmemory-policy", "min-replicas-to-write"];
        let configured = self.link.ask_nodes(redis::cmd("CONFIG").arg("GET").arg(&settings)).await?;
        let reports = versions.into_iter().map(|(address, info)| {
            let info = info.text();
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default().trim();
            let config = configured.iter().find(|(node, _)| *node == address).map(|(_, found)| found.list());
            let lacks = lacks(version, config.unwrap_or_default(), self.replicas);
            NodeReport { address, version: version.to_owned(), lacks }
        });
        Ok(reports.collect())
    }

    pub async fn tenant_state(&self, tenant: &TenantId) -> Result<TenantState, QuotaError> {
        let answer = self.status(tenant).await?;
        let (generation, validated, node) = (answer.rest(0).text(), answer.rest(1).text(), answer.rest(2).text());
        Ok(if *answer.rest(3) == Found::Number(1) {
            TenantState::Rebuilding
        } else if generation.is_empty() {
            TenantState::Missing
        } else if validated == node {
            TenantState::Open { generation }
        } else {
            TenantState::Fenced { generation, validated, node }
        })
    }

    async fn status(&self, tenant: &TenantId) -> Result<Answer, QuotaError> {
        self.link.run(Script::Status, &Call::with_key(self.keys(tenant).book())).await
    }

    /// Tenants that were asked for since their book was lost, fenced or never built. Each leaves the list when its book
    /// is rebuilt or validated.
    pub async fn wanted(&self) -> Result<Vec<TenantId>, QuotaError> {
        let found = self.link.ask(redis::cmd("SMEMBERS").arg(wanted(&self.prefix))).await?;
        Ok(found.list().iter().map(|tenant| TenantId::from(tenant.text())).collect())
    }

    /// Takes the tenant's book as it stands for whole. Only for whoever knows that its node lost nothing, such as after
    /// an orderly restart with `appendfsync always`. `false` when there is no book.
    pub async fn validate(&self, tenant: &TenantId) -> Result<bool, QuotaError> {
        let node = self.status(tenant).await?.rest(2).text();
        let mut call = Call::with_key(self.keys(tenant).book());
        call.text(&node);
        match self.link.run(Script::Validate, &call).await {
            Ok(answer) if answer.word == "validated" => {
                self.in_use(tenant).await?;
                Ok(true)
            }
            Ok(_) => Err(QuotaError::NotValidated { reason: "the node failed over meanwhile".to_owned() }),
            Err(QuotaError::NotValidated { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether it is this process's turn to rebuild, for `life` from now on. Asked again in time, it stays so.
    pub async fn is_my_turn(&self, life: Duration) -> Result<bool, QuotaError> {
        let mut call = Call::with_key(turn(&self.prefix).into_bytes());
        call.text(&self.process).number(life.as_millis());
        Ok(*self.link.run(Script::Turn, &call).await?.rest(0) == Found::Number(1))
    }

    /// Says that a tenant's book has to be built, as if somebody had asked for it in vain.
    pub async fn want_book(&self, tenant: &TenantId) -> Result<(), QuotaError> {
        self.link.ask(redis::cmd("SADD").arg(wanted(&self.prefix)).arg(tenant.as_str())).await.map(|_| ())
    }

    /// Takes the tenant's book out of use and away. From now on every command is refused, until [`finish_rebuild`] puts
    /// another in its place; a later begin takes over. With [`Unless::InForce`] a book that may be used is left alone, and
    /// `None` is returned.
    ///
    /// [`finish_rebuild`]: Self::finish_rebuild
    pub async fn begin_rebuild(&self, tenant: &TenantId, unless: Unless) -> Result<Option<Begun>, QuotaError> {
        let keys = self.keys(tenant);
        let token = self.operation();
        let mut call = Call::with_key(keys.book());
        call.key(keys.due()).key(keys.pending()).text(&token).text(match unless {
            Unless::InForce => "lost",
            Unless::Never => "any",
        });
        let answer = self.link.run(Script::RebuildBegin, &call).await?;
        if answer.word == "open" {
            self.in_use(tenant).await?;
            return Ok(None);
        }
        Ok(Some(Begun { token, answer }))
    }

    /// Puts the sum of `books` in the place of what was taken away, and opens it: each is of other reservations, as one
    /// partition of the log has them. Open leases get `lease_ms` from now, because nobody could renew; revocations that
    /// only the store knew stay.
    pub async fn finish_rebuild(
        &self,
        tenant: &TenantId,
        begun: &Begun,
        mut books: Vec<Book>,
        lease_ms: i64,
    ) -> Result<Rebuilt, QuotaError> {
        let started = Instant::now();
        let keys = self.keys(tenant);
        let Begun { token, answer } = begun;
        let now_ms = self.status(tenant).await?.now_ms;
        books.iter_mut().for_each(|book| book.grace(now_ms, lease_ms));

        let mut filling = Filling { store: self, tenant, keys: &keys, token, chunk: Chunk::default() };
        let generation = answer.rest(0).text();
        filling.clear(answer).await?;
        let mut reservations = 0;
        let mut sums = Sums::default();
        for book in &books {
            reservations += filling.records(book, &generation, now_ms).await?;
            sums.add(book);
        }
        let counters = filling.counters(&sums).await?;
        filling.small_things(&books, answer).await?;
        filling.flush().await?;

        self.in_use(tenant).await?;
        let mut call = Call::with_key(keys.book());
        call.text(token).text(&generation);
        self.link.run(Script::RebuildOpen, &call).await?;
        Ok(Rebuilt { generation, leases_from_ms: now_ms, reservations, counters, took: started.elapsed() })
    }

    /// Both at once, for whoever has the whole book already: nobody else uses the store.
    pub async fn rebuild(&self, tenant: &TenantId, book: &Book, lease_ms: i64) -> Result<Rebuilt, QuotaError> {
        let begun = self.begin_rebuild(tenant, Unless::Never).await?;
        let begun = begun.ok_or_else(|| malformed("a rebuild that began"))?;
        self.finish_rebuild(tenant, &begun, vec![book.clone()], lease_ms).await
    }

    async fn in_use(&self, tenant: &TenantId) -> Result<(), QuotaError> {
        self.link.ask(redis::cmd("SADD").arg(directory(&self.prefix, tenant)).arg(tenant.as_str())).await?;
        self.link.ask(redis::cmd("SREM").arg(wanted(&self.prefix)).arg(tenant.as_str())).await.map(|_| ())
    }
}

fn lacks(version: &str, config: &[Found], replicas: u32) -> Vec<String> {
    let setting = |name: &str| config.chunks_exact(2).find(|pair| pair[0].text() == name).map(|pair| pair[1].text());
    let mut lacks = Vec::new();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < 7) {
        lacks.push(format!("version {version}: 7.0 or newer is needed"));
    }
    match setting("maxmemory-policy").as_deref() {
        Some("noeviction") => {}
        Some(policy) => lacks.push(format!("maxmemory-policy is {policy}, which drops counters: set noeviction")),
        None => lacks.push("maxmemory-policy cannot be read: allow CONFIG GET, and set noeviction".to_owned()),
    }
    let acknowledging = setting("min-replicas-to-write").and_then(|value| value.parse::<u32>().ok());
    if replicas > 0 && acknowledging.is_none_or(|value| value == 0) {
        lacks.push("min-replicas-to-write is 0: set 1, or an isolated master goes on alone".to_owned());
    }
    lacks
}

/// Keys, arguments and the number of commands of one `rebuild_put`.
#[derive(Debug, Default)]
struct Chunk {
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
    commands: usize,
}

/// A rebuild under way.
struct Filling<'a> {
    store: &'a RedisQuota,
    tenant: &'a TenantId,
    keys: &'a Keys,
    token: &'a str,
    chunk: Chunk,
}

impl Filling<'_> {
    async fn put(&mut self, command: &str, key: Vec<u8>, arguments: Vec<Vec<u8>>) -> Result<(), QuotaError> {
        let chunk = &mut self.chunk;
        if chunk.keys.last() != Some(&key) {
            chunk.keys.push(key);
        }
        // The book is the script's first key.
        let number = chunk.keys.len() + 1;
        let head = [command.to_owned(), number.to_string(), arguments.len().to_string()];
        chunk.arguments.extend(head.into_iter().map(String::into_bytes));
        chunk.arguments.extend(arguments);
        chunk.commands += 1;
        if chunk.commands >= COMMANDS_AT_ONCE { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), QuotaError> {
        let Chunk { keys, arguments, commands } = std::mem::take(&mut self.chunk);
        if commands == 0 {
            return Ok(());
        }
        let mut call = Call::with_key(self.keys.book());
        for key in keys {
            call.key(key);
        }
        call.text(self.token);
        for argument in arguments {
            call.bytes(argument);
        }
        self.store.link.run(Script::RebuildPut, &call).await.map(|_| ())
    }

    /// Takes away what the old book's sets and scopes name.
    async fn clear(&mut self, begun: &Answer) -> Result<(), QuotaError> {
        for scope in begun.rest(1).list() {
            let scope = scope.text();
            self.put("DEL", self.keys.rate(&scope), Vec::new()).await?;
            self.put("DEL", self.keys.slots(&scope), Vec::new()).await?;
        }
        for member in begun.rest(2).list() {
            let id: [u8; 16] = member.bytes().try_into().map_err(|_| malformed("a reservation's id"))?;
            let id = weir_domain::ids::ReservationId::from_bytes(id);
            self.store.recent.forget(id);
            self.put("DEL", self.keys.record(id), Vec::new()).await?;
        }
        Ok(())
    }

    async fn records(&mut self, book: &Book, generation: &str, now_ms: i64) -> Result<usize, QuotaError> {
        let mut written = 0;
        let mut longest_leases = BTreeMap::new();
        for (id, entry) in book.entries() {
            let version = self.store.operation();
            let mut entry = Entry { leaving: entry.may_go(), ..entry.into_owned() };
            entry.lapsed = false;
            let reservation = &entry.reservation;
            let (admitted, due) = (reservation.created.admitted_at_ms, reservation.due_ms);
            let head = format!("{generation} {version} {admitted} {due} ");
            let mut arguments = vec![[head.as_bytes(), &record::body(self.tenant, id, &entry)?].concat()];
            if entry.leaving {
                // Its horizon began with its end, which the book does not tell: it begins again.
                let horizon_ms = now_ms.saturating_add(self.store.horizon_ms);
                let key_until_ms = reservation.created.idempotency.as_ref().map_or(0, |record| record.expires_at_ms);
                arguments.extend([b"PXAT".to_vec(), text(horizon_ms.max(key_until_ms))]);
            }
            self.put("SET", self.keys.record(id), arguments).await?;
            let member = id.as_bytes().to_vec();
            if !reservation.closed {
                self.put("ZADD", self.keys.due(), vec![text(due), member.clone()]).await?;
            } else if !reservation.status().is_final() {
                self.put("ZADD", self.keys.pending(), vec![text(admitted), member.clone()]).await?;
            }
            if reservation.slot {
                for scope in reservation.created.counting.scopes.iter() {
                    let key = self.keys.slots(&scope_code(scope));
                    self.put("ZADD", key.clone(), vec![text(due), member.clone()]).await?;
                    let longest = longest_leases.entry(key).or_insert(due);
                    *longest = due.max(*longest);
                }
            }
            written += 1;
        }
        for (slots, due) in longest_leases {
            self.put("PEXPIREAT", slots, vec![text(due)]).await?;
        }
        Ok(written)
    }

    async fn counters(&mut self, sums: &Sums) -> Result<usize, QuotaError> {
        let mut written = 0;
        for (scope, sum) in &sums.0 {
            let code = scope_code(scope);
            let mut windows = String::from(" ");
            for (window, counter) in &sum.windows {
                windows.push_str(&window_code(*window));
                windows.push(' ');
                let cells = [("rtu", counter.total(), ""), ("RTU", counter.charged, ""), ("rtu", counter.pending, "p")];
                let mut fields = Vec::new();
                for (units, amounts, prefix) in cells {
                    let values = [amounts.requests, amounts.tokens, amounts.usd.nanos()];
                    for (unit, value) in units.chars().zip(values).filter(|(_, value)| *value != 0) {
                        fields.push(format!("{prefix}{unit} {} {code}", window_code(*window)).into_bytes());
                        fields.push(text(value));
                    }
                }
                if !fields.is_empty() {
                    self.put("HSET", self.keys.book(), fields).await?;
                    written += 1;
                }
            }
            self.put("HSET", self.keys.book(), vec![format!("windows {code}").into_bytes(), windows.into_bytes()])
                .await?;
            self.rate(&code, sum).await?;
        }
        Ok(written)
    }

    async fn rate(&mut self, scope: &str, sum: &Sum) -> Result<(), QuotaError> {
        let rate =
            RateWindow::of_buckets(sum.latest_s, sum.rate.iter().map(|(second, sums)| (*second, *sums)).collect());
        let (latest_s, buckets) = rate.buckets();
        if buckets.is_empty() {
            return Ok(());
        }
        let (requests, tokens) = rate.total(latest_s);
        let mut fields = vec![
            (b"latest".to_vec(), latest_s),
            (unit_code(weir_domain::quota::Unit::Requests).into(), requests),
            (unit_code(weir_domain::quota::Unit::Tokens).into(), tokens),
        ];
        for (second, [requests, tokens]) in buckets {
            fields.push((format!("r{second}").into_bytes(), requests));
            fields.push((format!("t{second}").into_bytes(), tokens));
        }
        let key = self.keys.rate(scope);
        let fields = fields.into_iter().flat_map(|(field, value)| [field, text(value)]).collect();
        self.put("HSET", key.clone(), fields).await?;
        self.put("PEXPIREAT", key, vec![text(latest_s.saturating_add(61).saturating_mul(1000))]).await
    }

    async fn small_things(&mut self, books: &[Book], begun: &Answer) -> Result<(), QuotaError> {
        let mut applied = BTreeMap::new();
        for source in books.iter().flat_map(Book::applied) {
            let newest = applied.entry(source.partition).or_insert(source.offset);
            *newest = source.offset.max(*newest);
        }
        for (partition, offset) in applied {
            let field = format!("applied {partition}").into_bytes();
            self.put("HSET", self.keys.book(), vec![field, text(offset)]).await?;
        }
        let from_store = begun.rest(3).list().iter().map(Found::text);
        let of_books = books.iter().flat_map(Book::revoked).map(|key| key.as_str().to_owned());
        let revoked: Vec<String> = of_books.chain(from_store).collect();
        for key in revoked {
            let field = format!("revoked {key}").into_bytes();
            self.put("HSET", self.keys.book(), vec![field, b"1".to_vec()]).await?;
        }
        // The same key may have been taken on two partitions, one after the other: the later one has it.
        let mut keys: Vec<_> = books.iter().flat_map(Book::idempotency_keys).collect();
        keys.sort_unstable_by_key(|(hash, holder, until_ms)| (*hash, *until_ms, *holder));
        for (hash, holder, until_ms) in keys {
            let value = [holder.as_bytes().as_slice(), &text(until_ms)].concat();
            let arguments = vec![value, b"PXAT".to_vec(), text(until_ms.max(1))];
            self.put("SET", self.keys.idempotency(hash), arguments).await?;
        }
        Ok(())
    }
}

/// What several books of one tenant have counted together.
#[derive(Debug, Default)]
struct Sums(BTreeMap<Scope, Sum>);

#[derive(Debug, Default)]
struct Sum {
    windows: BTreeMap<Window, Counter>,
    latest_s: i64,
    /// Requests and tokens, by second.
    rate: BTreeMap<i64, [i64; 2]>,
}

impl Sums {
    fn add(&mut self, book: &Book) {
        for (scope, counters) in book.scopes() {
            let sum = self.0.entry(scope.clone()).or_default();
            for (window, counter) in counters.windows() {
                let all = sum.windows.entry(window).or_default();
                all.charged += counter.charged;
                all.held += counter.held;
                all.pending += counter.pending;
            }
            let (latest_s, buckets) = counters.rate().buckets();
            sum.latest_s = latest_s.max(sum.latest_s);
            for (second, [requests, tokens]) in buckets {
                let all = sum.rate.entry(second).or_default();
                *all = [all[0].saturating_add(requests), all[1].saturating_add(tokens)];
            }
        }
    }
}

fn text(number: i64) -> Vec<u8> {
    number.to_string().into_bytes()
}
