//! The processor time for connections to tenants' API servers, and for decoding their responses.
//!
//! An API server determines the cost of its handshakes and frames. It can send a certificate chain that takes a hundred
//! signature checks, close each connection after one response, or send control frames as fast as the network allows.
//! Limits on calls or response lengths do not cover this cost. Decoding the server's responses is also charged (see
//! [`super::decoding`]). If decoding cannot be measured, the length of the response is charged.
//!
//! # Guarantees
//!
//! - After a burst of [`BURST`], all connections of a namespace and the decoding of their responses together use at
//!   most a quarter of one processor. Chunks that have already been received do not count.
//! - After a burst of [`BURST_OF_ALL`], the connections of all namespaces together use half of one processor on
//!   average. The more the connections exceed this share, the more a namespace is charged for the same work. Therefore
//!   the namespaces with the most work wait.
//! - Only connections to tenants' API servers wait.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::shared::{Lock, Shared, Swept};

/// The processor time that a namespace can use in one burst. A thousand handshakes take about 2 seconds.
const BURST: Duration = Duration::from_secs(5);

/// One processor divided by this number is the share of one namespace.
const PARTS: u32 = 4;

/// The processor time that all namespaces together can use in one burst, which is more than the handshakes of 2,000
/// clusters take.
const BURST_OF_ALL: Duration = Duration::from_secs(20);

/// One processor divided by this number is the share of all namespaces together.
const PARTS_OF_ALL: u32 = 2;

/// The maximum number of times that the price doubles. The price doubles for each second of processor time beyond the
/// burst for all namespaces. The maximum corresponds to the share of 2,000 namespaces.
const MAX_DOUBLINGS: u64 = 10;

/// The processor time that is charged for a byte if its decoding is not measured: the time that JSON with many values
/// takes. In one burst, a namespace can read 150 MiB of such JSON.
const OF_BYTE: Duration = Duration::from_nanos(32);

/// The minimum wait. Otherwise, all connections of a namespace would wake up after each short poll of one of them.
const PAUSE: Duration = Duration::from_millis(250);

/// The minimum time between two log lines about a namespace.
const TOLD_EVERY: Duration = Duration::from_hours(1);

static PROCESS: LazyLock<Arc<Spent>> = LazyLock::new(Arc::default);

/// The processor time that each namespace has spent.
#[derive(Debug)]
struct Spent(Shared<Budgets>);

#[derive(Debug, Default)]
struct Budgets {
    namespaces: Swept<String, Budget>,
    /// The time at which the complete burst for all namespaces will be available again.
    whole_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    /// The time at which the whole burst will be available again.
    whole_at: Instant,
    /// The earliest time of the next log line about a wait.
    told_from: Instant,
}

impl Default for Spent {
    fn default() -> Self {
        Self(Shared::new(Lock::Processor, Budgets::default()))
    }
}

impl Budgets {
    fn charge(&mut self, namespace: &str, time: Duration, now: Instant) {
        let whole_at = self.whole_at.map_or(now, |at| at.max(now)) + time * PARTS_OF_ALL;
        self.whole_at = Some(whole_at);
        let over = ((whole_at - now) / PARTS_OF_ALL).saturating_sub(BURST_OF_ALL);
        let price = 1 << over.as_secs().min(MAX_DOUBLINGS);
        let add = |budget: &mut Budget| {
            budget.whole_at = budget.whole_at.max(now) + time * PARTS * price;
        };
        // Each poll of a connection is charged, so a known namespace needs no copy of its name.
        if let Some(budget) = self.namespaces.get_mut(namespace) {
            add(budget);
            return;
        }
        let is_dead = |_: &_, budget: &mut Budget| budget.whole_at.max(budget.told_from) <= now;
        let namespaces = &mut self.namespaces;
        let budget = namespaces.get_or_insert_with(namespace.to_owned(), is_dead, || Budget {
            whole_at: now,
            told_from: now,
        });
        add(budget);
    }
}

