//! Lists single namespaces to find objects that were dropped because of a limit, but now fit.
//!
//! The watch of all namespaces continues during this list. During a list of all objects, the watch would stop, and all
//! requests would wait if the known objects were more than one minute old. Separate lists are necessary because a
//! tenant controls when its list is due, and how long it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::pending;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::Resource;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep_until};

use super::{Lenient, ReadAlone, page_of};
use crate::client::{CallError, Pages};

/// The minimum time between two lists of one namespace, because a tenant can cause lists.
const BETWEEN_LISTS: Duration = Duration::from_mins(10);

/// The minimum time between two lists of one namespace after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(15);

/// The maximum number of objects that change during a list and whose names are kept. A list takes seconds.
const MAX_CHANGED: usize = 10_000;

/// The pages of a list.
pub(crate) type PagesOf<T> = BoxStream<'static, Result<Vec<T>, CallError>>;

/// The pages of a list that uses this API.
pub(crate) fn pages_of<K, R>(api: Api<Lenient<K, R>>, wanted: ListParams) -> PagesOf<Lenient<K, R>>
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    let pages = stream::unfold(Some(Pages::new(wanted)), move |pages| {
        let api = api.clone();
        async move {
            let mut pages = pages?;
            let list = |page: ListParams| {
                let api = api.clone();
                async move { page_of(&api, &page).await }
            };
            match pages.next(list).await {
                Ok(page) => Some((Ok(page?), Some(pages))),
                Err(error) => Some((Err(error), None)),
            }
        }
    });
    pages.boxed()
}

/// The lists. Only one list runs at a time.
pub(crate) struct Recovery<T> {
    list: Option<List<T>>,
    /// The namespace of the next list, and the earliest time for it.
    next: Option<(Instant, String)>,
    /// The namespaces that were listed recently, with the earliest time for their next list.
    not_before: BTreeMap<String, Instant>,
    /// The namespace that was listed last. The next list is for the next due namespace after it, by name.
    last: Option<String>,
}

/// A list in progress.
struct List<T> {
    namespace: String,
    pages: PagesOf<T>,
    /// The objects that the watch has changed since the list started. The list can return earlier states of them.
    changed: BTreeSet<String>,
}

/// A step of a list.
pub(crate) enum RecoveryStep<T> {
    /// The list of this namespace is due.
    Due(String),
    /// A page of the list.
    Page(Vec<T>),
    /// The list has ended, either completely or with a failure.
    End,
}

impl<T> Default for Recovery<T> {
    fn default() -> Self {
        Self {
            list: None,
            next: None,
            not_before: BTreeMap::new(),
            last: None,
        }
    }
}

