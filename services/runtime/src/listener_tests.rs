//! A raw client against a real socket: what is cut, what is refused, and what a drain finishes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use super::{Connection, ListenError, ListenerOptions, bind, serve};
use crate::tasks::Tasks;
use crate::units::{ByteSize, HumanDuration};

/// Longer than anything here takes on a busy machine; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    tasks: Tasks,
    /// Requests that reached the service.
    arrived: Arc<Semaphore>,
    /// Lets one held request go on.
    release: Arc<Notify>,
}

/// Answers `/` with the peer's address, `/held` once it is released, `/reset` with a reset, `/error` with a failure.
fn start(options: ListenerOptions) -> Server {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (tasks, arrived, release) = (Tasks::new(), Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (arrivals, releases) = (arrived.clone(), release.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (arrivals, releases) = (arrivals.clone(), releases.clone());
        async move {
            arrivals.add_permits(1);
            let connection = request.extensions().get::<Connection>().unwrap().clone();
            match request.uri().path() {
                "/held" => releases.notified().await,
                "/reset" => {
                    connection.reset();
                    std::future::pending::<()>().await;
                }
                "/error" => return Err(io::Error::other("no answer")),
                _ => {}
            }
            Ok(Response::new(Full::new(Bytes::from(connection.peer().to_string()))))
        }
    });
    drop(serve(listener, None, options, service, &tasks));
    Server { address, tasks, arrived, release }
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

async fn ask(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
}

/// Everything until the peer closes.
async fn read_all(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the peer closes in time")?;
    Ok(String::from_utf8(bytes).unwrap())
}

/// One answer with a `content-length`, leaving the connection open.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let whole = |text: &str| {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length: usize = head.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
        (body.len() == length).then_some(())
    };
    while whole(&text).is_none() {
        let mut buffer = [0; 4096];
        let count = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("an answer").unwrap();
        assert_ne!(count, 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}

#[tokio::test]
async fn requests_are_served_one_after_the_other_with_the_peers_address() {
    let server = start(ListenerOptions::default());
    let mut stream = connect(&server).await;
    for _ in 0..2 {
        ask(&mut stream, "/").await;
        let answer = read_answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with(&stream.local_addr().unwrap().to_string()));
    }
    assert!(server.tasks.stop(PATIENCE).await.is_empty(), "an idle connection does not hold up the stop");
    assert_eq!(read_all(&mut stream).await.unwrap(), "");
}

