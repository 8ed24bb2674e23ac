//! The log.

use std::io;
use std::mem;
use std::panic;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use kubelet_attestation::text::visible_json;
use node_attestation_core::rate_limit::Rate;
use node_attestation_runtime::shared::{Lock, Shared};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for terminals.
    Text,
    /// One JSON object for each line; the fields of an event are in `fields`.
    Json,
}

/// Starts logging to standard error. With `verbose`, every check is also logged.
pub(crate) fn start(format: LogFormat, verbose: bool) {
    let ours = if verbose {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("node_attestation_controller", ours)
        .with_target("node_attestation_aws", ours)
        .with_target("node_attestation_core", ours)
        .with_target("node_attestation_runtime", ours)
        .with_target("node_attestation_tpm", ours)
        // These crates log every attempt while an API server is unavailable, but this program logs an outage only once.
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF);
    let lines = lines(format, || Visible(io::stderr()));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
    // The default hook prints the panic message, which can contain arbitrary data.
    let panics = Shared::new(Lock::Panics, Panics::new(Instant::now()));
    panic::set_hook(Box::new(move |panic| {
        let location = panic.location().map(ToString::to_string);
        let left_out = panics.write(|panics| panics.take(Instant::now()));
        let Some(left_out) = left_out else { return };
        let left_out = Some(left_out).filter(|left_out| *left_out > 0);
        tracing::error!(location, left_out, "panicked");
    }));
}

/// The rate of log lines about panics. The rate is limited because a tenant who finds a way to cause a panic can repeat
/// it.
const PANICS: Rate = Rate {
    burst: 100,
    every: Duration::from_secs(1),
};

/// The log-line budget for panics.
struct Panics {
    full_at: Instant,
    left_out: u64,
}

impl Panics {
    fn new(now: Instant) -> Self {
        Self {
            full_at: now,
            left_out: 0,
        }
    }

    /// Takes a line from the budget. Returns the number of lines that were omitted before it, or `None` if this line is
    /// also omitted.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if PANICS.take(&mut self.full_at, now).is_ok() {
            return Some(mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }
}

/// Formats the log lines.
fn lines<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_writer(writer).with_target(false);
    match format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().boxed(),
    }
}

/// A writer that escapes invisible characters. Lines contain text from tenants, which must not control a terminal, and
/// must look the same to users and programs. The JSON formatter escapes only the characters that JSON requires.
struct Visible<W>(W);

impl<W: io::Write> io::Write for Visible<W> {
    /// Writes one line. The caller passes a complete line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(visible_json(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kubelet_attestation::text::is_invisible;
    use node_attestation_runtime::shared::testing::most_visited;
    use serde_json::Value;

    use super::*;

    /// The lines that a test has logged.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn panics_are_logged_100_times_and_then_once_a_second() {
        let now = Instant::now();
        let panics = Shared::new(Lock::Panics, Panics::new(now));
        let take = |now| panics.write(|panics| panics.take(now));
        let panics = (0..10_000).filter_map(|_| take(now)).count();

        assert_eq!(panics, 100);
        let later = now + PANICS.every;
        assert_eq!(take(later), Some(9900));
        let visited = most_visited(|| assert_eq!(take(later), None));
        assert_eq!(visited[&Lock::Panics], 0);
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "no other thread has this call site"
    )]
    fn invisible_characters_of_a_log_line_are_escaped_in_each_format() {
        let hostile = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}\nb";
        for format in [LogFormat::Text, LogFormat::Json] {
            let written = Written::default();
            let writer = written.clone();
            let lines = lines(format, move || Visible(writer.clone()));
            let subscriber = tracing_subscriber::registry().with(lines);
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(name = hostile, debug = ?[hostile], "unreadable");
            });

            let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            let line = text.strip_suffix('\n').unwrap();
            assert!(!line.contains(is_invisible), "{format:?}: {line:?}");
            if format == LogFormat::Json {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["fields"]["name"], hostile);
            }
        }
    }
}
