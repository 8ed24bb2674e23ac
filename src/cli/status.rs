//! The output of `status`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use humantime::format_rfc3339_seconds;
use serde::Serialize;

use crate::attester::Renewal;
use crate::authenticator::Authenticator;
use crate::backoff::FailureRecord;
use crate::credential::Credential;
use crate::failure::Failure;
use crate::pending::Pending;
use crate::rotation::Rotation;
use crate::store::{Store, StoreFile};

/// The state of the credential, from the store and the settings alone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    provider: String,
    state_directory: String,
    node_name: Option<String>,
    server: Option<String>,
    due: &'static str,
    certificate: Option<CertificateStatus>,
    pending_request: Option<PendingStatus>,
    last_failure: Option<FailureStatus>,
    set_aside_next: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateStatus {
    serial: String,
    not_before: String,
    not_after: String,
    percent_left: u8,
    /// Absent if the certificate cannot be renewed.
    renew_at: Option<String>,
    renewable: bool,
    warning: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PendingStatus {
    name: String,
    created: String,
    acknowledged: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureStatus {
    exit_code: u8,
    message: String,
    remedy: String,
    count: u32,
    at: String,
    not_tried_before: String,
}

impl Status {
    pub(super) fn of(authenticator: &Authenticator<'_>, now: SystemTime) -> Result<Self, Failure> {
        let (store, stored) = authenticator.stored()?;
        let renewal = authenticator.attester.renewal();
        let due = match authenticator.rotation(&stored, now) {
            Rotation::Keep => "nothing",
            Rotation::Renew => "renewal",
            Rotation::Enrol => "enrolment",
        };
        let rejected = stored.rejected.iter();
        Ok(Self {
            provider: authenticator.attester.provider().to_string(),
            state_directory: authenticator.settings.state_directory.display().to_string(),
            node_name: stored
                .origin
                .as_ref()
                .map(|origin| origin.node_name.to_string()),
            server: stored
                .origin
                .as_ref()
                .map(|origin| origin.endpoint.server.clone()),
            due,
            certificate: stored
                .credential
                .as_ref()
                .map(|credential| certificate(credential, renewal, now)),
            pending_request: store.as_ref().and_then(pending),
            last_failure: store.as_ref().and_then(last_failure),
            set_aside_next: rejected
                .map(|rejected| format!("{}: {}", rejected.file.name(), rejected.why))
                .collect(),
        })
    }

    pub(super) fn to_table(&self) -> String {
        let mut rows = vec![
            ("Provider", self.provider.clone()),
            ("Store", self.state_directory.clone()),
            ("Node", or_none(self.node_name.as_deref())),
            ("API server", or_none(self.server.as_deref())),
            ("Due", self.due.to_owned()),
        ];
        match &self.certificate {
            None => rows.push(("Certificate", "none".to_owned())),
            Some(certificate) => rows.extend(certificate.rows()),
        }
        match &self.pending_request {
            None => rows.push(("Pending request", "none".to_owned())),
            Some(pending) => {
                rows.push(("Pending request", pending.name.clone()));
                rows.push(("  made at", pending.created.clone()));
            }
        }
        match &self.last_failure {
            None => rows.push(("Last failure", "none".to_owned())),
            Some(failure) => rows.extend(failure.rows()),
        }
        for file in &self.set_aside_next {
            rows.push(("Of no use", file.clone()));
        }
        let width = rows
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or_default();
        let lines = rows.iter();
        let lines = lines.map(|(name, value)| format!("{name:width$}  {value}\n"));
        lines.collect::<Vec<_>>().concat()
    }
}

impl CertificateStatus {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let renewal = self.renew_at.clone();
        let mut rows = vec![
            ("Certificate", self.serial.clone()),
            ("  valid from", self.not_before.clone()),
            (
                "  valid until",
                format!("{} ({} % left)", self.not_after, self.percent_left),
            ),
            (
                "  renewed from",
                renewal.unwrap_or_else(|| "never: it cannot be renewed".to_owned()),
            ),
        ];
        if let Some(warning) = &self.warning {
            rows.push(("  warning", warning.clone()));
        }
        rows
    }
}

impl FailureStatus {
    fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "Last failure",
                format!("exit code {}, {} in a row", self.exit_code, self.count),
            ),
            ("  at", self.at.clone()),
            ("  what", self.message.clone()),
            ("  to do", self.remedy.clone()),
            ("  not tried before", self.not_tried_before.clone()),
        ]
    }
}

fn certificate(credential: &Credential, renewal: Renewal, now: SystemTime) -> CertificateStatus {
    let leaf = credential.leaf();
    let validity = leaf.validity;
    let renewable = renewal == Renewal::Attested;
    let warning = (!renewable && validity.runs_out(now))
        .then(|| "it will not be renewed; the node enrols again once it has ended".to_owned());
    CertificateStatus {
        serial: HEXLOWER.encode(&leaf.serial),
        not_before: format_rfc3339_seconds(validity.not_before).to_string(),
        not_after: format_rfc3339_seconds(validity.not_after).to_string(),
        percent_left: percent(validity.share_left(now)),
        renew_at: renewable.then(|| format_rfc3339_seconds(credential.renew_at()).to_string()),
        renewable,
        warning,
    }
}

/// Rounded down, without a cast.
fn percent(share: f64) -> u8 {
    (1..=100_u8)
        .take_while(|percent| share * 100.0 >= f64::from(*percent))
        .last()
        .unwrap_or_default()
}

fn pending(store: &Store) -> Option<PendingStatus> {
    let text = store.read(StoreFile::Pending).ok().flatten()?;
    let open = Pending::parse(&text).ok()?.request?;
    Some(PendingStatus {
        name: open.name,
        created: at(open.created),
        acknowledged: open.acknowledged,
    })
}

fn last_failure(store: &Store) -> Option<FailureStatus> {
    let record = FailureRecord::read(store)?;
    Some(FailureStatus {
        exit_code: record.code,
        message: record.message,
        remedy: record.remedy,
        count: record.count,
        at: at(record.at),
        not_tried_before: at(record.not_before),
    })
}

fn at(seconds: u64) -> String {
    let seconds = seconds.min(u64::from(u32::MAX));
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

fn or_none(text: Option<&str>) -> String {
    text.unwrap_or("none").to_owned()
}