impl<T> Recovery<T> {
    /// Plans to list one of these namespaces. Replaces the previous plan.
    pub(crate) fn plan<'a>(&mut self, due: impl Iterator<Item = &'a str>) {
        let now = Instant::now();
        self.not_before.retain(|_, at| *at > now);
        let at = |namespace: &str| self.not_before.get(namespace).copied().unwrap_or(now);
        let last = self.last.as_deref();
        let is_later = |namespace: &str| last.is_some_and(|last| namespace <= last);
        let next = due.map(|namespace| (at(namespace), is_later(namespace), namespace));
        let next = next.min();
        self.next = next.map(|(at, _, namespace)| (at, namespace.to_owned()));
    }

    /// Waits for the next step. If there is neither a list nor a plan, never returns.
    pub(crate) async fn step(&mut self) -> RecoveryStep<T> {
        if let Some(list) = &mut self.list {
            let page = list.pages.next().await;
            return match page {
                Some(Ok(objects)) => RecoveryStep::Page(objects),
                Some(Err(_)) => self.end(AFTER_FAILURE),
                None => self.end(BETWEEN_LISTS),
            };
        }
        let Some((at, namespace)) = self.next.clone() else {
            return pending().await;
        };
        sleep_until(at).await;
        self.next = None;
        RecoveryStep::Due(namespace)
    }

    /// Starts the list of this namespace.
    pub(crate) fn begin(&mut self, namespace: String, pages: PagesOf<T>) {
        self.last = Some(namespace.clone());
        self.list = Some(List {
            namespace,
            pages,
            changed: BTreeSet::new(),
        });
    }

    fn end(&mut self, pause: Duration) -> RecoveryStep<T> {
        if let Some(list) = self.list.take() {
            let at = Instant::now() + pause;
            self.not_before.insert(list.namespace, at);
        }
        RecoveryStep::End
    }

    /// Abandons the list, because the watch lists all objects.
    pub(crate) fn stop(&mut self) {
        self.list = None;
        self.next = None;
    }

    /// Records that the watch has changed this object.
    pub(crate) fn changed(&mut self, namespace: &str, name: &str) {
        if let Some(list) = &mut self.list
            && list.namespace == namespace
        {
            list.changed.insert(name.to_owned());
            if list.changed.len() > MAX_CHANGED {
                self.end(AFTER_FAILURE);
                // When this list ends, the lists of other namespaces are planned.
                let again = (Instant::now() + AFTER_FAILURE, namespace.to_owned());
                self.next.get_or_insert(again);
            }
        }
    }

    /// Whether the state of this object in the current list might be current.
    pub(crate) fn is_current(&self, namespace: &str, name: &str) -> bool {
        let list = self.list.as_ref();
        list.is_some_and(|list| list.namespace == namespace && !list.changed.contains(name))
    }

    /// Whether a list is planned.
    #[cfg(test)]
    pub(crate) const fn is_planned(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Waits until a list of this namespace is due, and starts it with these pages.
    async fn begin(recovery: &mut Recovery<u8>, namespace: &str, pages: PagesOf<u8>) {
        let RecoveryStep::Due(due) = recovery.step().await else {
            panic!("no list is due");
        };
        assert_eq!(due, namespace);
        recovery.begin(due, pages);
    }

    fn failing() -> PagesOf<u8> {
        let late = Err(CallError::Deadline(Duration::ZERO));
        stream::iter([Ok(vec![7]), late]).boxed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_does_not_delay_the_list_of_another_namespace() {
        let mut recovery = Recovery::default();
        let begun = Instant::now();
        for namespace in ["a", "b"] {
            recovery.plan(["a", "b"].into_iter());
            begin(&mut recovery, namespace, stream::empty().boxed()).await;
            assert!(matches!(recovery.step().await, RecoveryStep::End));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);

        recovery.plan(["a", "b"].into_iter());
        begin(&mut recovery, "a", stream::empty().boxed()).await;
        assert_eq!(begun.elapsed(), BETWEEN_LISTS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_failed_is_repeated_soon() {
        let mut recovery = Recovery::default();
        recovery.plan(["a"].into_iter());
        begin(&mut recovery, "a", failing()).await;
        assert!(matches!(recovery.step().await, RecoveryStep::Page(page) if page == [7]));
        assert!(matches!(recovery.step().await, RecoveryStep::End));
        let begun = Instant::now();

        recovery.plan(["a"].into_iter());
        begin(&mut recovery, "a", failing()).await;

        assert_eq!(begun.elapsed(), AFTER_FAILURE);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_failing_lists_of_two_namespaces_do_not_block_a_third_one() {
        let mut recovery = Recovery::default();
        let slow = || {
            let failure = async {
                sleep_until(Instant::now() + 2 * AFTER_FAILURE).await;
                Err::<Vec<u8>, _>(CallError::Deadline(Duration::ZERO))
            };
            stream::once(failure).boxed()
        };
        for namespace in ["a", "b", "z"] {
            recovery.plan(["a", "b", "z"].into_iter());
            begin(&mut recovery, namespace, slow()).await;
            assert!(matches!(recovery.step().await, RecoveryStep::End));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_does_not_replace_objects_that_the_watch_has_changed() {
        let mut recovery = Recovery::default();
        assert!(!recovery.is_current("a", "r1"));
        recovery.plan(["a"].into_iter());
        begin(&mut recovery, "a", stream::pending().boxed()).await;

        recovery.changed("a", "r1");
        recovery.changed("b", "r2");

        assert!(!recovery.is_current("a", "r1"));
        assert!(recovery.is_current("a", "r2"));
        assert!(!recovery.is_current("b", "r3"), "it is not listed");
        recovery.stop();
        assert!(!recovery.is_current("a", "r2"));
        assert!(recovery.step().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_during_too_many_changes_is_abandoned() {
        let mut recovery = Recovery::default();
        recovery.plan(["a"].into_iter());
        begin(&mut recovery, "a", stream::pending().boxed()).await;

        for number in 0..MAX_CHANGED {
            recovery.changed("a", &number.to_string());
        }
        assert!(recovery.is_current("a", "r1"));
        recovery.changed("a", "one more");

        assert!(!recovery.is_current("a", "r1"));
        let begun = Instant::now();
        begin(&mut recovery, "a", stream::empty().boxed()).await;
        assert_eq!(begun.elapsed(), AFTER_FAILURE, "it is planned again");
    }
}
