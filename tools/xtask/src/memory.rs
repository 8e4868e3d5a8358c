//! `cargo xtask memory`: the tables of `docs/memory.md`, by the model of `tools/llc`.

use std::io;
use std::path::Path;

use anyhow::Result;

use testbed::interrupt;
use testbed::pages::Part;

/// Where the tables are.
pub(crate) const PAGE: &str = "docs/memory.md";

/// How it is done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MemoryOptions {
    /// Writes the tables into docs/memory.md
    #[arg(long)]
    write: bool,
    /// Only this table, by a part of its name
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

/// Makes the tables, in some minutes on one core, and prints their rows as they are made.
pub(crate) fn run_command(options: &MemoryOptions, root: &Path) -> Result<()> {
    for (name, table) in llc::tables::TABLES {
        if !name.contains(&options.only) {
            continue;
        }
        println!("{name}\n");
        let mut text = String::new();
        table(&mut |lines| {
            print!("{lines}");
            text += lines;
            interrupt::check().map_err(io::Error::other)
        })?;
        println!();
        if options.write {
            let command = "cargo xtask memory --write";
            Part {
                page: PAGE,
                name,
                command,
            }
            .write(root, &text)?;
        }
    }
    Ok(())
}
