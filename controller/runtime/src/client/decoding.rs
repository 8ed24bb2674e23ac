//! The processor time for decoding responses of tenants' API servers.
//!
//! kube decodes a response in the task of its caller, in the poll that reads the last chunk. The limits of bytes do not
//! cover that, because some JSON takes many times as long as other JSON of its length. The body of a response therefore
//! notes its budget for the current poll, and [`Decoding`] charges the rest of the poll to it. When nothing is left, the
//! connections of the namespace wait.
//!
//! The body of a call that is not in a [`Decoding`] charges its length instead, so that no response is free of charge.

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

/// The poll of a [`Decoding`], if there is one.
#[derive(Debug, Default)]
enum Current {
    #[default]
    None,
    /// The response that the poll reads, if it reads one.
    Poll(Option<Reading>),
}

/// The poll that contains the current one. It is current again afterwards, also after a panic.
struct Outer(Current);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(mem::take(&mut self.0));
    }
}

/// A budget, and the processor time of this thread at which the charge begins.
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

/// Notes that the current poll reads a response with this budget. Returns `false` if it is not the poll of a
/// [`Decoding`], so that nothing charges the decoding.
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

/// A call or a watch, whose decoding takes processor time of the namespace of its API server.
#[derive(Debug)]
pub(crate) struct Decoding<F> {
    inner: F,
    /// The budget, which is set with the first chunk.
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
        // A chunk of a watch has several events, and only the poll for the first one reads the body.
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

    /// The time that each charge takes with [`Processor::slow`].
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
        // The last charge is for the end of the response.
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
