//! Log lines on their way to stderr, written by a thread of their own.
//!
//! A write for each line would stop a worker that serves requests: 3 µs of system call, and as long as it takes when
//! the reader of a pipe is slow. So lines go into a bounded buffer. At rest a line is written at once; under load
//! whatever came within [`GATHER`] is one write. A full buffer drops lines rather than make requests wait; how many is
//! told as soon as there is room. What a process had not written when it was killed is lost: log lines carry no money.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// From the beginning of one write to that of the next, at most so often: a person notices nothing.
const GATHER: Duration = Duration::from_millis(10);
/// Some ten thousand lines: a second of a busy gateway whose log's reader hangs.
const MOST_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// Where lines are put. Clones are handles to the same buffer.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    /// The thread waits here for the first line.
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    dropped: u64,
    /// Whether the thread waits for a line, rather than for its next turn.
    is_waiting: bool,
    is_closed: bool,
}

impl Lines {
    /// Begins to write to `out`, until the returned guard is dropped.
    pub(super) fn write_to(&self, out: impl Write + Send + 'static) -> io::Result<Flush> {
        let lines = self.clone();
        let thread = thread::Builder::new().name("log-lines".to_owned()).spawn(move || lines.run(out))?;
        Ok(Flush { lines: self.clone(), thread: Some(thread) })
    }

    fn push(&self, line: &[u8]) {
        let mut buffer = self.shared.buffer.lock();
        if buffer.is_closed {
            // The thread is gone, or about to go: the last words of a process take the direct way.
            drop(buffer);
            let _lost = io::stderr().write_all(line);
            return;
        }
        if buffer.bytes.len() + line.len() > MOST_BUFFERED_BYTES {
            buffer.dropped += 1;
            return;
        }
        buffer.bytes.extend_from_slice(line);
        if std::mem::take(&mut buffer.is_waiting) {
            drop(buffer);
            self.shared.filled.notify_one();
        }
    }

    fn run(&self, mut out: impl Write) {
        let mut taken = Vec::new();
        while self.take(&mut taken) {
            // Nobody is left to tell when stderr is gone.
            let _lost = out.write_all(&taken).and_then(|()| out.flush());
            taken.clear();
        }
    }

    /// Swaps what is there into `taken`; waits for it. `false` once everything is written and the buffer is closed.
    fn take(&self, taken: &mut Vec<u8>) -> bool {
        let mut buffer = self.shared.buffer.lock();
        if !buffer.is_closed {
            // The turn's pause: lines that come now need no waking.
            self.shared.filled.wait_for(&mut buffer, GATHER);
        }
        while buffer.bytes.is_empty() && buffer.dropped == 0 {
            if buffer.is_closed {
                return false;
            }
            buffer.is_waiting = true;
            self.shared.filled.wait(&mut buffer);
            buffer.is_waiting = false;
        }
        std::mem::swap(&mut buffer.bytes, taken);
        let dropped = std::mem::take(&mut buffer.dropped);
        drop(buffer);
        if dropped > 0 {
            taken.extend_from_slice(format!("{dropped} log lines dropped: stderr is read too slowly\n").as_bytes());
        }
        true
    }
}

/// Writes what is left when it is dropped.
#[derive(Debug)]
#[must_use = "what is buffered is written when this is dropped, at the end of the process"]
pub struct Flush {
    lines: Lines,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Flush {
    fn drop(&mut self) {
        self.lines.shared.buffer.lock().is_closed = true;
        self.lines.shared.filled.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there is on stderr already.
            let _ended = thread.join();
        }
    }
}

/// One line on its way into the buffer.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a Lines);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Hands each write to the test, which may hold it up.
    struct Writes(mpsc::SyncSender<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_out_whole_and_in_order_and_the_last_ones_at_the_end() {
        let lines = Lines::default();
        let (sender, writes) = mpsc::sync_channel(1024);
        let flush = lines.write_to(Writes(sender)).unwrap();
        let wanted: Vec<String> = (0..1000).map(|number| format!("line {number}\n")).collect();
        for line in &wanted {
            lines.make_writer().write_all(line.as_bytes()).unwrap();
        }
        drop(flush);
        let written: Vec<Vec<u8>> = writes.iter().collect();
        assert!(written.len() < wanted.len(), "gathered: {} writes", written.len());
        assert_eq!(String::from_utf8(written.concat()).unwrap(), wanted.concat());
    }

    #[test]
    fn a_reader_that_hangs_costs_lines_and_not_memory_and_is_told_how_many() {
        let lines = Lines::default();
        let (sender, writes) = mpsc::sync_channel(0);
        let flush = lines.write_to(Writes(sender)).unwrap();
        let line = [b'x'; 64 * 1024];
        let many = 3 * MOST_BUFFERED_BYTES / line.len();
        for _ in 0..many {
            lines.push(&line);
        }
        assert!(lines.shared.buffer.lock().bytes.len() <= MOST_BUFFERED_BYTES);
        let reader = thread::spawn(move || writes.iter().collect::<Vec<_>>().concat());
        drop(flush);
        let written = reader.join().unwrap();
        let told = String::from_utf8_lossy(&written);
        let kept = told.matches(&"x".repeat(line.len())).count();
        let dropped: usize = told.split_whitespace().find_map(|word| word.trim_matches('x').parse().ok()).unwrap();
        assert_eq!(kept + dropped, many);
    }
}
