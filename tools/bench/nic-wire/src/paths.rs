//! What is asked: paths, in one shuffled order, each once a pass.
//!
//! It refuses paths that cannot stand in a request line. Each pass has the order of the first, so
//! that no path is asked for again before all others had their turn. Bounded by [`PATHS_MAX`].

use anyhow::{Result, ensure};

use testbed::random::Random;

/// Most paths of a run.
pub const PATHS_MAX: usize = 1 << 20;

/// Longest path, bytes: a request fits one segment.
pub const PATH_BYTES_MAX: usize = 1024;

/// The paths of a run and whose turn it is.
#[derive(Debug)]
pub struct Paths {
    requests: Vec<Box<str>>,
    /// Where in each request its path ends.
    path_ends: Vec<u16>,
    /// Bytes of each object.
    sizes: Vec<u64>,
    order: Vec<u32>,
    next: usize,
    passes_begun: u64,
    passes_max: u64,
    /// What visitors ask for.
    visit: Option<u32>,
}

const METHOD: &str = "GET ";

impl Paths {
    /// All paths of a run, with the bytes of the objects there.
    ///
    /// # Errors
    /// A path that cannot be asked for; none, or too many of them.
    pub fn new(
        objects: &[(String, u64)],
        host: &str,
        (seed, passes_max): (u64, u64),
    ) -> Result<Self> {
        let count = objects.len();
        ensure!(
            (1..=PATHS_MAX).contains(&count),
            "{count} paths; 1 to {PATHS_MAX} can be asked"
        );
        let mut path_ends = Vec::with_capacity(count);
        let mut requests = Vec::with_capacity(count);
        for (path, _) in objects {
            let (request, path_end) = request(path, host)?;
            path_ends.push(path_end);
            requests.push(request);
        }
        let mut order: Vec<u32> = (0..u32::try_from(count)?).collect();
        Random::new(seed).shuffle(&mut order);
        Ok(Self {
            requests,
            path_ends,
            sizes: objects.iter().map(|(_, bytes)| *bytes).collect(),
            order,
            next: 0,
            passes_begun: 0,
            passes_max,
            visit: None,
        })
    }

    /// One more, which has no turn: visitors ask for it.
    ///
    /// # Errors
    /// A path that cannot be asked for.
    pub fn add_visit(&mut self, path: &str, bytes: u64, host: &str) -> Result<()> {
        let (request, path_end) = request(path, host)?;
        self.visit = Some(u32::try_from(self.requests.len())?);
        self.sizes.push(bytes);
        self.requests.push(request);
        self.path_ends.push(path_end);
        Ok(())
    }

    /// What visitors ask for.
    #[must_use]
    pub const fn visit(&self) -> Option<u32> {
        self.visit
    }

    /// The path whose turn it is.
    pub fn take_next(&mut self) -> Option<u32> {
        if self.next == self.order.len() || self.passes_begun == 0 {
            if self.passes_begun == self.passes_max {
                return None;
            }
            self.passes_begun += 1;
            self.next = 0;
        }
        self.next += 1;
        self.order.get(self.next - 1).copied()
    }

    /// Whether there is nothing left to ask.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.passes_begun == self.passes_max && self.next == self.order.len()
    }

    /// The request for a path.
    #[must_use]
    pub fn request(&self, path: u32) -> &str {
        let found = self.requests.get(path as usize);
        found.map_or("", |it| it)
    }

    /// A path itself.
    #[must_use]
    pub fn path(&self, path: u32) -> &str {
        let end = self.path_ends.get(path as usize).copied().unwrap_or(0);
        let request = self.request(path);
        request.get(METHOD.len()..end.into()).unwrap_or("")
    }

    /// Bytes of the object at a path.
    #[must_use]
    pub fn size(&self, path: u32) -> u64 {
        self.sizes.get(path as usize).copied().unwrap_or(0)
    }

    /// Passes begun: above 1, some were asked for more than once.
    #[must_use]
    pub const fn passes_begun(&self) -> u64 {
        self.passes_begun
    }
}

/// The request for a path, and where the path ends in it.
fn request(path: &str, host: &str) -> Result<(Box<str>, u16)> {
    let is_sound = path.starts_with('/') && path.bytes().all(|it| it.is_ascii_graphic());
    ensure!(
        is_sound,
        "the path {path:?} is not an encoded path that begins with a slash"
    );
    ensure!(
        path.len() <= PATH_BYTES_MAX,
        "a path of {} bytes",
        path.len()
    );
    let request = format!("{METHOD}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    Ok((request.into(), u16::try_from(METHOD.len() + path.len())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(passes_max: u64) -> Paths {
        let objects = [0, 1, 2, 3].map(|it| (format!("/o{it}.bin"), it + 1));
        Paths::new(&objects, "a", (7, passes_max)).expect("sound")
    }

    #[test]
    fn each_pass_asks_each_path_once_in_one_order() {
        let mut paths = four(2);
        let asked: Vec<u32> = std::iter::from_fn(|| paths.take_next()).collect();
        let (first, second) = asked.split_at(4);
        assert_eq!(first, second);
        let mut sorted = first.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
        assert!(paths.is_over());
        assert_eq!(paths.passes_begun(), 2);
    }

    #[test]
    fn a_request_names_its_path_and_the_host() {
        let paths = four(1);
        assert_eq!(paths.request(2), "GET /o2.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((paths.path(2), paths.size(2)), ("/o2.bin", 3));
        assert!(!paths.is_over());
    }

    #[test]
    fn what_visitors_ask_for_has_no_turn_and_a_size_of_its_own() {
        let mut paths = four(1);
        assert_eq!(paths.visit(), None);
        paths.add_visit("/v", 9, "a").expect("sound");
        assert_eq!((paths.visit(), paths.path(4)), (Some(4), "/v"));
        assert_eq!((paths.size(4), paths.size(2)), (9, 3));
        let asked = std::iter::from_fn(|| paths.take_next());
        assert!(asked.into_iter().all(|it| it < 4));
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let new = |path: &str| Paths::new(&[(path.to_owned(), 1)], "a", (1, 1));
        assert!(new("/a b").is_err() && new("a").is_err());
        assert!(new(&format!("/{}", "a".repeat(PATH_BYTES_MAX))).is_err());
        assert!(new(&format!("/{}", "a".repeat(PATH_BYTES_MAX - 1))).is_ok());
        assert!(Paths::new(&[], "a", (1, 1)).is_err());
    }
}
