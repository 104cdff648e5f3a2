//! `weir`: see the library.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests allocate on one thread what the log's threads free: the system's allocator takes its arenas' locks for
/// that, and a fifth of a request's time with them (see `tests/bench`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    weir::cli::main()
}
