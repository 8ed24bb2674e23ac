//! The output of `status`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use kubelet_attestation::names::NodeName;
use kubelet_attestation::text::visible;
use serde_json::{Value, json};

use crate::attester::Renewal;
use crate::authenticator::{Authenticator, bound};
use crate::backoff::FailureRecord;
use crate::failure::Failure;
use crate::node_name::Bound;
use crate::pending::{OpenRequest, Pending};
use crate::rotation::{Rotation, Validity};
use crate::store::{Store, StoreFile};
use crate::store_contents::StoreContents;

/// The state of the credential, from the store, the settings and the sources of the node's name.
pub(super) struct Status {
    provider: String,
    state_directory: String,
    node_name: Option<NodeName>,
    due: &'static str,
    /// Whether the certificate can be renewed.
    renewable: bool,
    stored: StoreContents,
    pending: Option<OpenRequest>,
    failure: Option<FailureRecord>,
    now: SystemTime,
}

impl Status {
    pub(super) fn of(authenticator: &Authenticator<'_>, now: SystemTime) -> Result<Self, Failure> {
        let (store, stored) = authenticator.stored()?;
        Ok(Self {
            provider: authenticator.attester.provider().to_string(),
            state_directory: authenticator.settings.state_directory.display().to_string(),
            node_name: node_name(authenticator, &stored),
            due: match authenticator.rotation(&stored, now) {
                Rotation::Keep => "nothing",
                Rotation::Renew => "renewal",
                Rotation::Enrol => "enrollment",
            },
            renewable: authenticator.attester.renewal() == Renewal::Attested,
            stored,
            pending: store.as_ref().and_then(pending),
            failure: store.as_ref().and_then(FailureRecord::read),
            now,
        })
    }

    fn warning(&self, validity: Validity) -> Option<&'static str> {
        (!self.renewable && validity.runs_out(self.now))
            .then_some("it cannot be renewed; the node enrolls again after it expires")
    }

    fn set_aside_next(&self) -> impl Iterator<Item = String> {
        let rejected = self.stored.rejected.iter();
        rejected.map(|(file, why)| format!("{}: {why}", file.name()))
    }

    pub(super) fn to_json(&self) -> Value {
        let origin = self.stored.origin.as_ref();
        let certificate = self.stored.credential.as_ref().map(|credential| {
            let leaf = credential.leaf();
            json!({
                "serial": HEXLOWER.encode(&leaf.serial),
                "notBefore": at(leaf.validity.not_before),
                "notAfter": at(leaf.validity.not_after),
                "percentLeft": percent(leaf.validity.share_left(self.now)),
                "renewAt": self.renewable.then(|| at(credential.renew_at())),
                "renewable": self.renewable,
                "warning": self.warning(leaf.validity),
            })
        });
        let pending = self.pending.as_ref().map(|open| {
            json!({
                "name": open.name,
                "nodeName": open.subject.node_name.as_str(),
                "created": at_second(open.created),
                "acknowledged": open.acknowledged,
            })
        });
        let failure = self.failure.as_ref().map(|record| {
            json!({
                "exitCode": record.code,
                "message": record.message,
                "remedy": record.remedy,
                "count": record.count,
                "at": at_second(record.at),
                "nextAttemptNotBefore": at_second(record.not_before),
            })
        });
        json!({
            "provider": self.provider,
            "stateDirectory": self.state_directory,
            "nodeName": self.node_name.as_ref().map(NodeName::as_str),
            "server": origin.map(|origin| &origin.endpoint.server),
            "due": self.due,
            "certificate": certificate,
            "pendingRequest": pending,
            "lastFailure": failure,
            "setAsideNext": self.set_aside_next().collect::<Vec<_>>(),
        })
    }

    pub(super) fn to_table(&self) -> String {
        let none = || "none".to_owned();
        let node_name = self.node_name.as_ref();
        let node_name = node_name.map_or_else(none, NodeName::to_string);
        let origin = self.stored.origin.as_ref();
        let server = origin.map_or_else(none, |origin| origin.endpoint.server.clone());
        let mut rows = vec![
            ("Provider", self.provider.clone()),
            ("State directory", self.state_directory.clone()),
            ("Node", node_name),
            ("API server", server),
            ("Next action", self.due.to_owned()),
        ];
        if let Some(credential) = &self.stored.credential {
            let leaf = credential.leaf();
            let validity = leaf.validity;
            let left = percent(validity.share_left(self.now));
            let renewal = if self.renewable {
                at(credential.renew_at())
            } else {
                "never (it cannot be renewed)".to_owned()
            };
            rows.extend([
                ("Certificate serial", HEXLOWER.encode(&leaf.serial)),
                ("  valid from", at(validity.not_before)),
                (
                    "  valid until",
                    format!("{} ({left} % left)", at(validity.not_after)),
                ),
                ("  renews after", renewal),
            ]);
            let warning = self.warning(validity);
            rows.extend(warning.map(|text| ("  warning", text.to_owned())));
        } else {
            rows.push(("Certificate", none()));
        }
        let pending = self.pending.as_ref();
        let name = pending.map_or_else(none, |open| open.name.clone());
        rows.push(("Pending request", name));
        if let Some(open) = pending {
            rows.extend([
                ("  for node", open.subject.node_name.to_string()),
                ("  created", at_second(open.created)),
            ]);
        }
        let failure = self.failure.as_ref();
        let kind = |record: &FailureRecord| {
            format!(
                "exit code {} (consecutive failures: {})",
                record.code, record.count
            )
        };
        rows.push(("Last failure", failure.map_or_else(none, kind)));
        if let Some(record) = failure {
            rows.extend([
                ("  at", at_second(record.at)),
                ("  error", record.message.clone()),
                ("  hint", record.remedy.clone()),
                (
                    "  next attempt",
                    format!("{} (after back-off)", at_second(record.not_before)),
                ),
            ]);
        }
        rows.extend(
            self.set_aside_next()
                .map(|file| ("Will be discarded", file)),
        );
        let width = rows.iter().map(|(name, _)| name.len()).max();
        let width = width.unwrap_or_default();
        let lines = rows.iter();
        let lines = lines.map(|(name, value)| format!("{name:width$}  {}\n", visible(value)));
        lines.collect()
    }
}

/// The name of the stored certificate, or otherwise the name of the next request. If an earlier request did not get a
/// certificate, the next request can have a different name.
fn node_name(authenticator: &Authenticator<'_>, stored: &StoreContents) -> Option<NodeName> {
    let settings = &authenticator.settings;
    match bound(settings, stored) {
        Some(Bound::Stored(name)) => Some(name),
        bound => {
            let local = authenticator.local();
            let sources = local.sources(settings, bound.as_ref());
            sources.ok()?.decide().ok()
        }
    }
}

/// The percentage, rounded down. The function avoids a cast.
fn percent(share: f64) -> u8 {
    (1..=100_u8)
        .take_while(|percent| share * 100.0 >= f64::from(*percent))
        .last()
        .unwrap_or_default()
}

fn pending(store: &Store) -> Option<OpenRequest> {
    let text = store.read(StoreFile::Pending).ok().flatten()?;
    Pending::parse(&text).ok()?.request
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn at_second(since_1970: u64) -> String {
    let seconds = since_1970.min(u64::from(u32::MAX));
    at(UNIX_EPOCH + Duration::from_secs(seconds))
}
