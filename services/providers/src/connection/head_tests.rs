//! Heads of answers: what they say of body and connection, and what is refused.

use http::header::AUTHORIZATION;

use super::*;

fn taken(wire: &str) -> Result<Option<Head>, HeadError> {
    take(&mut BytesMut::from(wire.as_bytes()))
}

fn head(wire: &str) -> Head {
    taken(wire).unwrap().unwrap()
}

#[test]
fn the_body_ends_where_the_head_says() {
    let cases = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", "Length(7)", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\n\r\n", "Length(7)", true),
        ("HTTP/1.1 200\r\ntransfer-encoding: Chunked\r\n\r\n", "Chunked(Size)", true),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 7\r\n\r\n", "Chunked(Size)", false),
        ("HTTP/1.1 200 OK\r\n\r\n", "UntilClose", true),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n", "Length(0)", true),
        ("HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 1\r\n\r\n", "Length(1)", false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", "Length(1)", false),
        ("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n", "Length(1)", true),
    ];
    for (wire, framing, keeps_alive) in cases {
        let head = head(wire);
        assert_eq!(
            (format!("{:?}", head.framing), head.keeps_alive),
            (format!("Framing({framing})"), keeps_alive),
            "{wire}"
        );
    }
}

#[test]
fn heads_that_mean_two_things_or_nothing_are_refused() {
    let with = |header: &str| format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n");
    let cases = [
        (with("content-length: 1\r\ncontent-length: 2"), HeadError::BadLength),
        (with("content-length: -1"), HeadError::BadLength),
        (with("content-length: +1"), HeadError::BadLength),
        (with("content-length: 99999999999999999999"), HeadError::BadLength),
        (with("content-length:"), HeadError::BadLength),
        (with("transfer-encoding: gzip, chunked"), HeadError::UnknownTransferEncoding),
        (with("transfer-encoding: chunked\r\ntransfer-encoding: chunked"), HeadError::UnknownTransferEncoding),
        (with("a: b\r\n c"), HeadError::Malformed(httparse::Error::HeaderName)),
        (with("a : b"), HeadError::Malformed(httparse::Error::HeaderName)),
        ("HTTP/2 200\r\n\r\n".to_owned(), HeadError::Malformed(httparse::Error::Version)),
        ("SSH-2.0-x\r\n\r\n".to_owned(), HeadError::Malformed(httparse::Error::Version)),
        ("HTTP/1.1 099 OK\r\n\r\n".to_owned(), HeadError::BadStatus),
        ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), HeadError::Switching),
        (with(&"a: b\r\n".repeat(MOST_HEADERS + 1)), HeadError::Malformed(httparse::Error::TooManyHeaders)),
        (format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MOST_HEAD_BYTES)), HeadError::TooLarge),
    ];
    for (wire, expected) in cases {
        assert_eq!(taken(&wire).map(|_| ()).unwrap_err(), expected, "{}", &wire[..wire.len().min(60)]);
    }
}

#[test]
fn interim_answers_are_skipped_and_a_part_of_a_head_is_none() {
    let wire =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nb: c\r\n\r\nbody";
    let whole_at = wire.len() - "body".len();
    for cut in 0..wire.len() {
        let mut received = BytesMut::from(&wire.as_bytes()[..cut]);
        let found = take(&mut received).unwrap();
        assert_eq!(found.is_some(), cut >= whole_at, "{cut}");
        if let Some(head) = found {
            assert_eq!((head.status.as_u16(), head.headers["b"].to_str().unwrap()), (200, "c"));
            assert_eq!(received, wire.as_bytes()[whole_at..cut]);
        }
    }
}

#[test]
fn a_request_is_written_in_one_piece() {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer k"));
    headers.append("x-a", HeaderValue::from_static("1"));
    let head = request_head("api.example.com", "/v1/chat/completions", &headers, 1234);
    let expected = "POST /v1/chat/completions HTTP/1.1\r\nhost: api.example.com\r\ncontent-length: 1234\r\n\
                    authorization: Bearer k\r\nx-a: 1\r\n\r\n";
    assert_eq!(head, expected);
    assert!(
        request_head("h", "/", &HeaderMap::new(), 0)
            .starts_with(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n")
    );
}
