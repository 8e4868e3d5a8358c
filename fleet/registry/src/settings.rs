//! Where a registry is, as it stands in the `[registry]` table of a TOML file.

use std::path::PathBuf;

use serde::Deserialize;

/// Which registry.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum RegistrySettings {
    /// A file of members, written by hand or by a tool.
    File(FileSettings),
    /// etcd: a key for each edge.
    Etcd(EtcdSettings),
    /// Kubernetes: the endpoints of a service.
    Kubernetes(KubernetesSettings),
}

/// A file of members.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    /// JSON: `{"version": 1, "members": [...]}`. It is read again within a second of a change.
    pub path: PathBuf,
}

/// An etcd cluster, by its JSON gateway.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSettings {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each member of the cluster; the first that answers is asked.
    pub endpoints: Vec<String>,
    /// What the edges' keys begin with.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// Certificates to trust in place of the system's, PEM.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// A certificate and its key to show, PEM, in one file.
    #[serde(default)]
    pub identity: Option<PathBuf>,
    /// A user of etcd's own authentication; only with `https://` endpoints.
    #[serde(default)]
    pub user: Option<String>,
    /// A file with that user's password, and nothing else but an end of line.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
}

/// A service of Kubernetes whose endpoints are the edges.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSettings {
    /// The service's name.
    pub service: String,
    /// Its namespace; without one, that of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Of each edge's URL what is before and behind its address: `http://{address}:8080`. `{name}` is the edge's name.
    pub url: String,
    /// The room of each edge for content.
    pub capacity_bytes: u64,
    /// The API server; without one, that of this pod's cluster.
    #[serde(default)]
    pub api: Option<String>,
    /// A file with a token of a service account that may list and watch EndpointSlices; it is read for each request, and
    /// sent over `https://` only.
    #[serde(default = "token_file")]
    pub token_file: PathBuf,
    /// Certificates to trust, PEM.
    #[serde(default = "ca")]
    pub ca: PathBuf,
}

/// Where Kubernetes puts what a pod needs to ask its API.
pub(crate) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn prefix() -> String {
    "/atlas/edges/".to_owned()
}

fn token_file() -> PathBuf {
    PathBuf::from(SERVICE_ACCOUNT).join("token")
}

fn ca() -> PathBuf {
    PathBuf::from(SERVICE_ACCOUNT).join("ca.crt")
}
