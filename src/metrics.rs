//! Metrics of the node for the textfile collector of `node_exporter`.
//!
//! The metrics come only from the store. A run that only prints the stored certificate does not write to the store.
//! Therefore, the metrics count only runs that took the lock as attempts: these runs got a certificate, failed to get a
//! certificate, or checked the stored certificate with the API server (once per hour).

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use crate::backoff::FailureRecord;
use crate::clock::unix_seconds;
use crate::failure::{Code, Failure};
use crate::file_size;
use crate::machine::Machine;
use crate::pending::Pending;
use crate::store::{Store, StoreFile};
use crate::store_contents::StoreContents;

/// The state of a node, in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeState {
    /// The start, end and next renewal of the stored certificate.
    certificate: Option<(u64, u64, u64)>,
    /// The time at which a run got the stored certificate.
    succeeded: Option<u64>,
    /// The exit code and time of the last attempt.
    attempt: Option<(u8, u64)>,
    /// The number of failures of the same kind since the last success.
    failures: u32,
    /// The creation time of the pending request.
    pending: Option<u64>,
    /// The end of the back-off.
    not_before: Option<u64>,
}

impl NodeState {
    /// Reads the store. Does not change it.
    pub(crate) fn read(
        dir: &Path,
        machine: &Machine,
        is_renewed: bool,
        now: SystemTime,
    ) -> Result<Self, Failure> {
        let Some(store) = Store::look(dir)? else {
            return Ok(Self::default());
        };
        let contents = StoreContents::load(&store, machine)?;
        let failure = FailureRecord::read(&store);
        let pending = store.read(StoreFile::Pending)?;
        let pending = pending.and_then(|text| Pending::parse(&text).ok()?.request);
        let certificate = contents.credential.as_ref().map(|credential| {
            let validity = credential.validity();
            let renewal = if is_renewed {
                credential.renew_at()
            } else {
                validity.not_after
            };
            let [start, end, renewal] =
                [validity.not_before, validity.not_after, renewal].map(unix_seconds);
            (start, end, renewal)
        });
        let stored = fs::metadata(store.path(StoreFile::Credential));
        let stored = stored
            .and_then(|file| file.modified())
            .ok()
            .map(unix_seconds);
        let succeeded = certificate.and(stored);
        let locked = store.last_locked();
        let attempt = match &failure {
            Some(record) => Some((record.code, record.at.max(locked.unwrap_or_default()))),
            None => locked.max(succeeded).map(|at| (0, at)),
        };
        let not_before = failure.as_ref().map(|record| record.not_before);
        Ok(Self {
            certificate,
            succeeded,
            attempt,
            failures: failure.map_or(0, |record| record.count),
            pending: pending.map(|open| open.created),
            not_before: not_before.filter(|until| *until > unix_seconds(now)),
        })
    }

    /// The text format of Prometheus (exposition formats, version 0.0.4).
    pub(crate) fn to_text(&self, provider: &str) -> String {
        let mut text = String::new();
        let mut gauge = |name: &str, help: &str, labels: &str, value: u64| {
            let name = format!("kubelet_authenticator_{name}");
            // Writing to memory does not fail.
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}\n"
            );
        };
        let version = env!("CARGO_PKG_VERSION");
        let labels = format!("{{provider=\"{provider}\",version=\"{version}\"}}");
        gauge("build_info", "The version of the plugin.", &labels, 1);
        let mut add = |name, help, value: Option<u64>| {
            if let Some(value) = value {
                gauge(name, help, "", value);
            }
        };
        add(
            "certificate_not_before_timestamp_seconds",
            "The start of the stored client certificate's validity.",
            self.certificate.map(|(start, ..)| start),
        );
        add(
            "certificate_not_after_timestamp_seconds",
            "The expiry of the stored client certificate.",
            self.certificate.map(|(_, end, _)| end),
        );
        add(
            "certificate_renewal_timestamp_seconds",
            "The time after which the certificate is renewed, or the expiry of a certificate that cannot be renewed.",
            self.certificate.map(|(.., renewal)| renewal),
        );
        add(
            "certificate_stored",
            "Whether a certificate of this machine is stored.",
            Some(self.certificate.is_some().into()),
        );
        add(
            "last_success_timestamp_seconds",
            "The time at which the stored certificate was obtained.",
            self.succeeded,
        );
        add(
            "last_attempt_timestamp_seconds",
            "The time of the last run that got, checked or failed to get a certificate.",
            self.attempt.map(|(_, at)| at),
        );
        add(
            "last_attempt_exit_code",
            "The exit code that the last run would have returned without a valid certificate; 0 after a success.",
            self.attempt.map(|(code, _)| code.into()),
        );
        add(
            "consecutive_failures",
            "The number of consecutive failures of the same kind.",
            Some(self.failures.into()),
        );
        add(
            "request_pending",
            "Whether a request without a certificate is pending.",
            Some(self.pending.is_some().into()),
        );
        add(
            "request_pending_since_timestamp_seconds",
            "The creation time of the pending request.",
            self.pending,
        );
        add(
            "backoff_until_timestamp_seconds",
            "The earliest time of the next attempt.",
            self.not_before,
        );
        text
    }
}

/// Replaces `path`, so that a collector reads either the old or the new text. All users can read the file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let shown = path.display();
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let what = format!("cannot write {shown}: it is not a regular file");
        let remedy = "use the path of a file, not of a link";
        return Err(Failure::new(Code::Store, what, remedy));
    }
    replace(path, text).map_err(|error| {
        let what = format!("cannot write {shown}: {error}");
        let remedy = "create its directory, and allow this user to write to it";
        Failure::new(Code::Store, what, remedy)
    })
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    // The collector ignores the temporary file, because it reads only files that match *.prom.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)?;
    let written = write_to(file, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}

fn write_to(mut file: File, text: &str) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))?;
    file_size::permit(text.len())?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
