//! `cargo xtask memory`: the tables of `docs/memory.md`, by the model of `tools/llc`.

use std::path::Path;

use anyhow::Result;

use testbed::pages::Part;

/// Where the tables are.
const PAGE: &str = "docs/memory.md";

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

/// Makes the tables, in some minutes on one core, and prints them.
pub(crate) fn run_command(options: &MemoryOptions, root: &Path) -> Result<()> {
    for (name, table) in llc::tables::TABLES {
        if !name.contains(&options.only) {
            continue;
        }
        let text = table();
        println!("{name}\n\n{text}");
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
