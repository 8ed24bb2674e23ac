//! The log.

use std::io;
use std::panic;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object a line; the fields of an event are below `fields`.
    Json,
}

/// Writes the log to standard error from now on; with `verbose`, also every check.
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
        // They tell of every attempt while an API server is down; we tell once.
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF);
    let layer = fmt::layer().with_writer(io::stderr).with_target(false);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .init();
    // The default hook prints what was panicked with, which may be anything.
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(location, "panicked");
    }));
}
