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
        let (origin, rejected) = (stored.origin.as_ref(), stored.rejected.iter());
        Ok(Self {
            provider: authenticator.attester.provider().to_string(),
            state_directory: authenticator.settings.state_directory.display().to_string(),
            node_name: origin.map(|origin| origin.node_name.to_string()),
            server: origin.map(|origin| origin.endpoint.server.clone()),
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
        let none = "none".to_owned();
        if let Some(certificate) = &self.certificate {
            let (end, left) = (&certificate.not_after, certificate.percent_left);
            let renewal = certificate.renew_at.clone();
            rows.extend([
                ("Certificate", certificate.serial.clone()),
                ("  valid from", certificate.not_before.clone()),
                ("  valid until", format!("{end} ({left} % left)")),
                (
                    "  renewed from",
                    renewal.unwrap_or_else(|| "never: it cannot be renewed".to_owned()),
                ),
            ]);
            rows.extend(certificate.warning.clone().map(|text| ("  warning", text)));
        } else {
            rows.push(("Certificate", none.clone()));
        }
        if let Some(pending) = &self.pending_request {
            rows.push(("Pending request", pending.name.clone()));
            rows.push(("  made at", pending.created.clone()));
        } else {
            rows.push(("Pending request", none.clone()));
        }
        if let Some(failure) = &self.last_failure {
            let (code, count) = (failure.exit_code, failure.count);
            rows.extend([
                (
                    "Last failure",
                    format!("exit code {code}, {count} in a row"),
                ),
                ("  at", failure.at.clone()),
                ("  what", failure.message.clone()),
                ("  to do", failure.remedy.clone()),
                ("  not tried before", failure.not_tried_before.clone()),
            ]);
        } else {
            rows.push(("Last failure", none));
        }
        for file in &self.set_aside_next {
            rows.push(("Of no use", file.clone()));
        }
        let width = rows.iter().map(|(name, _)| name.len()).max();
        let width = width.unwrap_or_default();
        let lines = rows.iter();
        let lines = lines.map(|(name, value)| format!("{name:width$}  {value}\n"));
        lines.collect::<Vec<_>>().concat()
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
