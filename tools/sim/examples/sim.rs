//! The simulator by itself, as `cargo xtask sim` runs it.

fn main() -> Result<(), sim::CommandError> {
    sim::run_command(std::env::args().skip(1))
}
