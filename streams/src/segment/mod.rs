//! The segment: an append-only file of CRC frames. One format, three uses: the embedded log, the spool beside Kafka,
//! the archive.
//!
//! ```text
//!  <folder>/lock                                 held while a process writes; contains its pid
//!  <folder>/reservations/00000000000000000000.seg    named after its first offset
//!  <folder>/reservations/00000000000000004711.seg    the last one is active, the others are closed
//!
//!  segment   [ header 64 ][ frame ][ frame ] … [ footer, when closed ]
//!  header    magic 8 | version 4 | topic 32 | partition 4 | base offset 8 | salt 4 | crc 4
//!  frame     marker 4 | length 4 | crc 4 | base offset 8 | time 8 | count 4 | key length 4 | value lengths 4 × count
//!            | key | values                      one frame per batch: whole or absent
//!  footer    (offset 8 | byte 8) × n | end offset 8 | last time 8 | n 4 | crc 4 | magic 8
//! ```
//!
//! All integers are little-endian; times are milliseconds since the Unix epoch. Every crc starts from the segment's
//! random salt, so that bytes which a client put into a payload can never pass for a frame.
//!
//! **Torn tail.** A frame that fails its check with nothing whole after it was being written when the process or the
//! machine stopped: it is cut, and the number of bytes is reported. A bad frame *before* a whole one, or a closed
//! segment whose footer does not fit, is damage: the log refuses to start and names file and byte, because cutting
//! there would silently lose what was acknowledged. Frames in the middle of closed segments are checked when they are
//! read, not at each start, which would take minutes at some size.
//!
//! Start reading with [`frame`], then [`mod@file`] and [`recover`], then `log`, whose threads are `writer` and
//! `syncer`.

pub mod disk;
pub mod file;
pub mod frame;
pub mod recover;

mod lock;
mod log;
mod syncer;
mod tail;
mod topic_log;
mod writer;

pub use disk::{Disk, SystemDisk};
pub use file::{Frames, ScanError, SegmentReader, SegmentWriter};
pub use frame::{Flaw, Frame, FrameBuffer};
pub use log::{SegmentLog, SegmentOptions, TopicFound};
pub use recover::{FolderFrames, OpenError, read_folder};
