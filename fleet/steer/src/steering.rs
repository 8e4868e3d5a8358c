//! From a question to the edges that answer it, by the newest view of the registry.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use placement::{Choice, Fleet, Member};
use registry::{Freshness, View};
use serde::Serialize;

use crate::manifest::{Form, Manifest};
use crate::networks::{Networks, client_network};
use crate::request::Question;
use crate::settings::Settings;

/// What is answered by, until the registry says something else.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The members and what they hold.
    pub fleet: Fleet,
    /// How fresh that is.
    pub freshness: Freshness,
}

/// A fleet that players are steered over.
#[derive(Debug)]
pub struct Steering {
    form: Form,
    networks: Networks,
    pathways_max: usize,
    origin: Option<String>,
    snapshot: RwLock<Arc<Snapshot>>,
}

/// The edges for a path, as `/resolve` tells them.
#[derive(Debug, Serialize)]
pub struct Resolution<'a> {
    path: &'a str,
    title: &'a str,
    copies: usize,
    /// `current`, `last-known` or `waiting`.
    members: &'static str,
    edges: Vec<Edge<'a>>,
}

#[derive(Debug, Serialize)]
struct Edge<'a> {
    name: &'a str,
    url: &'a str,
    zone: &'a str,
    holder: bool,
    load: f64,
}

impl Steering {
    /// A fleet of nobody yet.
    ///
    /// # Errors
    /// Settings that [`Settings::parse`] refuses.
    pub fn new(settings: &Settings) -> anyhow::Result<Self> {
        let snapshot = Snapshot {
            fleet: Fleet::new(Arc::default(), settings.layout.clone())?,
            freshness: Freshness::Waiting,
        };
        Ok(Self {
            form: settings.form(),
            networks: Networks::new(&settings.network)?,
            pathways_max: settings.steer.pathways_max,
            origin: settings.steer.origin.clone(),
            snapshot: RwLock::new(Arc::new(snapshot)),
        })
    }

    /// Takes what the registry says now.
    pub fn take(&self, view: &View) {
        let layout = self.snapshot().fleet.layout().clone();
        let fleet = Fleet::new(Arc::clone(&view.members), layout);
        let snapshot = Snapshot {
            fleet: fleet.expect("invariant: the layout was checked"),
            freshness: view.freshness.clone(),
        };
        *self
            .snapshot
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// What is answered by now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn choices(
        &self,
        snapshot: &Snapshot,
        question: &Question,
        peer: Option<IpAddr>,
    ) -> Vec<Choice> {
        let address = question.client.or(peer);
        let zones = match &question.zone {
            Some(zone) => std::slice::from_ref(zone),
            None => address.map_or(&[][..], |address| self.networks.zones(address)),
        };
        let client = address.map(client_network).unwrap_or_default();
        // Without a path there is no title by which clients could spread: each network is one.
        let path = if question.path.is_empty() {
            &client
        } else {
            &question.path
        };
        snapshot
            .fleet
            .choices(path, zones, &client, self.pathways_max)
    }

    /// The manifest for a question of a client with this address, if it has one that is known.
    #[must_use]
    pub fn manifest(&self, question: &Question, peer: Option<IpAddr>) -> Manifest {
        let snapshot = self.snapshot();
        let choices = self.choices(&snapshot, question, peer);
        let members = choices.iter().map(|it| &snapshot.fleet.members()[it.index]);
        let edges = members.map(|member: &Member| (&member.name[..], member.host()));
        self.form.manifest(&question.path, edges)
    }

    /// The same as JSON for programs.
    #[must_use]
    pub fn resolve(&self, question: &Question, peer: Option<IpAddr>) -> String {
        let snapshot = self.snapshot();
        let choices = self.choices(&snapshot, question, peer);
        let edges = choices.iter().map(|choice| {
            let member = &snapshot.fleet.members()[choice.index];
            Edge {
                name: &member.name,
                url: &member.url,
                zone: &member.zone,
                holder: choice.is_holder,
                load: member.load,
            }
        });
        let place = snapshot.fleet.layout().place(&question.path);
        let resolution = Resolution {
            path: &question.path,
            title: place.title,
            copies: place.copies,
            members: name_of(&snapshot.freshness),
            edges: edges.collect(),
        };
        serde_json::to_string(&resolution).expect("invariant: names and loads have JSON")
    }

    /// Where to redirect to: the first edge, or the origin while there is none. `rest` is the path and query as sent.
    #[must_use]
    pub fn redirect(
        &self,
        question: &Question,
        rest: &str,
        peer: Option<IpAddr>,
    ) -> Option<String> {
        let snapshot = self.snapshot();
        let first = self.choices(&snapshot, question, peer).into_iter().next();
        let edge = first.map(|choice| &snapshot.fleet.members()[choice.index].url);
        let base = edge.or(self.origin.as_ref())?;
        Some(format!("{}{rest}", base.trim_end_matches('/')))
    }
}

/// How fresh members are, as the services tell it.
#[must_use]
pub fn name_of(freshness: &Freshness) -> &'static str {
    match freshness {
        Freshness::Waiting => "waiting",
        Freshness::Current => "current",
        Freshness::LastKnown { .. } => "last-known",
    }
}
