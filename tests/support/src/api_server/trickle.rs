//! A connection whose speed can be limited to single bytes with pauses.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::lock;

/// The pace of a connection's writes. `None` is full speed.
pub(super) type Pace = Arc<Mutex<Option<Duration>>>;

/// A connection that writes at a limited rate, and reads at full speed.
pub(super) struct Trickle<T> {
    inner: T,
    pace: Pace,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<T> Trickle<T> {
    pub(super) fn new(inner: T, pace: Pace) -> Self {
        Self {
            inner,
            pace,
            pause: None,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Trickle<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Trickle<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Some(every) = *lock(&this.pace) else {
            return Pin::new(&mut this.inner).poll_write(cx, buf);
        };
        if let Some(pause) = &mut this.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let written = Pin::new(&mut this.inner).poll_write(cx, buf.get(..1).unwrap_or_default());
        if written.is_ready() {
            this.pause = Some(Box::pin(sleep(every)));
            // Each byte is flushed, because a byte in a buffer would not arrive at all.
            let _ = Pin::new(&mut this.inner).poll_flush(cx)?;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
