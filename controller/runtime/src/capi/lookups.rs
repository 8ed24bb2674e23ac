//! Lookups of facts about kinds, such as their resources. All namespaces share the results.
//!
//! # Guarantees
//!
//! - Only callers from the same namespace wait for a lookup in progress, because a namespace can cause so many lookups
//!   that they take a long time.
//! - For each namespace, the number of lookups that are in progress or found nothing is limited, because a tenant can
//!   refer to any kind.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Error;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::shared::{Lent, Loan, Lock, Shared, Swept, visit};

/// The group, the version if it is known, and the kind or its plural.
pub(crate) type Kind = (String, Option<String>, String);

/// The time for which a lookup that found nothing is not repeated. Each lookup takes a few calls.
pub(super) const NOT_FOUND: Duration = Duration::from_secs(30);

/// For each namespace, the maximum number of lookups that are in progress or found nothing. Ordinary objects refer to
/// fewer kinds.
pub(super) const MAX_OF_NAMESPACE: usize = 64;

/// The results of lookups, and the lookups in progress.
#[derive(Debug)]
pub(crate) struct Lookups<V> {
    /// The time for which a result is kept.
    kept: Duration,
    /// The results. Their number depends only on the API server.
    found: Shared<Swept<Kind, Dated<V>>>,
    /// For each namespace, the lookups that are in progress or found nothing.
    unfound: Shared<Swept<String, OfNamespace<V>>>,
}

/// A value, and the time at which it was read.
#[derive(Debug)]
struct Dated<T> {
    value: T,
    at: Instant,
}

type Lookup<V> = OnceCell<Dated<Option<V>>>;

#[derive(Debug)]
struct OfNamespace<V> {
    lookups: BTreeMap<Kind, Lent<Lookup<V>>>,
    /// The time of the last lookup.
    last: Instant,
}

impl<V: Clone> Lookups<V> {
    /// Creates an empty set that keeps each result for this time.
    pub(crate) fn new(kept: Duration) -> Self {
        Self {
            kept,
            found: Shared::new(Lock::Lookups, Swept::default()),
            unfound: Shared::new(Lock::Lookups, Swept::default()),
        }
    }

    /// The result for this kind, from an earlier lookup or from `look_up`. `None` if the lookup found nothing, or if
    /// the namespace has too many other lookups. In both cases, a later call repeats the lookup.
    ///
    /// # Errors
    ///
    /// Returns the lookup's error. The next call repeats the lookup.
    pub(crate) async fn get<F>(
        &self,
        namespace: &str,
        kind: &Kind,
        look_up: impl FnOnce() -> F,
    ) -> Result<Option<V>, Error>
    where
        F: Future<Output = Result<Option<V>, Error>>,
    {
        let known = self.found.read(|found| {
            let known = found.get(kind)?;
            (known.at.elapsed() < self.kept).then(|| known.value.clone())
        });
        if known.is_some() {
            return Ok(known);
        }
        let Some(shared) = self.lookup(namespace, kind) else {
            return Ok(None);
        };
        // Concurrent callers from the same namespace share one lookup.
        let looked_up = shared.get_or_try_init(|| async move {
            let value = look_up().await?;
            let at = Instant::now();
            Ok::<_, Error>(Dated { value, at })
        });
        let result = looked_up.await.map(|found| found.value.clone());
        if let Ok(Some(value)) = &result {
            self.keep(kind, value.clone());
        }
        if !matches!(result, Ok(None)) {
            self.end(namespace, kind, &shared);
        }
        result
    }

    /// Removes the result for this kind, so that the next caller looks it up again.
    pub(crate) fn forget(&self, kind: &Kind) {
        drop(self.found.write(|found| found.remove(kind)));
    }

    fn keep(&self, kind: &Kind, value: V) {
        let at = Instant::now();
        let is_old = |_: &_, found: &mut Dated<V>| found.at.elapsed() >= self.kept;
        let put = |found: &mut Swept<Kind, Dated<V>>| {
            found.insert(kind.clone(), Dated { value, at }, is_old)
        };
        drop(self.found.write(put));
    }

    /// The lookup for a namespace. `None` if the namespace has too many other lookups.
    fn lookup(&self, namespace: &str, kind: &Kind) -> Option<Loan<Lookup<V>>> {
        let is_over = |lookup: &Lent<Lookup<V>>| match lookup.get() {
            Some(found) => found.at.elapsed() >= NOT_FOUND,
            // The caller abandoned the lookup.
            None => !lookup.is_lent(),
        };
        let is_idle = |_: &_, one: &mut OfNamespace<V>| one.last.elapsed() >= NOT_FOUND;
        let new = || OfNamespace {
            lookups: BTreeMap::new(),
            last: Instant::now(),
        };
        self.unfound.write(|namespaces| {
            let of_namespace = namespaces.get_or_insert_with(namespace.to_owned(), is_idle, new);
            of_namespace.last = Instant::now();
            let lookups = &mut of_namespace.lookups;
            if let Some(known) = lookups.get(kind)
                && !is_over(known)
            {
                return Some(known.lend());
            }
            lookups.retain(|_, lookup| {
                visit();
                !is_over(lookup)
            });
            if lookups.len() >= MAX_OF_NAMESPACE {
                return None;
            }
            let new = Lent::new(Lookup::<V>::default());
            let loan = new.lend();
            lookups.insert(kind.clone(), new);
            Some(loan)
        })
    }

