//! A content steering manifest, one document for HLS and DASH.
//!
//! Of HLS it is that of draft-pantos-hls-rfc8216bis, section 7; of DASH that of ETSI TS 103 998. The two differ in one
//! name: `PATHWAY-PRIORITY` is what both have now, `SERVICE-LOCATION-PRIORITY` what DASH-IF's draft had, which players
//! still read. Names that a player does not know it passes over, so both are there.
//!
//! Playlists need not name the edges. Each edge is a clone of the pathway that the playlist has (`BASE-ID`), with
//! another host. What a clone cannot change is the scheme and the path, so edges have neither of their own.

use serde::Serialize;

/// The only version there is.
const VERSION: u8 = 1;

/// A manifest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct Manifest {
    version: u8,
    ttl: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reload_uri: Option<String>,
    pathway_priority: Vec<String>,
    service_location_priority: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pathway_clones: Vec<PathwayClone>,
}

/// A pathway that is another one with a different host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct PathwayClone {
    #[serde(rename = "BASE-ID")]
    base_id: String,
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "URI-REPLACEMENT")]
    uri_replacement: Replacement,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Replacement {
    #[serde(rename = "HOST")]
    host: String,
}

/// What all manifests of a fleet have.
#[derive(Clone, Debug)]
pub struct Form {
    /// Seconds after which players ask again: an edge that leaves has no new players after that.
    pub ttl_seconds: u32,
    /// The pathway that playlists have, and edges are clones of.
    pub base_pathway: String,
    /// Where to ask next, with `{path}` for the path; without it players ask where they asked before.
    pub reload_uri: Option<String>,
}

impl Form {
    /// The manifest that sends players to these edges, name and host, in this order, and last of all to where the
    /// playlist itself leads.
    #[must_use]
    pub fn manifest<'a>(
        &self,
        path: &str,
        edges: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Manifest {
        let clones = edges.map(|(name, host)| PathwayClone {
            base_id: self.base_pathway.clone(),
            id: name.to_owned(),
            uri_replacement: Replacement {
                host: host.to_owned(),
            },
        });
        let clones: Vec<PathwayClone> = clones.collect();
        let names = clones.iter().map(|clone| clone.id.clone());
        let priority: Vec<String> = names.chain([self.base_pathway.clone()]).collect();
        let reload_uri = self.reload_uri.as_ref();
        Manifest {
            version: VERSION,
            ttl: self.ttl_seconds,
            reload_uri: reload_uri.map(|it| it.replace("{path}", &crate::request::encoded(path))),
            service_location_priority: priority.clone(),
            pathway_priority: priority,
            pathway_clones: clones,
        }
    }
}

impl Manifest {
    /// Whether it has an edge in it.
    #[must_use]
    pub fn has_edges(&self) -> bool {
        !self.pathway_clones.is_empty()
    }

    /// Its JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("invariant: names have JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form() -> Form {
        Form {
            ttl_seconds: 10,
            base_pathway: ".".to_owned(),
            reload_uri: None,
        }
    }

    #[test]
    fn players_of_both_kinds_find_their_names() {
        let edges = [("e1", "e1.example:8443"), ("e2", "e2.example")];
        let json = form().manifest("/film", edges.into_iter()).to_json();
        let wanted = concat!(
            r#"{"VERSION":1,"TTL":10,"PATHWAY-PRIORITY":["e1","e2","."],"#,
            r#""SERVICE-LOCATION-PRIORITY":["e1","e2","."],"PATHWAY-CLONES":["#,
            r#"{"BASE-ID":".","ID":"e1","URI-REPLACEMENT":{"HOST":"e1.example:8443"}},"#,
            r#"{"BASE-ID":".","ID":"e2","URI-REPLACEMENT":{"HOST":"e2.example"}}]}"#,
        );
        assert_eq!(json, wanted);
    }

    #[test]
    fn without_an_edge_players_stay_with_the_playlist_and_may_be_told_whom_to_ask_next() {
        let form = Form {
            reload_uri: Some("https://s.example/steer?path={path}".to_owned()),
            ..form()
        };
        let json = form.manifest("/a b&c", std::iter::empty()).to_json();
        let wanted = concat!(
            r#"{"VERSION":1,"TTL":10,"RELOAD-URI":"https://s.example/steer?path=/a%20b%26c","#,
            r#""PATHWAY-PRIORITY":["."],"SERVICE-LOCATION-PRIORITY":["."]}"#,
        );
        assert_eq!(json, wanted);
    }
}
