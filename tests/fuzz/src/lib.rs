//! Random bytes against everything that reads bytes from outside, on the stable toolchain.
//!
//! **Owns** the engine (a mutator, a loop with a time limit, a corpus on disk) and, under `tests/targets/`, one target
//! for each reader: requests, event streams, plain answers, segments, events. **Must not know** how a reader works: a
//! target states what must hold for any bytes and compares with an independent reading.
//!
//! **Start** with [`Fuzz::run`], then `tests/targets/stream.rs`.
//!
//! An own loop instead of a coverage-guided fuzzer: those want compiler instrumentation that the stable toolchain does
//! not offer under `cargo test`, and without it they are this loop with a larger dependency tree. What guides this one is
//! the *shape* that a target returns for an input (which error, which facts): an input with a new shape joins the corpus
//! of the run, so mutations go on from where the reader was made to do something new.
//!
//! ```text
//! cargo test -p weir-fuzz                                  5 s a target, as CI does
//! WEIR_FUZZ_SECONDS=600 cargo test -p weir-fuzz stream     longer, one target
//! WEIR_FUZZ_SEED=<base>:<round> cargo test -p weir-fuzz stream    one round again, as a failure prints it
//! ```
//!
//! A failure also leaves its input as a file and says where; once it is fixed, that file belongs into `corpus/`.
//!
//! **Promises it helps to check**: I2 (a rewritten request means what was reserved), I4 (content is a fact of the bytes
//! alone), I13 (a log is read whole or refused).

mod corpus;
mod mutate;
mod random;
mod run;

pub use mutate::Mutator;
pub use random::Random;
pub use run::{Fuzz, shape_of};
