//! What a connection says of its way out, by what its socket took: without a socket, on a clock that stands still.

use super::*;

fn connection(all: &Arc<Unwritten>) -> Connection {
    Connection::new("127.0.0.1:1".parse().unwrap(), Arc::clone(all))
}

const PLENTY: usize = usize::MAX;

#[test]
fn one_piece_is_given_and_another_when_it_is_written() {
    let connection = connection(&Unwritten::new(PLENTY));
    let outlet = &connection.shared.outlet;
    assert!(connection.has_room());
    connection.give(ROOM_BYTES - 1);
    assert!(connection.has_room(), "small pieces go out together");
    connection.give(1);
    assert!(!connection.has_room());
    assert!(!outlet.has_news(), "the socket was not even tried");
    outlet.took_some();
    assert!(!outlet.has_news(), "a part of it is not all of it");
    outlet.flushed();
    assert!(outlet.has_news() && !outlet.has_news(), "who waits is asked again once");
    assert!(connection.has_room() && !connection.is_behind());
}

#[test]
fn a_client_is_behind_from_when_its_socket_is_blocked_until_enough_goes_out_at_once() {
    let connection = connection(&Unwritten::new(PLENTY));
    let outlet = &connection.shared.outlet;
    outlet.took_nothing();
    assert!(!connection.is_behind(), "nothing was given");
    connection.give(ROOM_BYTES);
    assert!(!connection.has_room());
    outlet.took_nothing();
    assert!(connection.is_behind());
    assert!(outlet.has_news() && !outlet.has_news(), "who waits is told once, to let go of memory");
    outlet.flushed();
    let write = |bytes| {
        connection.give(bytes);
        outlet.flushed();
    };
    write(CATCHING_UP_BYTES - 1);
    assert!(connection.is_behind(), "the kernel takes some for whoever reads nothing");
    write(1);
    assert!(!connection.is_behind());
    connection.give(1);
    outlet.took_nothing();
    write(CATCHING_UP_BYTES);
    assert!(connection.is_behind(), "what went out after a stop does not count");
    write(CATCHING_UP_BYTES);
    assert!(!connection.is_behind());
}

#[tokio::test(start_paused = true)]
async fn s06_a_stall_counts_from_the_last_byte_that_the_socket_took() {
    const SECOND: Duration = Duration::from_secs(1);
    let connection = connection(&Unwritten::new(PLENTY));
    let outlet = &connection.shared.outlet;
    tokio::time::advance(100 * SECOND).await;
    assert_eq!(connection.stands_for(), None, "nothing waits");
    connection.give(1);
    assert_eq!(connection.stands_for(), Some(Duration::ZERO), "it was given only now");
    tokio::time::advance(50 * SECOND).await;
    outlet.took_nothing();
    assert_eq!(connection.stands_for(), Some(50 * SECOND));
    outlet.took_some();
    assert_eq!(connection.stands_for(), Some(Duration::ZERO));
    tokio::time::advance(30 * SECOND).await;
    connection.give(1);
    assert_eq!(connection.stands_for(), Some(30 * SECOND), "being given more is no sign of life");
    outlet.flushed();
    assert_eq!(connection.stands_for(), None);
}

#[test]
fn beyond_what_all_may_hold_those_who_are_behind_wait_and_the_others_do_not() {
    let all = Unwritten::new(ROOM_BYTES);
    let (behind, quick, stalled) = (connection(&all), connection(&all), connection(&all));
    behind.give(1);
    behind.shared.outlet.took_nothing();
    behind.shared.outlet.flushed();
    stalled.give(ROOM_BYTES + 1);
    assert!(quick.has_room() && !behind.has_room());
    assert!(!behind.shared.outlet.has_news(), "it looks again by itself");
    drop(stalled);
    assert!(behind.has_room(), "what was given to a connection that is gone is held no more");
    assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
}