#[tokio::test]
async fn a_slow_head_is_cut_but_a_slow_second_request_is_not() {
    let options = ListenerOptions { header_deadline: HumanDuration::from_ms(500), ..ListenerOptions::default() };
    let server = start(options);
    let mut slow = connect(&server).await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost").await.unwrap();
    let mut silent = connect(&server).await;
    let mut patient = connect(&server).await;
    ask(&mut patient, "/").await;
    read_answer(&mut patient).await;

    assert_eq!(read_all(&mut slow).await.unwrap(), "");
    assert_eq!(read_all(&mut silent).await.unwrap(), "", "who says nothing at first is cut as well");
    ask(&mut patient, "/").await;
    read_answer(&mut patient).await;
    patient.write_all(b"G").await.unwrap();
    assert_eq!(read_all(&mut patient).await.unwrap(), "", "a second head has the same deadline");
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let options = ListenerOptions {
        header_deadline: HumanDuration::from_ms(500),
        idle_timeout: HumanDuration::from_ms(700),
        ..ListenerOptions::default()
    };
    let server = start(options);
    let mut busy = connect(&server).await;
    ask(&mut busy, "/held").await;
    server.arrived.acquire().await.unwrap().forget();
    let mut idle = connect(&server).await;
    ask(&mut idle, "/").await;
    read_answer(&mut idle).await;
    assert_eq!(read_all(&mut idle).await.unwrap(), "");
    server.release.notify_one();
    assert!(read_answer(&mut busy).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_head_of_100_kib_and_too_many_headers_are_refused_with_431() {
    let server = start(ListenerOptions::default());
    let large = format!("x-large: {}\r\n", "a".repeat(100 * 1024));
    let many = "x-many: 1\r\n".repeat(200);
    for headers in [large, many] {
        let mut stream = connect(&server).await;
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        // The server may answer and close before all is written.
        let _written = stream.write_all(request.as_bytes()).await.is_ok();
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 431");
    }
    assert_eq!(server.arrived.available_permits(), 0);
    let mut stream = connect(&server).await;
    let fits = "a".repeat(50 * 1024);
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: x\r\nx-large: {fits}\r\n\r\n").as_bytes()).await.unwrap();
    assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 200"));
}

/// The service answers without reading; the client sends all of it before it reads.
#[tokio::test]
async fn an_answer_to_an_unread_body_can_still_be_read() {
    let server = start(ListenerOptions::default());
    let mut stream = connect(&server).await;
    let body = vec![b'x'; 8 << 20];
    stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 8388608\r\n\r\n").await.unwrap();
    stream.write_all(&body).await.unwrap();
    assert!(read_all(&mut stream).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_drain_finishes_the_request_in_flight_and_accepts_no_other() {
    let server = start(ListenerOptions::default());
    let mut stream = connect(&server).await;
    ask(&mut stream, "/held").await;
    server.arrived.acquire().await.unwrap().forget();

    server.tasks.begin_stop();
    wait_until_refused(server.address).await;
    server.release.notify_one();

    let answer = read_all(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    assert!(server.tasks.stop(PATIENCE).await.is_empty());
}

#[tokio::test]
async fn a_drain_ends_although_a_request_does_not() {
    let options = ListenerOptions { drain: HumanDuration::from_ms(50), ..ListenerOptions::default() };
    let server = start(options);
    let mut stream = connect(&server).await;
    ask(&mut stream, "/held").await;
    server.arrived.acquire().await.unwrap().forget();
    assert!(server.tasks.stop(PATIENCE).await.is_empty());
    assert_eq!(read_all(&mut stream).await.unwrap(), "");
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_a_place_comes_back() {
    let server = start(ListenerOptions { max_connections: 1, ..ListenerOptions::default() });
    let mut first = connect(&server).await;
    ask(&mut first, "/").await;
    read_answer(&mut first).await;

    let mut second = connect(&server).await;
    ask(&mut second, "/").await;
    let refusal = read_all(&mut second).await.unwrap();
    assert!(refusal.starts_with("HTTP/1.1 503") && refusal.contains("retry-after: 1"), "{refusal}");

    drop(first);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut third = connect(&server).await;
        ask(&mut third, "/").await;
        if read_answer(&mut third).await.starts_with("HTTP/1.1 200") {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "the place never came back");
    }
}

#[tokio::test]
async fn a_reset_is_a_reset_and_a_failed_service_closes_without_an_answer() {
    let server = start(ListenerOptions::default());
    let mut stream = connect(&server).await;
    ask(&mut stream, "/reset").await;
    assert_eq!(read_all(&mut stream).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let mut stream = connect(&server).await;
    ask(&mut stream, "/error").await;
    assert_eq!(read_all(&mut stream).await.unwrap(), "");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_what_to_do() {
    let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = first.local_addr().unwrap();
    let error = bind(address).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }));
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("choose another port"), "{text}");
    assert!(matches!(bind("192.0.2.1:0".parse().unwrap()), Err(ListenError::NoSuchAddress { .. })));
}

#[tokio::test]
async fn an_unread_answer_stops_in_a_small_buffer() {
    use socket2::SockRef;
    let options = ListenerOptions { send_buffer: Some(ByteSize::kib(32)), ..ListenerOptions::default() };
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    super::prepare(&accepted, &options).unwrap();
    assert_eq!(SockRef::from(&accepted).send_buffer_size().unwrap(), 64 * 1024, "the kernel doubles what is asked for");
    assert!(accepted.nodelay().unwrap());
    drop(client);
}

#[test]
fn options_are_read_with_units_and_unknown_ones_are_errors() {
    let options: ListenerOptions = serde_json::from_str(r#"{"max_header":"16KiB","drain":"5s"}"#).unwrap();
    assert_eq!((options.max_header, options.drain), (ByteSize::kib(16), HumanDuration::from_secs(5)));
    assert_eq!(options.max_connections, ListenerOptions::default().max_connections);
    assert!(serde_json::from_str::<ListenerOptions>(r#"{"max_headr":"16KiB"}"#).is_err());
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<ListenerOptions>(&json).unwrap(), options);
}

/// Until new connections are refused by the kernel.
async fn wait_until_refused(address: SocketAddr) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "still accepting");
        tokio::task::yield_now().await;
    }
}
