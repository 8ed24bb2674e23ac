//! Objects that are read by name, including objects that cannot be decoded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kubelet_attestation::errors::error_chain;
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::unshared::Unshared;

use super::super::api_discovery::FetchError;
use super::super::objects::{Fields, Kept, Reference};
use super::CapiInventory;
use crate::watch::ReadAlone;

/// The time for which an object is reported after its last read. An object that an answer needs is read again much
/// earlier. If an object is not read again, it might have been deleted with its Machine.
const REPORTED: Duration = Duration::from_mins(10);

/// The maximum number of reported objects for one Cluster. The kind and the name of each object use a few hundred
/// bytes.
const MAX_REPORTED: usize = 100;

/// The objects of one Cluster that cannot be decoded, with the times of the last reads.
#[derive(Debug, Default)]
pub(super) struct Undecoded(Unshared<BTreeMap<Reference, Instant>>);

impl Undecoded {
    /// Records whether the object can be decoded.
    fn note(&self, reference: &Reference, is_undecoded: bool, now: Instant) {
        let mut known = self.0.lock();
        if !is_undecoded {
            known.remove(reference);
        } else if known.len() < MAX_REPORTED || known.contains_key(reference) {
            known.insert(reference.clone(), now);
        }
    }

    /// The first object, and the number of other objects.
    fn named(&self, now: Instant) -> Option<String> {
        let mut known = self.0.lock();
        known.retain(|_, read| now.duration_since(*read) < REPORTED);
        let (Reference { kind, name, .. }, _) = known.first_key_value()?;
        Some(match known.len().saturating_sub(1) {
            0 => format!("cannot read {kind} {name}"),
            others => format!("cannot read {kind} {name} and {others} more"),
        })
    }
}

impl CapiInventory {
    /// The first `KubeadmConfig` or infrastructure object that cannot be decoded, and the number of other objects.
    pub(crate) fn undecoded(&self) -> Option<String> {
        self.undecoded.named(Instant::now())
    }

    /// Reads an object, and records whether it can be decoded.
    pub(super) async fn try_fetch<K: Kept>(
        &self,
        reference: &Reference,
    ) -> Result<Option<K>, FetchError>
    where
        Fields<K>: ReadAlone,
    {
        let found = self.objects.fetch(&self.cluster.namespace, reference).await;
        let is_undecoded = matches!(&found, Err(FetchError::Call(kube::Error::SerdeError(_))));
        self.undecoded.note(reference, is_undecoded, Instant::now());
        found
    }

    pub(super) async fn fetch<K: Kept>(
        &self,
        reference: &Reference,
    ) -> Result<Option<K>, Unavailable>
    where
        Fields<K>: ReadAlone,
    {
        let found = self.try_fetch(reference).await;
        found.map_err(|error| unread(reference, &error))
    }
}

pub(super) fn unread(reference: &Reference, error: &FetchError) -> Unavailable {
    let Reference { kind, name, .. } = reference;
    let error = error_chain(error);
    Unavailable::new(format!("cannot read {kind} {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str) -> Reference {
        Reference {
            group: "bootstrap.cluster.x-k8s.io".to_owned(),
            version: None,
            kind: "KubeadmConfig".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn undecoded_objects_are_named_until_they_are_read_or_forgotten() {
        let undecoded = Undecoded::default();
        let now = Instant::now();
        let named = |after| undecoded.named(now + after);
        assert_eq!(named(Duration::ZERO), None);
        for name in ["a", "b", "c"] {
            undecoded.note(&reference(name), true, now);
        }
        let expected = "cannot read KubeadmConfig a and 2 more";
        assert_eq!(named(Duration::ZERO).as_deref(), Some(expected));

        undecoded.note(&reference("a"), false, now);
        let expected = "cannot read KubeadmConfig b and 1 more";
        assert_eq!(named(Duration::ZERO).as_deref(), Some(expected));
        undecoded.note(&reference("c"), true, now + Duration::from_secs(1));

        assert_eq!(
            named(REPORTED).as_deref(),
            Some("cannot read KubeadmConfig c")
        );
        assert_eq!(named(2 * REPORTED), None);
    }

    #[test]
    fn undecoded_objects_of_a_cluster_are_limited() {
        let undecoded = Undecoded::default();
        let now = Instant::now();

        for number in 0..10 * MAX_REPORTED {
            undecoded.note(&reference(&number.to_string()), true, now);
        }

        let named = undecoded.named(now).unwrap();
        assert!(named.ends_with(" and 99 more"), "{named}");
    }
}
