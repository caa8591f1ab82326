//! The program `kernfusion`: everything is in the library of this crate.

fn main() -> std::process::ExitCode {
    kernfusion_cli::main()
}
