//! The places for clusters in each namespace. The oldest clusters get a place, up to a limit.

use std::collections::BTreeMap;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;

use node_attestation_core::crd::KubeletAuthentication;
use tokio::sync::watch;

use crate::capi::ObjectKey;
use crate::shared::{Lock, Shared, visit};

/// The places in all namespaces. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The maximum number of served clusters in one namespace.
    limit: NonZeroUsize,
    namespaces: Arc<Shared<BTreeMap<String, Namespace>>>,
}

/// The creation time (in seconds since 1970) and the name of a `KubeletAuthentication`. The name ensures that the order
/// does not change after a restart.
type Age = (i64, String);

/// The clusters in a namespace, and the channels that report whether each cluster has a place.
#[derive(Debug, Default)]
struct Namespace {
    placed: BTreeMap<Age, watch::Sender<bool>>,
    others: BTreeMap<Age, watch::Sender<bool>>,
}

/// A cluster's claim to a place. Dropping it releases the place.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    namespace: String,
    age: Age,
    is_placed: watch::Receiver<bool>,
}

/// The creation time in seconds since 1970.
pub(super) fn created(authentication: &KubeletAuthentication) -> i64 {
    let created = authentication.metadata.creation_timestamp.as_ref();
    created.map_or(i64::MAX, |time| time.0.as_second())
}

impl Places {
    pub(super) fn new(limit: NonZeroUsize) -> Self {
        Self {
            limit,
            namespaces: Arc::new(Shared::new(Lock::Places, BTreeMap::new())),
        }
    }

    /// Registers the cluster with this `KubeletAuthentication` for a place.
    pub(super) fn place(&self, key: &ObjectKey, authentication: &KubeletAuthentication) -> Place {
        let age = (created(authentication), key.name.clone());
        let (sender, is_placed) = watch::channel(false);
        self.namespaces.write(|namespaces| {
            let namespace = namespaces.entry(key.namespace.clone()).or_default();
            namespace.others.insert(age.clone(), sender);
            namespace.settle(self.limit.get());
        });
        Place {
            places: self.clone(),
            namespace: key.namespace.clone(),
            age,
            is_placed,
        }
    }
}

impl Namespace {
    /// Assigns free places to the oldest clusters without a place, and moves places from younger to older clusters. A
    /// change to one cluster affects at most one other cluster.
    fn settle(&mut self, limit: usize) {
        while let Some(oldest) = self.others.first_entry() {
            visit();
            if self.placed.len() >= limit {
                let Some(youngest) = self.placed.last_entry() else {
                    return;
                };
                if youngest.key() < oldest.key() {
                    return;
                }
                let (age, sender) = youngest.remove_entry();
                let (older, placed) = oldest.remove_entry();
                sender.send_replace(false);
                placed.send_replace(true);
                self.placed.insert(older, placed);
                self.others.insert(age, sender);
                return;
            }
            let (age, sender) = oldest.remove_entry();
            sender.send_replace(true);
            self.placed.insert(age, sender);
        }
    }
}

impl Place {
    pub(super) fn is_placed(&self) -> bool {
        *self.is_placed.borrow()
    }

    /// The maximum number of clusters in the namespace.
    pub(super) fn limit(&self) -> NonZeroUsize {
        self.places.limit
    }

    /// Waits until the cluster gets a place, or loses it.
    pub(super) async fn changed(&mut self) {
        if self.is_placed.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.namespaces.write(|namespaces| {
            let Some(namespace) = namespaces.get_mut(&self.namespace) else {
                return;
            };
            namespace.placed.remove(&self.age);
            namespace.others.remove(&self.age);
            namespace.settle(self.places.limit.get());
            if namespace.placed.is_empty() {
                namespaces.remove(&self.namespace);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use node_attestation_core::crd::KubeletAuthenticationSpec;

    use super::*;
    use crate::shared::testing::most_visited;

    fn places() -> Places {
        Places::new(NonZeroUsize::new(2).unwrap())
    }

    /// The place that a cluster with this creation time gets.
    fn place(places: &Places, namespace: &str, name: &str, created: i64) -> Place {
        let spec = KubeletAuthenticationSpec::new(name, &["aws"]);
        let mut authentication = KubeletAuthentication::new(name, spec);
        let created = Timestamp::from_second(created).unwrap();
        authentication.metadata.creation_timestamp = Some(Time(created));
        places.place(&ObjectKey::new(namespace, name), &authentication)
    }

    #[test]
    fn the_oldest_clusters_of_a_namespace_are_served() {
        let expected = [true, true, false, false];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let places = places();
            let mut arrived: Vec<_> = order
                .into_iter()
                .map(|created| place(&places, "tenant-a", &created.to_string(), created))
                .collect();
            arrived.sort_by(|one, other| one.age.cmp(&other.age));

            let served: Vec<_> = arrived.iter().map(Place::is_placed).collect();
            assert_eq!(served, expected, "{order:?}");
        }
    }

    #[test]
    fn a_released_place_is_assigned_to_the_oldest_waiting_cluster() {
        let places = places();
        let first = place(&places, "tenant-a", "first", 1);
        let second = place(&places, "tenant-a", "second", 2);
        let fourth = place(&places, "tenant-a", "fourth", 4);
        let third = place(&places, "tenant-a", "third", 3);
        assert!(!third.is_placed() && !fourth.is_placed());

        drop(first);

        assert!(second.is_placed() && third.is_placed());
        assert!(!fourth.is_placed());
        drop((second, third, fourth));
        assert!(places.namespaces.read(BTreeMap::is_empty));
    }

    #[test]
    fn a_namespace_does_not_use_the_places_of_another() {
        let places = places();
        let names = (0..10).map(|number| number.to_string());
        let flood: Vec<_> = names
            .map(|name| place(&places, "tenant-a", &name, 1))
            .collect();

        let victim = place(&places, "tenant-b", "prod-1", 2);

        assert!(victim.is_placed());
        let served = flood.iter().filter(|place| place.is_placed());
        assert_eq!(served.count(), 2);
    }

    #[test]
    fn the_assignment_of_a_place_visits_few_of_many_clusters() {
        let places = Places::new(NonZeroUsize::new(1000).unwrap());
        let all =
            (1..=2000).map(|created| place(&places, "tenant-a", &created.to_string(), created));
        let mut all: Vec<Place> = all.collect();

        let visited = most_visited(|| {
            let oldest = place(&places, "tenant-a", "oldest", 0);
            assert!(oldest.is_placed());
            drop((oldest, all.remove(0)));
        });

        assert!(visited[&Lock::Places] <= 2, "{visited:?}");
    }
}
