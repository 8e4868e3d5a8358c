//! The list of components of the released server (SBOM): CycloneDX, of what `cargo metadata` says.
//!
//! Only what is compiled into the server on Linux: no tools, tests or build scripts' own crates. It refuses to guess a
//! licence. Bounded by: a limit on the command.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cargo;
use testbed::process::output;

/// It reads what is in the lock file.
const LIMIT: Duration = Duration::from_secs(120);

/// The package that is released.
const SERVER: &str = "atlas-server";

/// The list, the same for the same lock file.
pub(crate) fn json() -> Result<String> {
    let mut command = cargo::command(&["metadata", "--format-version", "1", "--locked"]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let said = output(&mut command, LIMIT)?;
    ensure!(
        said.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&said.stderr)
    );
    list(&serde_json::from_slice(&said.stdout)?)
}

/// The list, of the JSON of `cargo metadata`.
fn list(metadata: &Value) -> Result<String> {
    let packages: BTreeMap<&str, &Value> = items(metadata, "/packages")
        .filter_map(|it| Some((text(it, "id")?, it)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = items(metadata, "/resolve/nodes")
        .filter_map(|it| Some((text(it, "id")?, it)))
        .collect();
    let is_server = |(_, it): &(&&str, &&Value)| text(it, "name") == Some(SERVER);
    let (&server, _) = packages.iter().find(is_server).context("no server")?;
    let mut reached = BTreeSet::from([server]);
    let mut left = vec![server];
    let mut edges = BTreeMap::new();
    while let Some(id) = left.pop() {
        let node = nodes.get(id).context("a package without a node")?;
        let needed: BTreeSet<&str> = items(node, "/deps")
            .filter(|it| items(it, "/dep_kinds").any(|kind| kind["kind"].is_null()))
            .filter_map(|it| text(it, "pkg"))
            .collect();
        left.extend(needed.iter().filter(|it| reached.insert(it)));
        edges.insert(id, needed);
    }
    let purl = |id: &str| -> Result<String> {
        let package = packages.get(id).context("a node without a package")?;
        let part = |name| text(package, name).context("a package without a name");
        Ok(format!("pkg:cargo/{}@{}", part("name")?, part("version")?))
    };
    let component = |id: &&str| -> Result<Value> {
        let (package, name) = (packages[id], purl(id)?);
        let kind = if *id == server {
            "application"
        } else {
            "library"
        };
        let mut component = json!({
            "type": kind, "bom-ref": name, "purl": name,
            "name": package["name"], "version": package["version"],
        });
        if let Some(license) = text(package, "license") {
            // What cargo takes besides: the slash of old, for OR.
            let expression = license.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        Ok(component)
    };
    let others = reached.iter().filter(|id| **id != server);
    let components = others.map(component).collect::<Result<Vec<_>>>()?;
    let dependency = |(id, needed): (&&str, &BTreeSet<&str>)| -> Result<Value> {
        let needed = needed
            .iter()
            .map(|it| purl(it))
            .collect::<Result<Vec<_>>>()?;
        Ok(json!({ "ref": purl(id)?, "dependsOn": needed }))
    };
    let dependencies = edges.iter().map(dependency).collect::<Result<Vec<_>>>()?;
    let list = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": component(&server)? },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn what_the_server_is_made_of_is_listed_with_its_licence_and_tools_are_not() {
        let list: Value = serde_json::from_str(&super::json().expect("a list")).expect("JSON");
        let components = list["components"].as_array().expect("an array");
        let find = |name: &str| components.iter().find(|it| it["name"] == name);
        let rustls = find("rustls").expect("the server is linked with it");
        assert!(rustls["licenses"][0]["expression"].is_string());
        assert!(find("atlas-link").is_some() && find("smoltcp").is_some());
        for tool in ["atlas-xtask", "proptest", "rcgen", "cc"] {
            assert!(find(tool).is_none(), "{tool}");
        }
        assert!(components.iter().all(|it| it["licenses"].is_array()));
        let refs = components.iter().filter_map(|it| it["bom-ref"].as_str());
        let mut refs: Vec<_> = refs.collect();
        refs.sort_unstable();
        refs.dedup();
        assert_eq!(refs.len(), components.len(), "each once");
    }
}
