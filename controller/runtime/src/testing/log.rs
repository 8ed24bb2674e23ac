//! The log lines of one thread.

use std::io;
use std::sync::{Arc, Once};

use node_attestation_core::unshared::Unshared;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;

/// The log lines of this thread, from [`start`](ThreadLog::start) until this value is dropped.
#[derive(Debug)]
pub struct ThreadLog {
    written: Written,
    _guard: DefaultGuard,
}

impl ThreadLog {
    /// Starts a log that contains lines of this level and of more severe levels.
    ///
    /// For each call site, tracing stores whether a subscriber is interested in it. A thread without a subscriber can
    /// cause "not interested" to be stored while another thread gets its subscriber. Therefore, there is also a global
    /// subscriber, whose answer tracing does not store.
    #[expect(clippy::disallowed_methods, reason = "they are of this module")]
    pub fn start(level: Level) -> Self {
        static UNDECIDED: Once = Once::new();
        // A test program with a global subscriber does not need another global subscriber.
        UNDECIDED.call_once(|| drop(tracing::subscriber::set_global_default(Undecided)));
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(written.clone())
            .with_ansi(false)
            .finish();
        Self {
            written,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// All lines.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.0.lock()).into_owned()
    }

    /// The number of lines that contain each of these texts.
    pub fn count(&self, texts: &[&str]) -> usize {
        let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
        self.text().lines().filter(has_all).count()
    }
}

#[derive(Debug, Clone, Default)]
struct Written(Arc<Unshared<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A subscriber that receives each event, and records none.
struct Undecided;

impl Subscriber for Undecided {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_lines_of_the_thread_at_the_level_are_logged() {
        let log = ThreadLog::start(Level::INFO);

        tracing::debug!("a detail");
        tracing::info!("a fact");
        thread::scope(|scope| {
            scope.spawn(|| tracing::warn!("a warning of another thread"));
        });

        assert_eq!(log.count(&["INFO", "a fact"]), 1);
        assert_eq!(log.text().lines().count(), 1, "{}", log.text());
    }
}
