//! `weir`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::main()
}
