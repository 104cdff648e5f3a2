//! The segment: an append-only file of CRC frames. One format, three uses: the embedded log, the spool beside Kafka,
//! the archive.
//!
//! ```text
//!  <folder>/lock                                 held while a process writes; contains its pid
//!  <folder>/durable                              how far each topic is durable, see `mark`
//!  <folder>/reservations/00000000000000000000.seg    named after its first offset
//!  <folder>/reservations/00000000000000004711.seg    the last one is active, the others are closed
//!
//!  segment   [ header 64 ][ frame ][ frame ] … [ footer, when closed ]
//!  header    magic 8 | version 4 | topic 32 | partition 4 | base offset 8 | salt 4 | crc 4
//!  frame     marker 4 | length 4 | crc 4 | base offset 8 | durable end 8 | time 8 | count 4 | key length 4
//!            | value lengths 4 × count | key | values             one frame per batch: whole or absent
//!  footer    (offset 8 | byte 8) × n | end offset 8 | last time 8 | n 4 | crc 4 | magic 8
//! ```
//!
//! All integers are little-endian; times are milliseconds since the Unix epoch. Every crc starts from the segment's
//! random salt, so that bytes which a client put into a payload can never pass for a frame.
//!
//! **Unsynced tail or damage.** A sync comes after the write, so a kill or a power loss may leave any part of what was
//! not synced: half a frame, later pages without earlier ones, a segment without the end of the one before. What was
//! durable is never in such a state by itself. So recovery asks of the first thing that is wrong, at offset X: does
//! anything prove that X had been durable? Each frame carries the durable end of its topic when it was written, and the
//! mark says the last one known. If something does, it is damage: the log refuses to start and names file and byte,
//! because cutting there would silently lose what was confirmed. If nothing does, X and all after it are cut, and the
//! number of bytes is reported. Closed segments below the proven end are not read at start, which would take minutes at
//! some size; their frames are checked when they are read.
//!
//! Start reading with [`frame`], then [`mod@file`] and [`recover`], then `log`, whose threads are `writer` and
//! `syncer`.

pub mod disk;
pub mod file;
pub mod folder;
pub mod frame;
pub mod recover;

mod lock;
mod log;
mod mark;
mod syncer;
mod tail;
mod topic_log;
mod writer;

pub use disk::{Disk, SystemDisk};
pub use file::{Frames, ScanError, SegmentReader, SegmentWriter};
pub use folder::{FolderFrames, read_folder};
pub use frame::{Flaw, Frame, FrameBuffer};
pub use log::{SegmentLog, SegmentOptions, TopicFound};
pub use recover::OpenError;
