//! Requests to this machine's TPM.

use std::path::PathBuf;

use data_encoding::HEXLOWER;
use kubelet_attestation::names::ProviderId;
use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::failure::{Code, Failure};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::device_error::SAME_VERSION;
use crate::protocol::{Ask, DeviceError, EndorsementKey, Findings, Keys, Question, Version};
use crate::settings::{self, TpmSettings};
use crate::{device_check, program};

/// The scheme of provider IDs that are derived from endorsement keys.
pub(crate) const SCHEME: &str = "tpm://";

/// The SHA-256 digest of the endorsement key's `SubjectPublicKeyInfo`, in the format of endorsement key lists.
pub(crate) fn digest(keys: &Keys) -> String {
    HEXLOWER.encode(&Sha256::digest(&keys.spki.0))
}

/// The type of an endorsement key (`TPMT_PUBLIC`).
pub(crate) fn key_of(endorsement: &[u8]) -> Option<EndorsementKey> {
    // The type and the name algorithm distinguish the templates (Part 2, TPMT_PUBLIC).
    match endorsement.first_chunk()? {
        [0x00, 0x01, 0x00, 0x0b] => Some(EndorsementKey::Rsa2048),
        [0x00, 0x23, 0x00, 0x0b] => Some(EndorsementKey::EccP256),
        [0x00, 0x23, 0x00, 0x0c] => Some(EndorsementKey::EccP384),
        _ => None,
    }
}

/// The type of an endorsement key (`TPMT_PUBLIC`), as in the settings.
pub(crate) fn kind_of(endorsement: &[u8]) -> Option<&'static str> {
    key_of(endorsement).and_then(settings::endorsement_key_name)
}

/// Returns the provider ID of a machine with these keys.
pub(crate) fn name_of(keys: &Keys) -> Result<ProviderId, Failure> {
    ProviderId::parse(&format!("{SCHEME}{}", digest(keys))).map_err(|error| {
        let what = "the TPM has no name";
        Failure::new(Code::DeviceUnavailable, what, "report this as a bug").because(&error)
    })
}

/// Reads the keys.
pub(crate) fn read_keys(settings: &TpmSettings, deadline: Deadline) -> Result<Keys, Failure> {
    let endorsement_key = settings.endorsement_key;
    ask(settings, Ask::Keys { endorsement_key }, deadline)
}

/// The result of [`examine`].
#[derive(Debug)]
pub(crate) enum Examination {
    Read(Findings),
    /// The TPM helper is too old for this request, but can read keys and create quotes.
    Unsupported(Failure),
}

/// Reads the findings about the TPM for `doctor`.
pub(crate) fn examine(
    settings: &TpmSettings,
    endorsement_key: EndorsementKey,
    deadline: Deadline,
) -> Result<Examination, Failure> {
    let (program, question) = prepare(settings, Ask::Examine { endorsement_key })?;
    match program::answer(&program, &question, deadline)? {
        Ok(findings) => Ok(Examination::Read(findings)),
        Err(DeviceError::Question) => {
            let place = program.display();
            let version = match ask(settings, Ask::Version {}, deadline) {
                Ok(Version { version }) => format!("version {version}"),
                // The helper does not support the version request either.
                Err(_) => "an earlier version".to_owned(),
            };
            Ok(Examination::Unsupported(Failure::new(
                Code::DeviceUnavailable,
                format!("not checked: {place} has {version}, which does not support this check"),
                SAME_VERSION,
            )))
        }
        Err(error) => Err(program::failure(&question, &error)),
    }
}

/// Sends a request to the TPM.
pub(crate) fn ask<T: DeserializeOwned>(
    settings: &TpmSettings,
    ask: Ask,
    deadline: Deadline,
) -> Result<T, Failure> {
    let (program, question) = prepare(settings, ask)?;
    program::ask(&program, &question, deadline)
}

/// Returns the path of the TPM helper, and the input for this request.
fn prepare(settings: &TpmSettings, ask: Ask) -> Result<(PathBuf, Question), Failure> {
    let tcti = if let Some(tcti) = &settings.tcti {
        tcti.to_string()
    } else {
        device_check::check(&settings.device)?;
        format!("{}{}", program::DEVICE, settings.device.display())
    };
    let program = program::find()?;
    let asker = std::process::id();
    Ok((program, Question { asker, tcti, ask }))
}
