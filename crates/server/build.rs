//! Tells the binary which commit it is built from: `ATLAS_COMMIT`, if the environment has it, as a package's build may
//! set it; else git's; else `unknown`.
//!
//! Only of optimised builds: others would be built again after each commit.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=ATLAS_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = env::var("ATLAS_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| if is_release { head() } else { None });
    println!(
        "cargo::rustc-env=ATLAS_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
    println!(
        "cargo::rustc-env=ATLAS_TARGET={}",
        env::var("TARGET").as_deref().unwrap_or("unknown")
    );
}

/// The commit that is checked out, with a plus sign if files differ from it.
fn head() -> Option<String> {
    // It changes with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let plus = if changes.is_empty() { "" } else { "+" };
    Some(format!("{commit}{plus}"))
}

/// What git prints; `None` where there is no git or no repository.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
