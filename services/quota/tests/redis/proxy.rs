//! A wire that can be cut between a command and its reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    cut: Arc<AtomicBool>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    pub async fn to(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, cut) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let mut accepting = JoinSet::new();
        let is_cut = Arc::clone(&cut);
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
                connections.spawn(carry(client, server, Arc::clone(&is_cut)));
            }
        });
        Self { port, cut, _accepting: accepting }
    }

    /// The next reply is lost, and its connection with it.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub fn was_cut(&self) -> bool {
        !self.cut.load(Ordering::SeqCst)
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cut: Arc<AtomicBool>) {
    let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => match read {
                Ok(read) if read > 0 => if server.write_all(&from_client[..read]).await.is_err() { return },
                Ok(_) | Err(_) => return,
            },
            read = server.read(&mut from_server) => match read {
                Ok(read) if read > 0 && !cut.swap(false, Ordering::SeqCst) => {
                    if client.write_all(&from_server[..read]).await.is_err() { return }
                }
                Ok(_) | Err(_) => return,
            },
        }
    }
}