/// The processor time for the connections of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Processor {
    spent: Arc<Spent>,
    namespace: Arc<str>,
    /// The processor time of the current thread.
    clock: fn() -> Duration,
}

impl Processor {
    /// The processor time of this namespace in this process.
    pub(super) fn of(namespace: &str) -> Self {
        Self {
            spent: PROCESS.clone(),
            namespace: namespace.into(),
            clock: thread_time,
        }
    }

    /// Limits this future to the processor time in this budget. The future waits while the budget is exhausted.
    pub(super) fn limited<F>(&self, future: F) -> Limited<F> {
        Limited {
            processor: self.clone(),
            future: Box::pin(future),
            pause: None,
        }
    }

    /// The time of the next attempt. `None` if the budget is not exhausted.
    fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        let over = |budget: &Budget| {
            let missing = budget.whole_at.saturating_duration_since(now);
            missing.saturating_sub(BURST * PARTS)
        };
        let spent = self.spent.0.read(|spent| {
            let budget = spent.namespaces.get(&*self.namespace)?;
            Some((over(budget), budget.told_from <= now))
        });
        let (over, is_logged) = spent.filter(|(over, _)| !over.is_zero())?;
        if is_logged {
            self.tell(now);
        }
        Some(now + over.max(PAUSE))
    }

    fn tell(&self, now: Instant) {
        self.spent.0.write(|spent| {
            if let Some(budget) = spent.namespaces.get_mut(&*self.namespace) {
                budget.told_from = now + TOLD_EVERY;
            }
        });
        tracing::warn!(
            namespace = &*self.namespace,
            "the API servers of this namespace use too much CPU time: their connections are delayed"
        );
    }

    /// The processor time of the current thread.
    pub(super) fn time(&self) -> Duration {
        (self.clock)()
    }

    /// Charges the processor time of the current thread since `begin`.
    pub(super) fn charge_since(&self, begin: Duration) {
        self.charge(self.time().saturating_sub(begin));
    }

    /// Charges the decoding of this number of bytes, which is not measured.
    pub(super) fn charge_bytes(&self, bytes: usize) {
        self.charge(OF_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn charge(&self, time: Duration) {
        let now = Instant::now();
        self.spent
            .0
            .write(|spent| spent.charge(&self.namespace, time, now));
    }

    /// A budget in which each reading of the clock adds 2 seconds of processor time.
    #[cfg(test)]
    pub(super) fn slow() -> Self {
        thread_local! {
            static TIME: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
        }
        Self {
            spent: Arc::default(),
            namespace: "slow".into(),
            clock: || {
                TIME.set(TIME.get() + Duration::from_secs(2));
                TIME.get()
            },
        }
    }

    /// The processor time that is missing from a full burst.
    #[cfg(test)]
    pub(super) fn missing(&self) -> Duration {
        let budget = self
            .spent
            .0
            .read(|spent| spent.namespaces.get(&*self.namespace).copied());
        let now = Instant::now();
        budget.map_or(Duration::ZERO, |it| {
            it.whole_at.saturating_duration_since(now) / PARTS
        })
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither part is ever negative.
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// A future that waits while its namespace's budget is exhausted.
pub(super) struct Limited<F> {
    processor: Processor,
    future: Pin<Box<F>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Future for Limited<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            let Some(next) = this.processor.next() else {
                break;
            };
            this.pause = Some(Box::pin(sleep_until(next)));
        }
        let begin = this.processor.time();
        let polled = this.future.as_mut().poll(context);
        this.processor.charge_since(begin);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::future::poll_fn;

    use futures::future::{join, join_all};
    use tracing::Level;

    use super::*;
    use crate::shared::testing::most_visited;
    use crate::testing::ThreadLog;

    thread_local! {
        static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    fn processor(spent: &Arc<Spent>, namespace: &str) -> Processor {
        Processor {
            spent: spent.clone(),
            namespace: namespace.into(),
            clock: || TIME.get(),
        }
    }

    /// Uses this much processor time in one poll. Returns the time for which the poll had to wait.
    async fn take(processor: &Processor, time: Duration) -> Duration {
        let begin = Instant::now();
        let work = poll_fn(|_| {
            TIME.set(TIME.get() + time);
            Poll::Ready(())
        });
        processor.limited(work).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_namespace_over_its_processor_burst_waits() {
        let spent = Arc::default();
        let (hostile, other) = (processor(&spent, "hostile"), processor(&spent, "other"));

        assert_eq!(take(&hostile, BURST).await, Duration::ZERO);
        assert_eq!(take(&hostile, BURST).await, Duration::ZERO);
        assert_eq!(take(&other, BURST).await, Duration::ZERO);

        assert_eq!(take(&hostile, Duration::ZERO).await, BURST * PARTS);
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_burst_a_namespace_gets_a_quarter_of_a_processor() {
        let processor = processor(&Arc::default(), "a");
        take(&processor, BURST).await;
        let (begin, work) = (Instant::now(), Duration::from_millis(100));

        for _ in 0..100 {
            take(&processor, work).await;
        }

        let took = begin.elapsed();
        let (least, most) = (99 * work * PARTS, 100 * work * PARTS);
        assert!((least..=most).contains(&took), "{took:?}");
    }

    /// The processor time that this many namespaces get in 10 minutes, if each namespace uses as much as possible.
    async fn taken_in_ten_minutes(namespaces: usize, spent: &Arc<Spent>) -> Duration {
        let begin = Instant::now();
        let work = Duration::from_millis(2);
        let hostile = (0..namespaces).map(|number| {
            let processor = processor(spent, &format!("hostile-{number}"));
            async move {
                let mut taken = Duration::ZERO;
                loop {
                    take(&processor, work).await;
                    if begin.elapsed() > Duration::from_mins(10) {
                        return taken;
                    }
                    taken += work;
                }
            }
        });
        join_all(hostile).await.iter().sum()
    }

    #[tokio::test(start_paused = true)]
    async fn any_number_of_namespaces_together_gets_half_a_processor() {
        let half = Duration::from_mins(5);
        for namespaces in [3, 20, 200] {
            let taken = taken_in_ten_minutes(namespaces, &Arc::default()).await;

            assert!(
                (half..half + BURST_OF_ALL * 3).contains(&taken),
                "{namespaces}: {taken:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_hostile_namespaces_do_not_delay_other_handshakes() {
        let spent: Arc<Spent> = Arc::default();
        let other = processor(&spent, "other");
        let handshakes = async {
            let mut waited = Duration::ZERO;
            for _ in 0..18 {
                tokio::time::sleep(Duration::from_secs(30)).await;
                waited = waited.max(take(&other, Duration::from_millis(3)).await);
            }
            waited
        };

        let (_, waited) = join(taken_in_ten_minutes(20, &spent), handshakes).await;

        assert_eq!(waited, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_processor_budget_refills_and_is_dropped() {
        let spent = Arc::default();
        let first = processor(&spent, "a");
        take(&first, BURST * 2).await;
        assert_eq!(first.missing(), BURST * 2);

        tokio::time::sleep(BURST * 2 * PARTS + TOLD_EVERY).await;

        assert_eq!(first.missing(), Duration::ZERO);
        take(&processor(&spent, "b"), BURST).await;
        assert_eq!(spent.0.read(|spent| spent.namespaces.len()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_is_granted_among_many_namespaces_in_few_visits() {
        let spent = Arc::default();
        for number in 0..1000 {
            processor(&spent, &number.to_string()).charge(BURST / 1000);
        }
        let new = processor(&spent, "new");

        let visited = most_visited(|| {
            new.charge(BURST / 1000);
            assert_eq!(new.next(), None);
        });

        assert_eq!(visited, BTreeMap::from([(Lock::Processor, 4)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_waits_is_logged_once_an_hour() {
        let log = ThreadLog::start(Level::WARN);
        let processor = processor(&Arc::default(), "hostile");

        for _ in 0..10 {
            take(&processor, BURST).await;
        }

        assert_eq!(
            log.count(&["namespace=\"hostile\"", "too much CPU time"]),
            1
        );
    }
}
