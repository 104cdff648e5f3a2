//! Avro binary, from and to serde, with nothing in between.
//!
//! Why not the `apache-avro` crate here: it allocates for every item of an array when it writes, reads through a tree of
//! values at 2.6 µs an event, and a length that lies may cost it half a gigabyte. What is needed is small. The writer
//! needs no schema, because a struct's fields are declared in the schema's order; the reader follows the **writer's**
//! schema, so that it skips fields it does not know and leaves out those that did not exist yet. `apache-avro` is the
//! second opinion of the tests: it must read every byte that is written here, and say the same.

mod error;
mod reader;
mod shape;
mod writer;

pub use error::DatumError;
pub(crate) use reader::{Reader, nanos_of, read};
pub(crate) use shape::Shape;
pub(crate) use writer::write;
