//! The checks of `doctor`, and the facts of `identify`.

use kubelet_attestation::names::ProviderId;
use kubelet_authenticator::attester::{Finding, Identity, ProviderIdSources, Report};
use kubelet_authenticator::failure::{Code, Failure};

use crate::device::{digest, kind_of, read_keys};
use crate::protocol::Keys;
use crate::settings::TpmSettings;
use crate::{certificate, program};

const PROGRAM: &str = "tpm-program";
const TPM: &str = "tpm";
const CERTIFICATE: &str = "endorsement-certificate";

/// The checks, in the order of the output.
pub(crate) const CHECKS: &[&str] = &[PROGRAM, TPM, CERTIFICATE];

/// Makes the checks. Returns the TPM's keys.
pub(crate) fn examine(
    sources: &ProviderIdSources<'_>,
    report: Report<'_>,
) -> Result<Keys, Failure> {
    let settings = TpmSettings::of(sources.settings, sources.remembered);
    let program = program::find();
    let program = program.map(|path| Finding::pass(path.to_string_lossy()));
    report(PROGRAM, program.into());

    let keys = read_keys(&settings, sources.deadline);
    let place = match &settings.tcti {
        Some(tcti) => tcti.to_string(),
        None => settings.device.to_string_lossy().into_owned(),
    };
    let answers = |keys: &Keys| {
        let kind = kind_of(&keys.endorsement.0).unwrap_or_default();
        Finding::pass(format!("{place} answers, with an endorsement key {kind}"))
    };
    report(TPM, keys.as_ref().map(answers).map_err(Clone::clone).into());

    let finding = match &keys {
        Ok(keys) if has_certificate(keys) => Finding::pass("the TPM has one for its key"),
        Ok(_) => Finding::warn(&Failure::new(
            Code::EvidenceUnavailable,
            "the TPM has no certificate for its endorsement key",
            "have the controller list the key: `identify` prints its entry",
        )),
        Err(_) => Finding::skip("the TPM does not answer"),
    };
    report(CERTIFICATE, finding);
    keys
}

/// The identity of a machine with this provider ID and these keys.
pub(crate) fn identity(id: ProviderId, keys: &Keys) -> Identity {
    let certificate = if has_certificate(keys) {
        "in the TPM"
    } else {
        "none"
    };
    let kind = kind_of(&keys.endorsement.0).unwrap_or_default();
    let identity = Identity::new(id)
        .with("endorsementKey", "Endorsement key", kind)
        .with("certificate", "Certificate", certificate);
    Identity {
        endorsement_key: Some(digest(keys)),
        ..identity
    }
}

fn has_certificate(keys: &Keys) -> bool {
    let stored = keys.certificate.as_ref();
    stored.is_some_and(|stored| certificate::in_index(&stored.0).is_some())
}
