//! Kubernetes: the EndpointSlices of a service, listed and watched by the API's own HTTP.
//!
//! Of an endpoint five fields are read. A client library would bring the types of the whole API, see the decision note on fleets.
//!
//! | An endpoint | The member |
//! |---|---|
//! | `ready` is false, not `terminating` | not healthy |
//! | `terminating` | drains |
//! | `nodeName`, else its pod's name, else its address | the name: what an edge holds depends on it, so a DaemonSet's edges keep theirs |
//! | `zone` | the zone |

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use placement::{MEMBERS_MAX, Member, State};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::http::{CALL_TIMEOUT, Lines, RegistryError, body, chain, client, late};
use crate::settings::{KubernetesSettings, SERVICE_ACCOUNT};
use crate::view::ViewSender;

/// How long the API server lets a watch be. It is begun anew where it ended.
const WATCH_SECONDS: u64 = 300;

/// The longest silence of a watch: bookmarks come about once a minute.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS + 30);

/// Where the slices of a service are.
#[derive(Debug)]
pub(crate) struct Api {
    client: Client,
    slices: String,
    selector: String,
    token_file: PathBuf,
    url: String,
    capacity_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct List {
    metadata: Metadata,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Slice {
    metadata: Metadata,
    /// May be null.
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    node_name: Option<String>,
    target_ref: Option<Metadata>,
    zone: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Api {
    pub(crate) fn new(settings: &KubernetesSettings) -> Result<Self, RegistryError> {
        let wrong = |why: String| RegistryError::Settings(why);
        let api = match &settings.api {
            Some(api) => api.trim_end_matches('/').to_owned(),
            None => in_cluster().map_err(wrong)?,
        };
        let namespace = match &settings.namespace {
            Some(namespace) => namespace.clone(),
            None => {
                let path = format!("{SERVICE_ACCOUNT}/namespace");
                let text = fs::read_to_string(&path);
                text.map_err(|error| {
                    wrong(format!("namespace: none is given, and {path}: {error}"))
                })?
            }
        };
        for name in [&settings.service, &namespace] {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if name.is_empty() || !name.bytes().all(is_name) {
                return Err(wrong(format!(
                    "{name:?} is no name of a service or a namespace"
                )));
            }
        }
        if !settings.url.contains("{address}") && !settings.url.contains("{name}") {
            let url = &settings.url;
            return Err(wrong(format!(
                "url: {url:?} has no {{address}}, so all edges would have one"
            )));
        }
        let ca = (api.starts_with("https://")).then_some(settings.ca.as_path());
        Ok(Self {
            client: client(ca, None)?,
            slices: format!("{api}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
            // `/` and `=` of the label, which reqwest's own encoder of queries would bring a library for.
            selector: format!(
                "labelSelector=kubernetes.io%2Fservice-name%3D{}",
                settings.service
            ),
            token_file: settings.token_file.clone(),
            url: settings.url.clone(),
            capacity_bytes: settings.capacity_bytes,
        })
    }

    /// A question, with the token only over TLS. A proxy of kubectl's needs none.
    fn request(&self, query: &str) -> Result<RequestBuilder, RegistryError> {
        let url = format!("{}?{}{query}", self.slices, self.selector);
        let request = self.client.get(url);
        if !self.slices.starts_with("https://") {
            return Ok(request);
        }
        // Kubernetes writes a new one before the old one ends.
        let token = fs::read_to_string(&self.token_file).map_err(|error| {
            RegistryError::Settings(format!("{}: {error}", self.token_file.display()))
        })?;
        Ok(request.bearer_auth(token.trim()))
    }

    async fn get(&self, query: &str) -> Result<Response, RegistryError> {
        match timeout(CALL_TIMEOUT, self.request(query)?.send()).await {
            Ok(sent) => sent.map_err(|error| RegistryError::Unreachable(chain(&error))),
            Err(_) => Err(late(&self.slices)),
        }
    }

    fn member(&self, endpoint: &Endpoint) -> Result<Member, String> {
        let address = endpoint
            .addresses
            .first()
            .ok_or("an endpoint without an address")?;
        let pod = endpoint.target_ref.as_ref().map(|it| it.name.as_str());
        let name = endpoint
            .node_name
            .as_deref()
            .or(pod.filter(|it| !it.is_empty()));
        // An IPv6 address is no name.
        let name = name.map_or_else(|| address.replace(':', "-"), str::to_owned);
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.clone()
        };
        let is_leaving = endpoint.conditions.terminating.unwrap_or(false);
        let member = Member {
            url: self
                .url
                .replace("{address}", &host)
                .replace("{name}", &name),
            name,
            zone: endpoint.zone.clone().unwrap_or_default(),
            capacity_bytes: self.capacity_bytes,
            state: if is_leaving {
                State::Draining
            } else {
                State::Serving
            },
            // "A nil value should be interpreted as ready."
            healthy: endpoint.conditions.ready.unwrap_or(true) || is_leaving,
            load: 0.0,
        };
        member.check().map_err(|error| error.to_string())?;
        Ok(member)
    }

    /// The members of these slices. One that is in two of them, as while its address changes, is taken once.
    fn tell(&self, slices: &BTreeMap<String, Slice>, views: &ViewSender) {
        let (mut members, mut refused) = (BTreeMap::<String, Member>::new(), Vec::new());
        let endpoints = slices
            .values()
            .flat_map(|slice| slice.endpoints.iter().flatten());
        for endpoint in endpoints.take(MEMBERS_MAX) {
            match self.member(endpoint) {
                Ok(member) => {
                    let other = members.get(&member.name);
                    if other.is_none_or(|other| !other.takes_players()) {
                        members.insert(member.name.clone(), member);
                    }
                }
                Err(why) => refused.push(why),
            }
        }
        views.learned(members.into_values().collect(), refused);
    }
}

fn in_cluster() -> Result<String, String> {
    let variable = |name: &str| {
        std::env::var(name)
            .map_err(|_| format!("api: none is given, and {name} is not set: is this a pod?"))
    };
    let (host, port) = (
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?,
    );
    Ok(if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    })
}

/// Tells of the edges, for ever.
pub(crate) async fn follow(api: Api, views: ViewSender) {
    let mut backoff = Backoff::new();
    loop {
        let Err(error) = session(&api, &views, &mut backoff).await;
        views.lost(&error.to_string());
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// A list and the watches behind it, until something is wrong.
async fn session(
    api: &Api,
    views: &ViewSender,
    backoff: &mut Backoff,
) -> Result<Infallible, RegistryError> {
    let whom = "the API server";
    let malformed =
        |error: serde_json::Error| RegistryError::Malformed(whom.to_owned(), error.to_string());
    let bytes = body(whom, api.get("").await?).await?;
    let list: List = serde_json::from_slice(&bytes).map_err(malformed)?;
    let mut version = list.metadata.resource_version;
    let mut slices: BTreeMap<String, Slice> = BTreeMap::new();
    for slice in list.items {
        slices.insert(slice.metadata.name.clone(), slice);
    }
    loop {
        let query = format!(
            "&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        let mut lines = Lines::of(whom, api.get(&query).await?).await?;
        api.tell(&slices, views);
        backoff.reset();
        loop {
            let line = match timeout(SILENCE_MAX, lines.next()).await {
                Ok(Ok(line)) => line,
                // Its time is over, or the connection was cut: the next watch goes on from the same version.
                Ok(Err(RegistryError::Ended(..))) => break,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(RegistryError::Unreachable(format!("{whom} stalled"))),
            };
            let event: Event = serde_json::from_slice(&line).map_err(malformed)?;
            if event.kind == "ERROR" {
                return Err(refused(whom, &event.object));
            }
            let slice: Slice = serde_json::from_value(event.object).map_err(malformed)?;
            version.clone_from(&slice.metadata.resource_version);
            match event.kind.as_str() {
                "ADDED" | "MODIFIED" => {
                    slices.insert(slice.metadata.name.clone(), slice);
                }
                "DELETED" => {
                    slices.remove(&slice.metadata.name);
                }
                // A bookmark, or what a later version has.
                _ => continue,
            }
            api.tell(&slices, views);
        }
        // Not at once again, if the server ends each watch at once.
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// A status object, such as that of a version that is too old: the next session lists anew.
fn refused(whom: &str, status: &Value) -> RegistryError {
    let code = status["code"]
        .as_u64()
        .and_then(|it| u16::try_from(it).ok());
    RegistryError::Refused {
        whom: whom.to_owned(),
        status: code.unwrap_or(StatusCode::GONE.as_u16()),
        text: status["message"]
            .as_str()
            .unwrap_or("no reason")
            .chars()
            .take(200)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(url: &str) -> Result<Api, RegistryError> {
        Api::new(&KubernetesSettings {
            service: "edges".into(),
            namespace: Some("video".into()),
            url: url.to_owned(),
            capacity_bytes: 7,
            api: Some("http://127.0.0.1:1/".into()),
            token_file: "/nonexistent".into(),
            ca: "/nonexistent".into(),
        })
    }

    fn member(endpoint: &str) -> Result<Member, String> {
        api("http://{address}:8080")
            .unwrap()
            .member(&serde_json::from_str(endpoint).unwrap())
    }

    #[test]
    fn endpoints_become_members() {
        let node = r#"{"addresses":["10.0.0.7"],"conditions":{"ready":true},"nodeName":"node-7","zone":"a"}"#;
        let node = member(node).unwrap();
        assert_eq!(
            (&node.name[..], &node.url[..], &node.zone[..]),
            ("node-7", "http://10.0.0.7:8080", "a")
        );
        assert!(node.takes_players() && node.capacity_bytes == 7);
        let sick = member(
            r#"{"addresses":["10.0.0.7"],"conditions":{"ready":false},"targetRef":{"name":"pod-1"}}"#,
        );
        let sick = sick.unwrap();
        assert!(sick.name == "pod-1" && !sick.takes_players() && sick.takes_content());
        let leaving =
            r#"{"addresses":["2001:db8::7"],"conditions":{"ready":false,"terminating":true}}"#;
        let leaving = member(leaving).unwrap();
        assert_eq!(
            (&leaving.name[..], &leaving.url[..]),
            ("2001-db8--7", "http://[2001:db8::7]:8080")
        );
        assert_eq!(leaving.state, State::Draining);
        let unknown = member(r#"{"addresses":["10.0.0.7"],"nodeName":"n"}"#).unwrap();
        assert!(unknown.takes_players());
        assert!(member("{}").is_err());
        assert!(member(r#"{"addresses":["10.0.0.7"],"nodeName":"a b"}"#).is_err());
    }

    #[test]
    fn the_token_is_read_for_each_request_and_sent_over_tls_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let certificate = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap();
        fs::write(path("ca"), certificate.cert.pem()).unwrap();
        let authorization = |api: &str| {
            let api = Api::new(&KubernetesSettings {
                service: "edges".into(),
                namespace: Some("video".into()),
                url: "http://{address}".into(),
                capacity_bytes: 7,
                api: Some(api.to_owned()),
                token_file: path("token"),
                ca: path("ca"),
            });
            let request = api.unwrap().request("")?.build().unwrap();
            let field = request.headers().get("authorization");
            Ok::<_, RegistryError>(field.map(|it| it.to_str().unwrap().to_owned()))
        };
        for token in ["secret", "newer"] {
            fs::write(path("token"), format!("{token}\n")).unwrap();
            let sent = authorization("https://127.0.0.1:1").unwrap();
            assert_eq!(sent, Some(format!("Bearer {token}")));
            assert_eq!(authorization("http://127.0.0.1:1").unwrap(), None);
        }
        fs::remove_file(path("token")).unwrap();
        let error = authorization("https://127.0.0.1:1").unwrap_err();
        assert!(error.to_string().contains("token: No such file"), "{error}");
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        assert!(
            api("http://edge:8080")
                .unwrap_err()
                .to_string()
                .contains("{address}")
        );
        assert!(api("https://{name}.example").is_ok());
    }
}
