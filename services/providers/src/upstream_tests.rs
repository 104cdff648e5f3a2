//! Calls against bare sockets that answer in ways an HTTP server does not offer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_runtime::tasks::Tasks;

use super::*;
use crate::body::BodyError;

/// What a peer does with each request that it has read whole.
#[derive(Debug, Clone)]
struct Peer {
    answers: Vec<u8>,
    closes: bool,
    /// Answers as soon as one byte of a request is there, and reads no more.
    is_hasty: bool,
}

impl Peer {
    fn answering(answers: &[u8]) -> Self {
        Self { answers: answers.to_vec(), closes: false, is_hasty: false }
    }
}

struct House {
    upstream: Upstream,
    url: String,
    connections: Arc<AtomicUsize>,
    _tasks: Tasks,
}

impl House {
    async fn with(peer: Peer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (tasks, connections) = (Tasks::new(), Arc::<AtomicUsize>::default());
        let (owner, count) = (tasks.clone(), Arc::clone(&connections));
        drop(tasks.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                drop(owner.spawn("peer", serve(stream, peer.clone())));
            }
        }));
        let tls = weir_runtime::tls::client_config(None).unwrap();
        let upstream = Upstream::new(&tls, UpstreamOptions::default());
        Self { upstream, url: format!("http://{address}"), connections, _tasks: tasks }
    }

    async fn call(&self, body: &'static [u8]) -> Result<Answer, CallError> {
        let endpoint = self.upstream.endpoint(&self.url, "/chat").unwrap();
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static("x/y"))]);
        self.upstream.call(Call { endpoint, headers, is_stream: false, body: pieces(body) }).await
    }

    /// The whole body, or how it broke.
    async fn read(&self) -> Result<Vec<u8>, BodyError> {
        let mut answer = self.call(b"12345").await.unwrap();
        let mut whole = Vec::new();
        while let Some(piece) = answer.body.next().await {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Two pieces, as of a body that was edited.
fn pieces(body: &'static [u8]) -> Vec<Bytes> {
    let (start, end) = body.split_at(body.len() / 2);
    vec![Bytes::from_static(start), Bytes::from_static(end)]
}

async fn serve(mut stream: TcpStream, peer: Peer) {
    let mut seen = Vec::new();
    loop {
        let mut room = [0; 4096];
        let Ok(count @ 1..) = stream.read(&mut room).await else { return };
        seen.extend_from_slice(&room[..count]);
        if peer.is_hasty || seen.ends_with(b"\r\n\r\n12345") {
            seen.clear();
            if stream.write_all(&peer.answers).await.is_err() || peer.closes {
                return;
            }
        }
    }
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";

#[tokio::test]
async fn a_connection_whose_answer_was_read_serves_the_next_call() {
    for answers in [CHUNKED, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"] {
        let house = House::with(Peer::answering(answers)).await;
        for _ in 0..3 {
            assert_eq!(house.read().await.unwrap(), b"abcde");
        }
        assert_eq!(house.connections(), 1);
    }
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_bytes_too_many_or_a_wish_to_close() {
    let too_many = [CHUNKED, b"x".as_slice()].concat();
    let closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nabcde".to_vec();
    for answers in [too_many, closing] {
        let house = House::with(Peer::answering(&answers)).await;
        for expected in 1..3 {
            assert_eq!(house.read().await.unwrap(), b"abcde");
            assert_eq!(house.connections(), expected);
        }
    }
}

#[tokio::test]
async fn a_body_without_length_ends_with_its_connection() {
    let house = House::with(Peer { closes: true, ..Peer::answering(b"HTTP/1.1 200 OK\r\n\r\nabcde") }).await;
    assert_eq!(house.read().await.unwrap(), b"abcde");
}

#[tokio::test]
async fn o07_a_body_that_is_cut_is_an_error_whatever_its_framing() {
    let cut = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcde".as_slice(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n",
    ];
    for answers in cut {
        let house = House::with(Peer { closes: true, ..Peer::answering(answers) }).await;
        assert!(matches!(house.read().await, Err(BodyError::Cut)), "{}", answers.escape_ascii());
    }
}

#[tokio::test]
async fn a_stream_that_was_read_to_its_last_event_leaves_its_connection_to_the_next() {
    let house = House::with(Peer::answering(CHUNKED)).await;
    for _ in 0..2 {
        let mut answer = house.call(b"12345").await.unwrap();
        assert_eq!(answer.body.next().await.unwrap().unwrap(), "abcde");
        drop(answer);
    }
    assert_eq!(house.connections(), 1);

    // Without the end of its framing it closes, so that the provider learns of it.
    let open = CHUNKED.strip_suffix(b"0\r\n\r\n").unwrap();
    let house = House::with(Peer::answering(open)).await;
    for _ in 0..2 {
        let mut answer = house.call(b"12345").await.unwrap();
        assert_eq!(answer.body.next().await.unwrap().unwrap(), "abcde");
    }
    assert_eq!(house.connections(), 2);
}

#[tokio::test]
async fn an_answer_that_comes_before_the_request_was_taken_is_read() {
    static LARGE: [u8; 8 * 1024 * 1024] = [b'x'; 8 * 1024 * 1024];
    let refusal = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let house = House::with(Peer { is_hasty: true, ..Peer::answering(refusal) }).await;
    let mut answer = house.call(&LARGE).await.unwrap();
    assert_eq!(answer.status.as_u16(), 413);
    assert_eq!(answer.body.next().await.unwrap().unwrap(), "no");
}

#[tokio::test]
async fn i09_only_a_call_that_left_nothing_behind_says_so() {
    let house = House::with(Peer { closes: true, ..Peer::answering(b"") }).await;
    assert!(matches!(house.call(b"12345").await, Err(CallError::MayHaveBeenSent(_))));
    let house = House::with(Peer::answering(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")).await;
    assert!(matches!(house.call(b"12345").await, Err(CallError::MayHaveBeenSent(_))));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let house = House { url: format!("http://{closed}"), ..house };
    assert!(matches!(house.call(b"12345").await, Err(CallError::NotSent(_))));
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_in_time_and_bounded() {
    let house = House::with(Peer::answering(CHUNKED)).await;
    let endpoint = house.upstream.endpoint(&house.url, "/chat").unwrap();
    let origin = &endpoint.origin;
    house.read().await.unwrap();
    assert_eq!(origin.idle(), 1);
    house.upstream.sweep();
    assert_eq!(origin.idle(), 1, "not old yet");
    tokio::time::advance(house.upstream.idle_timeout()).await;
    house.upstream.sweep();
    assert_eq!(origin.idle(), 0);

    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(house.call(b"12345").await.unwrap());
    }
    for mut answer in open {
        answer.body.next().await.unwrap().unwrap();
        let connection = origin.take(house.upstream.idle_timeout()).unwrap();
        origin.keep(connection, 2, house.upstream.idle_timeout());
    }
    assert!(origin.idle() <= 2, "{}", origin.idle());
}
