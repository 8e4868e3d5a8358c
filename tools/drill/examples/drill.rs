//! Scripts by themselves, as `cargo xtask drill` runs them.

fn main() -> Result<(), drill::CommandError> {
    drill::run_command(std::env::args().skip(1))
}
