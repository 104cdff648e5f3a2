//! A proxy between driver and server that loses answers: the server has done what was asked, and nobody hears of it.
//!
//! It reads frames of the native protocol (version 4, nine bytes of heading), so that it can lose the answer of a batch
//! and nothing else. A lost answer takes its connection with it, as a dying link does.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const HEADING: usize = 9;
const BATCH: u8 = 0x0d;

pub struct Proxy {
    pub address: SocketAddr,
    losses: Arc<Losses>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Losses {
    /// Batches whose answers are still to be lost.
    wanted: AtomicU32,
    lost: AtomicU32,
}

impl Proxy {
    pub async fn to(server: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, losses) = (listener.local_addr()?, Arc::new(Losses::default()));
        let mut serving = JoinSet::new();
        let of_serving = Arc::clone(&losses);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, losses) = (server.clone(), Arc::clone(&of_serving));
                connections.spawn(async move {
                    // A connection that ends is an ordinary event here.
                    drop(relay(client, &server, &losses).await);
                });
            }
        });
        Ok(Self { address, losses, _serving: serving })
    }

    /// The answers of the next `count` batches are lost.
    pub fn lose_answers(&self, count: u32) {
        self.losses.wanted.store(count, Ordering::SeqCst);
    }

    pub fn lost(&self) -> u32 {
        self.losses.lost.load(Ordering::SeqCst)
    }
}

async fn relay(client: TcpStream, server: &str, losses: &Losses) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let doomed: Mutex<HashSet<[u8; 2]>> = Mutex::default();
    let asked = async {
        loop {
            let frame = read_frame(&mut from_client).await?;
            let takes_one = |wanted: u32| wanted.checked_sub(1);
            if frame[4] == BATCH && losses.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, takes_one).is_ok() {
                doomed.lock().await.insert([frame[2], frame[3]]);
            }
            write_frame(&mut to_server, &frame).await?;
        }
    };
    let answered = async {
        loop {
            let frame = read_frame(&mut from_server).await?;
            if doomed.lock().await.contains(&[frame[2], frame[3]]) {
                losses.lost.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            write_frame(&mut to_client, &frame).await?;
        }
    };
    tokio::select! {
        ended = asked => ended,
        ended = answered => ended,
    }
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADING];
    from.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
    frame.resize(HEADING + length, 0);
    from.read_exact(&mut frame[HEADING..]).await?;
    Ok(frame)
}

async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> std::io::Result<()> {
    to.write_all(frame).await?;
    to.flush().await
}
