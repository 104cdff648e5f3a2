//! A rebuilder and gateways on one log: nobody is passed over, and nobody is waited for in vain.

use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use weir_domain::ids::Region;
use weir_runtime::clock::SystemClock;
use weir_schemas::operations::Heartbeat;
use weir_streams::segment::{SegmentLog, SegmentOptions};

use super::*;

/// What one process stands on, and what runs in it.
struct House {
    log: Arc<dyn EventLog>,
    presence: Arc<Presence>,
    running: JoinSet<()>,
    _folder: TempDir,
}

/// A gateway whose appends are on the log when the test says so.
#[derive(Debug)]
struct Slow {
    doubts: AtomicU64,
    on_log: Semaphore,
}

#[async_trait]
impl Holder for Slow {
    fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }

    async fn on_log(&self) {
        self.on_log.acquire().await.unwrap().forget();
    }
}

impl House {
    fn open() -> Self {
        let folder = TempDir::new().unwrap();
        let log: Arc<dyn EventLog> = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path())).unwrap());
        let presence = Arc::new(Presence::default());
        let mut running = JoinSet::new();
        let (following, of) = (Arc::clone(&presence), Arc::clone(&log));
        running.spawn(async move { following.follow(of, 0, std::future::pending()).await.unwrap() });
        Self { log, presence, running, _folder: folder }
    }

    fn speaker(&self, process: &str) -> Speaker {
        let journal = Journal::new(Arc::clone(&self.log), SystemClock::shared(), Region::new("eu"));
        Speaker { journal, process: process.to_owned(), epoch: 1 }
    }

    async fn beat(&self, name: &str) {
        let journal = self.speaker(name).journal;
        let heartbeat = Heartbeat {
            gateway: name.to_owned(),
            region: Region::new("eu"),
            epoch: 1,
            started_at_ms: 0,
            sent_at_ms: journal.now_ms(),
            spool_head: 0,
            spool_forwarded: 0,
            role: "gateway".to_owned(),
            release: String::new(),
            snapshot_version: 1,
            leaves: false,
        };
        journal.write(Topic::Operations, Bytes::from(name.to_owned()), &heartbeat).await.unwrap();
    }

    /// A gateway that listens, has said that it lives, and has its holds on the log after `permits` permits.
    async fn gateway(&mut self, name: &str, permits: usize) -> Arc<Slow> {
        let slow = Arc::new(Slow { doubts: AtomicU64::new(0), on_log: Semaphore::new(permits) });
        let questions = Arc::new(Questions::default());
        let (listening, log) = (Arc::clone(&questions), Arc::clone(&self.log));
        self.running.spawn(async move { listening.listen(log, 0, std::future::pending()).await.unwrap() });
        let (holder, speaker) = (Arc::clone(&slow), self.speaker(name));
        self.running.spawn(async move { questions.answer(&*holder, &speaker, std::future::pending()).await });
        self.beat(name).await;
        slow
    }
}

#[tokio::test]
async fn i15_a_rebuild_waits_until_everybodys_holds_are_on_the_log() {
    let mut house = House::open();
    let (quick, slow) = (house.gateway("quick", 1).await, house.gateway("slow", 0).await);
    let (speaker, presence) = (house.speaker("rebuilder"), Arc::clone(&house.presence));
    let patience = Duration::from_secs(60);
    let mut asked = Box::pin(everybody_holds(&speaker, &presence, Uuid::from_u128(1), 1, patience));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut asked).await;
    assert!(early.is_err(), "a gateway is still writing: {early:?}");
    assert_eq!((quick.doubts.load(Ordering::SeqCst), slow.doubts.load(Ordering::SeqCst)), (1, 1));
    slow.on_log.add_permits(1);
    let absent = tokio::time::timeout(Duration::from_secs(10), asked).await.unwrap().unwrap();
    assert_eq!(absent, Vec::<String>::new());
}

#[tokio::test]
async fn i15_an_absentee_is_named_once_what_it_heard_of_the_store_is_too_old_to_act_on() {
    let mut house = House::open();
    house.gateway("here", usize::MAX >> 4).await;
    house.beat("paused").await;
    let began = Instant::now();
    let (speaker, rebuild) = (house.speaker("rebuilder"), Uuid::from_u128(2));
    let patience = Duration::from_millis(200);
    let absent = everybody_holds(&speaker, &house.presence, rebuild, 1, patience).await.unwrap();
    assert_eq!(absent, ["eu/paused-1"]);
    assert!(began.elapsed() > GOOD_FOR, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_was_revoked_in_an_emergency_is_on_the_log() {
    let house = House::open();
    let journal = house.speaker("control").journal;
    for key in ["a", "b"] {
        let revoked = KeyRevoked {
            key: KeyId::new(key),
            tenant: TenantId::new("acme"),
            who: "ada".to_owned(),
            why: "leaked".to_owned(),
            revoked_at_ms: 1,
        };
        journal.write(Topic::Revocations, Bytes::from(key), &revoked).await.unwrap();
    }
    let found = revoked_keys(&*house.log).await.unwrap();
    assert_eq!(found, HashMap::from([(TenantId::new("acme"), vec![KeyId::new("a"), KeyId::new("b")])]));
}
