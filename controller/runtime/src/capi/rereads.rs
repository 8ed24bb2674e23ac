//! Reads of single objects that a limit truncated, and whose omitted part now fits.
//!
//! A list of the kind would also return the omitted parts. However, the watch of all namespaces stops during a list,
//! and a tenant with large objects would control how long the list takes, and when it is necessary.

use std::future::pending;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use tokio::time::{Instant, sleep_until};

use super::objects::ObjectKey;
use crate::client::{CallError, in_time};

/// The minimum time between two reads, because a tenant can cause reads.
const BETWEEN_READS: Duration = Duration::from_millis(250);

/// The minimum time between two reads of the same object if no other object is due, because the first read did not
/// help.
const BETWEEN_SAME: Duration = Duration::from_mins(1);

/// The deadline for a read. The call waits for its turn in its namespace's queue, and further reads wait for this call.
const DEADLINE: Duration = Duration::from_secs(5);

/// The reads for one watch. The reads run one at a time, and rotate through the namespaces.
pub(super) struct Rereads<T> {
    reading: Option<Reading<T>>,
    /// The object that was read last, and the time at which that read ended.
    last: Option<(ObjectKey, Instant)>,
}

/// A read that is planned or in progress.
struct Reading<T> {
    key: ObjectKey,
    object: BoxFuture<'static, Result<T, CallError>>,
}

impl<T> Default for Rereads<T> {
    fn default() -> Self {
        Self {
            reading: None,
            last: None,
        }
    }
}

impl<T: Send + 'static> Rereads<T> {
    /// Plans a read of the object that `due` selects. `due` gets the namespace of the object that was read last.
    /// If a read is already planned, that read is kept.
    pub(super) fn plan<F>(
        &mut self,
        due: impl FnOnce(Option<&str>) -> Option<ObjectKey>,
        read: impl FnOnce(ObjectKey) -> F,
    ) where
        F: Future<Output = kube::Result<T>> + Send + 'static,
    {
        if self.reading.is_some() {
            return;
        }
        let after = self.last.as_ref().map(|(last, _)| last.namespace.as_str());
        let Some(key) = due(after) else { return };
        let begin = match &self.last {
            Some((last, end)) if *last == key => *end + BETWEEN_SAME,
            Some((_, end)) => *end + BETWEEN_READS,
            None => Instant::now(),
        };
        let call = in_time(DEADLINE, read(key.clone()));
        let object = async move {
            sleep_until(begin).await;
            call.await
        };
        self.reading = Some(Reading {
            key,
            object: object.boxed(),
        });
    }

    /// Waits until the planned read ends. If no read is planned, never returns.
    pub(super) async fn next(&mut self) -> Result<T, CallError> {
        let object = match &mut self.reading {
            Some(reading) => reading.object.as_mut().await,
            None => return pending().await,
        };
        let ended = self.reading.take();
        self.last = ended.map(|ended| (ended.key, Instant::now()));
        object
    }

    /// Abandons the read of this object, because the watch has received a later state.
    pub(super) fn abandon(&mut self, key: &ObjectKey) {
        if self.reading.as_ref().is_some_and(|own| own.key == *key) {
            self.reading = None;
        }
    }

    /// Abandons the read of any object, because the watch lists all objects.
    pub(super) fn abandon_all(&mut self) {
        self.reading = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn key(namespace: &str) -> ObjectKey {
        ObjectKey::new(namespace, "p1")
    }

    /// Plans a read of this object. The read itself ends immediately.
    fn plan(rereads: &mut Rereads<String>, namespace: &str) {
        let read = |key: ObjectKey| ready(Ok(key.namespace));
        rereads.plan(|_| Some(key(namespace)), read);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_remains_cut_is_read_once_a_minute() {
        let mut rereads = Rereads::default();
        let begun = Instant::now();
        let mut times = Vec::new();
        for namespace in ["a", "b", "a", "a"] {
            plan(&mut rereads, namespace);
            assert_eq!(rereads.next().await.unwrap(), namespace);
            times.push(begun.elapsed().as_millis());
        }
        assert_eq!(times, [0, 250, 500, 60_500]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_read_is_for_a_namespace_after_the_last_one() {
        let mut rereads = Rereads::default();
        plan(&mut rereads, "a");
        rereads.next().await.unwrap();

        let due = |after: Option<&str>| {
            assert_eq!(after, Some("a"));
            None
        };
        rereads.plan(due, |_| pending());
        assert!(rereads.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_read_ends_at_its_deadline() {
        let mut rereads = Rereads::<String>::default();
        rereads.plan(|_| Some(key("a")), |_| pending());
        // Another read is already planned.
        plan(&mut rereads, "b");
        let begun = Instant::now();

        let error = rereads.next().await.unwrap_err();
        assert!(matches!(error, CallError::Deadline(_)), "{error}");
        assert_eq!(begun.elapsed(), DEADLINE);
        plan(&mut rereads, "b");
        assert_eq!(rereads.next().await.unwrap(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_abandoned_if_the_watch_has_a_later_state() {
        let mut rereads = Rereads::default();
        plan(&mut rereads, "a");
        rereads.abandon(&key("b"));
        assert_eq!(rereads.next().await.unwrap(), "a");

        let ways: [fn(&mut Rereads<String>); 2] =
            [|rereads| rereads.abandon(&key("b")), Rereads::abandon_all];
        for abandon in ways {
            plan(&mut rereads, "b");
            abandon(&mut rereads);
            tokio::time::advance(BETWEEN_READS).await;
            assert!(rereads.next().now_or_never().is_none());
        }
    }
}
