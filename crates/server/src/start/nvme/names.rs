//! What PATH names, if it names NVMe controllers: `nvme:ADDRESS` or `nvme:ADDRESS/NAMESPACE`, several of them
//! joined by commas. The order does not matter: which device of the store each is, its superblock says.
//!
//! It refuses what is no such name, and a name that is there twice. Bounded by `volume::DEVICES_MAX` names.

use std::path::Path;
use std::str::FromStr as _;

use diskmap::vfio::PciAddress;
use volume::DEVICES_MAX;

use crate::failure::Failure;

/// How a namespace is named, instead of a path.
pub(super) const PREFIX: &str = "nvme:";

/// A namespace as it was named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedNamespace {
    /// The whole name, for messages.
    pub(super) name: String,
    /// Which of [`NvmeNames::addresses`] has it.
    pub(super) controller: usize,
    /// NSID; `None`: the only one of the controller.
    pub(super) id: Option<u32>,
}

/// What PATH names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::start) struct NvmeNames {
    /// Of the controllers, each once, in the order they were named in.
    pub(super) addresses: Vec<PciAddress>,
    pub(super) namespaces: Vec<NamedNamespace>,
}

impl NvmeNames {
    /// `None`: PATH names no controller.
    pub(in crate::start) fn parse(path: &Path) -> Option<Result<Self, Failure>> {
        let text = path.to_str().filter(|text| text.starts_with(PREFIX))?;
        Some(parse(text))
    }
}

fn parse(text: &str) -> Result<NvmeNames, Failure> {
    let mut names = NvmeNames {
        addresses: Vec::new(),
        namespaces: Vec::new(),
    };
    for name in text.split(',') {
        let refuse = |problem: String| {
            let remedy = "name nvme:ADDRESS or nvme:ADDRESS/NAMESPACE, such as nvme:0000:01:00.0/1";
            Failure::refused(format!("PATH {name}: {problem}"), remedy)
        };
        let rest = name.strip_prefix(PREFIX);
        let rest = rest.ok_or_else(|| refuse("the name of no NVMe controller".to_owned()))?;
        let (address, id) = match rest.split_once('/') {
            None => (rest, None),
            Some((address, number)) => match number.parse() {
                Ok(number) if number > 0 => (address, Some(number)),
                _ => return Err(refuse(format!("{number:?} is no namespace identifier"))),
            },
        };
        let address = PciAddress::from_str(address).map_err(|error| refuse(error.to_string()))?;
        let known = names.addresses.iter().position(|it| *it == address);
        let controller = known.unwrap_or_else(|| {
            names.addresses.push(address);
            names.addresses.len() - 1
        });
        let is_known = |it: &NamedNamespace| it.controller == controller && it.id == id;
        if names.namespaces.iter().any(is_known) {
            return Err(named_twice(name));
        }
        names.namespaces.push(NamedNamespace {
            name: name.to_owned(),
            controller,
            id,
        });
    }
    if names.namespaces.len() > DEVICES_MAX {
        return Err(Failure::refused(
            format!("PATH: {} namespaces are named", names.namespaces.len()),
            format!("a store has {DEVICES_MAX} at most"),
        ));
    }
    Ok(names)
}

/// Two names of one namespace.
pub(super) fn named_twice(name: &str) -> Failure {
    Failure::refused(
        format!("PATH {name}: named twice"),
        "name each namespace of the store once",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DEVICES_MAX, NvmeNames, PciAddress};

    type Parsed = (Vec<String>, Vec<(usize, Option<u32>)>);

    fn parse(text: &str) -> Result<Parsed, String> {
        let names = NvmeNames::parse(Path::new(text)).expect("a controller is named");
        let names = names.map_err(|error| error.to_string())?;
        let namespaces = names.namespaces.into_iter();
        Ok((
            names.addresses.iter().map(PciAddress::to_string).collect(),
            namespaces.map(|it| (it.controller, it.id)).collect(),
        ))
    }

    #[test]
    fn controllers_and_namespaces_are_named() {
        let (first, second) = ("0000:01:00.0", "0000:02:00.0");
        let owned = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        for (text, addresses, namespaces) in [
            ("nvme:0000:01:00.0", &[first][..], vec![(0, None)]),
            ("nvme:0000:01:00.0/1", &[first], vec![(0, Some(1))]),
            (
                "nvme:0000:01:00.0/2,nvme:0000:01:00.0/1",
                &[first],
                vec![(0, Some(2)), (0, Some(1))],
            ),
            (
                "nvme:0000:02:00.0,nvme:0000:01:00.0/1,nvme:0000:02:00.0/3",
                &[second, first],
                vec![(0, None), (1, Some(1)), (0, Some(3))],
            ),
        ] {
            assert_eq!(parse(text), Ok((owned(addresses), namespaces)));
        }
        assert!(NvmeNames::parse(Path::new("/dev/nvme0n1")).is_none());
        assert!(NvmeNames::parse(Path::new("./nvme:0000:01:00.0")).is_none());
    }

    #[test]
    fn what_is_no_name_is_refused_with_an_example() {
        for (text, problem) in [
            ("nvme:", "no PCI address"),
            ("nvme:01:00.0", "no PCI address"),
            ("nvme:0000:01:00.0/", "is no namespace identifier"),
            ("nvme:0000:01:00.0/0", "is no namespace identifier"),
            ("nvme:0000:01:00.0/4294967296", "is no namespace identifier"),
            (
                "nvme:0000:01:00.0,/dev/nvme0n1",
                "the name of no NVMe controller",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
            assert!(error.contains("such as nvme:0000:01:00.0/1"), "{error}");
        }
    }

    #[test]
    fn a_name_twice_is_refused() {
        for text in [
            "nvme:0000:01:00.0,nvme:0000:01:00.0",
            "nvme:0000:01:00.0/1,nvme:0000:02:00.0,nvme:0000:01:00.0/1",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("named twice"), "{error}");
        }
    }

    #[test]
    fn no_more_namespaces_are_named_than_a_store_has() {
        let names = |count: usize| {
            let name = |number| format!("nvme:0000:01:00.0/{number}");
            (1..=count).map(name).collect::<Vec<_>>().join(",")
        };
        assert!(parse(&names(DEVICES_MAX)).is_ok());
        let error = parse(&names(DEVICES_MAX + 1)).unwrap_err();
        assert!(error.contains("a store has 64 at most"), "{error}");
    }
}