    /// Removes a lookup that has a result or has failed.
    fn end(&self, namespace: &str, kind: &Kind, lookup: &Loan<Lookup<V>>) {
        self.unfound.write(|namespaces| {
            let Some(of_namespace) = namespaces.get_mut(namespace) else {
                return;
            };
            let known = of_namespace.lookups.get(kind);
            if known.is_some_and(|known| known.has_lent(lookup)) {
                of_namespace.lookups.remove(kind);
            }
        });
    }

    /// The number of lookups for this namespace that are in progress or found nothing.
    #[cfg(test)]
    pub(super) fn unfound_of(&self, namespace: &str) -> usize {
        self.unfound.read(|namespaces| {
            let of_namespace = namespaces.get(namespace);
            of_namespace.map_or(0, |one| one.lookups.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use futures::FutureExt as _;
    use tokio::time::advance;

    use super::*;
    use crate::shared::testing::most_visited;

    fn kind(number: usize) -> Kind {
        let group = "infrastructure.cluster.x-k8s.io".to_owned();
        (group, None, format!("Rack{number}"))
    }

    #[tokio::test]
    async fn a_hanging_lookup_of_a_kind_does_not_delay_other_namespaces() {
        let lookups = Lookups::new(Duration::MAX);
        let kind = kind(0);
        let mut hanging = Box::pin(lookups.get("flood", &kind, pending));
        assert!(hanging.as_mut().now_or_never().is_none());

        let found = lookups.get("other", &kind, || ready(Ok(Some(7))));
        assert_eq!(found.now_or_never().unwrap().unwrap(), Some(7));

        // All namespaces share the result.
        let found = lookups.get("flood", &kind, pending);
        assert_eq!(found.now_or_never().unwrap().unwrap(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_looks_up_few_of_many_unknown_kinds() {
        let (lookups, made) = (Lookups::new(Duration::MAX), Cell::new(0));
        let look_up = async |namespace: &str, number: usize, result: Option<u8>| {
            let look_up = || {
                made.set(made.get() + 1);
                ready(Ok(result))
            };
            let found = lookups.get(namespace, &kind(number), look_up).await;
            assert_eq!(found.unwrap(), result);
        };
        for number in 1..1000 {
            look_up("flood", number, None).await;
        }
        assert_eq!(made.get(), MAX_OF_NAMESPACE);

        look_up("other", 0, Some(7)).await;
        assert_eq!(made.get(), MAX_OF_NAMESPACE + 1);
        // A known kind needs no lookup.
        look_up("flood", 0, Some(7)).await;
        assert_eq!(made.get(), MAX_OF_NAMESPACE + 1);

        advance(NOT_FOUND).await;
        look_up("flood", 1000, None).await;
        assert_eq!(made.get(), MAX_OF_NAMESPACE + 2);
        assert_eq!(lookups.unfound_of("flood"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_a_lookup_is_repeated_when_it_is_too_old() {
        let lookups = Lookups::new(Duration::from_mins(10));
        let kind = kind(0);
        let look_up = async |value: u8| {
            let found = lookups.get("a", &kind, || ready(Ok(Some(value)))).await;
            found.unwrap().unwrap()
        };
        assert_eq!(look_up(1).await, 1);
        assert_eq!(look_up(2).await, 1);

        advance(Duration::from_mins(10)).await;

        assert_eq!(look_up(3).await, 3);
        lookups.forget(&kind);
        assert_eq!(look_up(4).await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_lookup_of_a_kind_visits_few_of_many_others() {
        let lookups = Lookups::<u8>::new(Duration::MAX);
        let names: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let of_each = names.iter().map(|name| lookups.lookup(name, &kind(0)));
        let of_one = (1..MAX_OF_NAMESPACE).map(|number| lookups.lookup("0", &kind(number)));
        let held: Vec<_> = of_each.chain(of_one).collect();
        assert!(held.iter().all(Option::is_some));
        for number in 0..1000 {
            lookups.keep(&kind(number), 7);
        }

        let visited = most_visited(|| {
            assert!(lookups.lookup("0", &kind(1000)).is_none());
            assert!(lookups.lookup("another", &kind(1000)).is_some());
            lookups.keep(&kind(1000), 7);
        });

        assert!(visited[&Lock::Lookups] <= MAX_OF_NAMESPACE, "{visited:?}");
    }
}
