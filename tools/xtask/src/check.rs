//! `cargo xtask check`: what takes longer or needs more than `cargo xtask test`, in order, with one closing line.
//!
//! Linters, documentation, rules about the tree; most seeds of the simulator; the server that is released, over
//! every link, with other TCPs, in guests, and booted as it is shipped. A step that fails does not keep the next
//! from running; a signal does. Bounded by what bounds each. Fuzzing, which takes as long as it is
//! given, is a command of its own.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::test::TestOptions;
use crate::{boot, cargo, deploy, fleet, image, interop, lab, netns, simulate, skips, test, tidy};
use testbed::packages;
use testbed::program::Program;
use testbed::suite::{Outcome, Suite};
use testbed::{target_directory, workspace_root};

/// Runs every check; fails if one does.
pub(crate) fn run_command(options: &TestOptions) -> Result<()> {
    let expected = skips::Expected::read(options.skips_expected.as_deref())?;
    let mut suite = Suite::default();
    for wanted in [
        &packages::FOR_TESTS[..],
        &packages::FOR_CHECKS,
        &packages::BROWSER,
        &packages::LWIP,
        &packages::FLEET,
    ] {
        packages::install_if_possible(wanted);
    }
    // Its link-time optimization leaves a processor idle, and so do linters.
    let server = Program::Atlas.build_ahead();
    lint(&mut suite);
    tidy::run(&mut suite);
    // A panic has been printed, and what is missing is built where it is looked for.
    let _ = server.join();
    suite.run("the server, released", || {
        Program::Atlas.find(None).map(|_| Outcome::Passed)
    });
    // Guests and networks are mostly waited for: meanwhile what the guests and the fleet run is built.
    let ahead = lab::build_ahead();
    let fleet = fleet_packages().map(|packages| (test::build_ahead(packages.clone()), packages));
    netns::run_with_rights(&mut suite);
    interop::run_with_rights(&mut suite);
    // Its tests make the programs that the fleet consists of.
    match fleet {
        Ok((ahead, packages)) => {
            let _ = ahead.join();
            test::cargo_test(&mut suite, FLEET_TESTS, &packages);
        }
        Err(error) => suite.fail(FLEET_TESTS, &format!("{error:#}")),
    }
    // A fleet, containers and guests leave a processor idle.
    let most_seeds = simulate::Most::begin();
    fleet::run_short_with_rights(&mut suite);
    // As what guests run, it is built already.
    suite.run(image::CHECK, || image::check(&lab::static_server()?));
    boot::run_with_rights(&mut suite);
    lab::run_disk_checks(&mut suite, ahead);
    most_seeds.finish(&mut suite);
    expected.close(suite)
}

/// The tests that `cargo xtask test` leaves out: of the programs of a fleet, which link much that Atlas does not.
const FLEET_TESTS: &str = "cargo test, fleet";

/// The packages beneath `fleet`, in ascending order.
fn fleet_packages() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace_root().join("fleet"))? {
        let manifest = entry?.path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest);
        let text = text.with_context(|| format!("reading {}", manifest.display()))?;
        let table: toml::Table = text.parse()?;
        let name = table.get("package").and_then(|it| it.get("name"));
        let name = name.and_then(toml::Value::as_str).context("a package")?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

fn lint(suite: &mut Suite) {
    suite.run("cargo fmt", || cargo::run(&["fmt", "--all", "--check"]));
    suite.run("cargo clippy", || {
        let scope = ["clippy", "--workspace", "--all-targets", "--quiet"];
        cargo::run(&[&scope[..], &["--", "-D", "warnings"]].concat())
    });
    suite.run("cargo clippy, fuzz targets", || {
        cargo::finish(clippy_of_fuzz_targets())
    });
    suite.run("cargo doc", || {
        cargo::run(&["doc", "--workspace", "--no-deps", "--quiet"])
    });
    suite.run("promtool", read_queries);
    deploy::run(suite);
}

/// Has Prometheus's tool read the alerts and the queries of the dashboard, if it is here. It comes with a daemon, so it
/// is not installed.
fn read_queries() -> Result<Outcome> {
    let dist = workspace_root().join("dist");
    let dashboard = fs::read_to_string(dist.join("grafana-dashboard.json"))?;
    let mut queries = NamedTempFile::new()?;
    queries.write_all(rules_of(&serde_json::from_str(&dashboard)?)?.as_bytes())?;
    for file in [dist.join("alerts.yml"), queries.path().to_owned()] {
        let mut command = Command::new("promtool");
        match command.args(["check", "rules"]).arg(file).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Outcome::Skipped("no promtool (Debian: prometheus)".into()));
            }
            output => {
                let output = output?;
                let told = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "{told}");
            }
        }
    }
    Ok(Outcome::Passed)
}

/// The queries of a dashboard as a file of rules, with what Grafana puts in for its variables. JSON is YAML.
fn rules_of(dashboard: &Value) -> Result<String> {
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .filter_map(|target| target["expr"].as_str());
    let filled = queries.map(|query| {
        query
            .replace("$__rate_interval", "5m")
            .replace("$instance", ".*")
    });
    let rules = filled.enumerate().map(|(number, query)| {
        let record = format!("dashboard:query:{number}");
        json!({"record": record, "expr": query})
    });
    let rules: Vec<Value> = rules.collect();
    ensure!(rules.len() > 10, "{} queries", rules.len());
    Ok(json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string())
}

/// The fuzz targets are a workspace of their own, which nothing else compiles. What they share with this
/// one is compiled once, and libFuzzer, which only a target that runs needs, not at all.
fn clippy_of_fuzz_targets() -> Command {
    let mut command = cargo::command(&["clippy", "--manifest-path", "fuzz/Cargo.toml"]);
    command.args(["--bins", "--examples", "--quiet"]);
    command.arg("--target-dir").arg(target_directory());
    command.args(["--", "-D", "warnings"]);
    // The library that the build would link instead of making one.
    command.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    command
}

#[cfg(test)]
mod tests {
    use super::{Value, rules_of, workspace_root};

    #[test]
    fn the_dashboards_queries_are_rules_without_variables() {
        let file = workspace_root().join("dist/grafana-dashboard.json");
        let dashboard = std::fs::read_to_string(file).unwrap();
        let rules = rules_of(&serde_json::from_str(&dashboard).unwrap()).unwrap();
        assert!(rules.contains("[5m]") && !rules.contains('$'), "{rules}");
        assert!(rules_of(&Value::default()).is_err());
    }
}
