//! The processor time for decoding responses from tenants' API servers.
//!
//! kube decodes a response in its caller's task, in the poll that reads the last chunk. Byte limits do not limit the
//! processor time, because some JSON takes many times longer to decode than other JSON of the same length. Therefore
//! the body of a response registers its budget for the current poll, and [`Decoding`] charges the rest of the poll to
//! this budget. If the budget is exhausted, the namespace's connections wait.
//!
//! If a call is not wrapped in a [`Decoding`], the body charges its length instead, so that every response is charged.

use std::cell::RefCell;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};

use super::processor::Processor;

thread_local! {
    /// The current poll of a [`Decoding`].
    static CURRENT: RefCell<Current> = const { RefCell::new(Current::None) };
}

/// The poll of a [`Decoding`] that is in progress, if any.
#[derive(Debug, Default)]
enum Current {
    #[default]
    None,
    /// The response that the poll reads, if any.
    Poll(Option<Reading>),
}

/// The enclosing poll. When this value is dropped, the enclosing poll becomes the current poll again, even after a
/// panic.
struct Outer(Current);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(mem::take(&mut self.0));
    }
}

/// A budget, and this thread's processor time at which charging starts.
#[derive(Debug)]
struct Reading {
    processor: Processor,
    begin: Duration,
}

impl Reading {
    fn begin(processor: Processor) -> Self {
        let begin = processor.time();
        Self { processor, begin }
    }
}

/// Registers that the current poll reads a response with this budget. Returns `false` outside a poll of a [`Decoding`],
/// where decoding is not charged.
#[must_use]
pub(super) fn reading(processor: &Processor) -> bool {
    CURRENT.with_borrow_mut(|current| match current {
        Current::Poll(read) => {
            read.get_or_insert_with(|| Reading::begin(processor.clone()));
            true
        }
        Current::None => false,
    })
}

/// A call or a watch. Its decoding is charged to the namespace of its API server.
#[derive(Debug)]
pub(crate) struct Decoding<F> {
    inner: F,
    /// The budget. `None` until the first chunk is read.
    processor: Option<Processor>,
}

impl<F> Decoding<F> {
    pub(crate) const fn new(inner: F) -> Self {
        Self {
            inner,
            processor: None,
        }
    }

    fn charged<T>(&mut self, poll: impl FnOnce(&mut F) -> T) -> T {
        // A chunk of a watch can contain several events, and only the poll for the first event reads the body.
        let known = self.processor.take().map(Reading::begin);
        let outer = Outer(CURRENT.replace(Current::Poll(known)));
        let polled = poll(&mut self.inner);
        let current = CURRENT.take();
        drop(outer);
        if let Current::Poll(Some(Reading { processor, begin })) = current {
            processor.charge_since(begin);
            self.processor = Some(processor);
        }
        polled
    }
}

impl<F: Future + Unpin> Future for Decoding<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.charged(|inner| inner.poll_unpin(context))
    }
}

impl<S: Stream + Unpin> Stream for Decoding<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.charged(|inner| inner.poll_next_unpin(context))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::AssertUnwindSafe;

    use futures::stream;

    use super::*;

    /// The time of each charge with [`Processor::slow`].
    const CHARGE: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn only_the_polls_of_a_call_that_read_its_response_take_processor_time() {
        let processor = Processor::slow();
        let mut polls = 0;
        let call = poll_fn(|context| {
            polls += 1;
            if polls <= 3 {
                // The future makes progress.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            assert!(reading(&processor) && reading(&processor));
            Poll::Ready(())
        });

        Decoding::new(Decoding::new(Box::pin(call))).await;

        assert_eq!(processor.missing(), CHARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn each_event_of_a_chunk_takes_processor_time() {
        let processor = Processor::slow();
        let events = stream::iter(0..3).inspect(|number| {
            if *number == 0 {
                assert!(reading(&processor));
            }
        });

        let read = Decoding::new(events).count().await;

        assert_eq!(read, 3);
        // The last charge is for the part before the end of the response body.
        assert_eq!(processor.missing(), CHARGE * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_in_another_call_takes_only_its_own_processor_time() {
        let (inner, outer) = (Processor::slow(), Processor::slow());
        let read = |processor: &Processor| {
            let processor = processor.clone();
            Box::pin(async move {
                assert!(reading(&processor));
            })
        };
        let call = async {
            Decoding::new(read(&inner)).await;
            read(&outer).await;
        };

        Decoding::new(Box::pin(call)).await;

        assert_eq!([inner.missing(), outer.missing()], [CHARGE, CHARGE]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_outside_a_call_is_not_measured_even_after_a_panic() {
        let processor = Processor::slow();
        assert!(!reading(&processor));

        let call = poll_fn(|_| -> Poll<()> { panic!("in the poll of a call") });
        let ended = AssertUnwindSafe(Decoding::new(call)).catch_unwind().await;

        assert!(ended.is_err());
        assert!(!reading(&processor));
        assert_eq!(processor.missing(), Duration::ZERO);
    }
}
