//! The checks of `doctor`, and the facts of `identify`.

use std::time::SystemTime;

use kubelet_attestation::evidence::tpm::{Bank, Registers};
use kubelet_attestation::names::ProviderId;
use kubelet_authenticator::attester::{Finding, Identity, ProviderIdSources, Report};
use kubelet_authenticator::clock::now;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::process;

use crate::certificate::{Facts, Time};
use crate::device::{self, Examination, digest, key_of, kind_of, read_keys};
use crate::protocol::{DeviceError, Keys};
use crate::settings::TpmSettings;
use crate::{certificate, device_error, measurements, program};

const PROGRAM: &str = "tpm-program";
const TPM: &str = "tpm";
const CERTIFICATE: &str = "endorsement-certificate";
const MEASUREMENTS: &str = "boot-measurements";

/// The checks, in the order of the output.
pub(crate) const CHECKS: &[&str] = &[PROGRAM, TPM, CERTIFICATE, MEASUREMENTS];

/// Runs the checks, and returns the TPM's keys.
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
        Finding::pass(format!("{place} responds, with an endorsement key {kind}"))
    };
    report(TPM, keys.as_ref().map(answers).map_err(Clone::clone).into());

    let Ok(read) = &keys else {
        for check in [CERTIFICATE, MEASUREMENTS] {
            report(check, Finding::skip("the TPM does not respond"));
        }
        return keys;
    };
    let Some(kind) = key_of(&read.endorsement.0) else {
        let error = device_error::failure(&place, &DeviceError::InvalidKey);
        for check in [CERTIFICATE, MEASUREMENTS] {
            report(check, Finding::fail(&error));
        }
        return keys;
    };
    let examined = device::examine(&settings, kind, sources.deadline);
    let has_index = match &examined {
        Ok(Examination::Read(findings)) => Some(findings.has_certificate_index),
        Ok(Examination::Unsupported(_)) | Err(_) => None,
    };
    let finding = certificate_of(read, kind.certificate_index(), has_index, now());
    report(CERTIFICATE, finding);
    let measured = match examined {
        Ok(Examination::Read(findings)) => match findings.firmware {
            Some(firmware) => measured(&firmware),
            None => Finding::fail(&device_error::failure(&place, &DeviceError::NoBank)),
        },
        // Joins and renewals do not depend on this check.
        Ok(Examination::Unsupported(failure)) => Finding::warn(&failure),
        Err(failure) => Finding::fail(&failure),
    };
    report(MEASUREMENTS, measured);
    keys
}

/// Returns the finding for the certificate index `index`. `has_index` is `None` if the TPM helper does not report
/// whether the index is defined.
fn certificate_of(keys: &Keys, index: u32, has_index: Option<bool>, now: SystemTime) -> Finding {
    let warn = |what: &str, remedy: &str| {
        Finding::warn(&Failure::new(Code::EvidenceUnavailable, what, remedy))
    };
    let Some(der) = stored(keys) else {
        return if let Some(content) = &keys.certificate {
            if is_text(&content.0) {
                let text = "the TPM's index for the certificate contains text instead of DER";
                warn(text, &convert(index))
            } else {
                let other = "the TPM's index for the certificate contains other data";
                warn(other, &list())
            }
        } else {
            let withheld =
                "the TPM does not allow every user to read its endorsement key certificate";
            match has_index {
                Some(true) => warn(withheld, &redefine(index)),
                Some(false) => {
                    let what = "the TPM has no certificate for its endorsement key";
                    warn(what, &fetch(index))
                }
                None => {
                    let what = "the TPM has no readable certificate for its endorsement key";
                    warn(what, &list())
                }
            }
        };
    };
    let Some(facts) = certificate::facts(der, &keys.spki.0, now) else {
        return warn("cannot parse the certificate in the TPM", &list());
    };
    let Facts { issuer, expiry, .. } = &facts;
    let what = format!("issued by {issuer}, expires on {expiry}");
    match facts.time {
        _ if !facts.is_for_key => warn(
            &format!("the certificate in the TPM does not match the endorsement key: {what}"),
            &format!("select another key (tpm.endorsementKey), or {}", list()),
        ),
        Time::Valid => Finding::pass(what),
        Time::ExpiresSoon => warn(&format!("the certificate expires soon: {what}"), &list()),
        Time::Expired => warn(&format!("the certificate has expired: {what}"), &list()),
    }
}

fn measured(firmware: &Registers) -> Finding {
    let bank = match firmware.bank() {
        Bank::Sha256 => "SHA-256",
        Bank::Sha384 => "SHA-384",
    };
    let unmeasured = measurements::unmeasured(firmware);
    if unmeasured.is_empty() {
        return Finding::pass(format!("the firmware measures the boot ({bank})"));
    }
    let numbers: Vec<_> = unmeasured.iter().map(u8::to_string).collect();
    Finding::warn(&Failure::new(
        Code::EvidenceUnavailable,
        format!(
            "the firmware has not measured the boot into PCRs {} ({bank}): any operating system can extend these PCRs",
            numbers.join(", ")
        ),
        "enable the SHA-256 PCR bank in the firmware setup, or update the firmware; until then, do \
         not use these PCRs in a PCR policy",
    ))
}

/// The hint for TPMs without a certificate. A list of keys is not sufficient if the Cluster requires a certificate, so
/// the hint contains both steps.
fn list() -> String {
    format!(
        "add the key to the controller's list of endorsement keys (run: {} identify), and do not require a certificate",
        process::command()
    )
}

/// The hint for an index that is not readable without authorization.
fn redefine(index: u32) -> String {
    let (list, undefine, store) = (list(), undefine(index), store(index));
    format!(
        "{list}; or read the certificate (`tpm2_nvread {index:#x} -C o -o ek.der`), {undefine} and {store}"
    )
}

/// The hint for a TPM whose vendor publishes the certificate elsewhere.
fn fetch(index: u32) -> String {
    let (list, store) = (list(), store(index));
    format!(
        "{list}; or fetch the certificate (`tpm2_getekcertificate`, which writes text for an Intel TPM), convert it \
         to DER in ek.der and {store}"
    )
}

/// The hint for an index that contains the output of `tpm2_getekcertificate` for an Intel TPM.
fn convert(index: u32) -> String {
    let (list, undefine, store) = (list(), undefine(index), store(index));
    format!("{list}; or {undefine}, convert the certificate to DER in ek.der and {store}")
}

fn undefine(index: u32) -> String {
    format!("undefine the index (`tpm2_nvundefine {index:#x} -C o`)")
}

fn store(index: u32) -> String {
    format!(
        "store it: `tpm2_nvdefine {index:#x} -C o -s \"$(stat -c %s ek.der)\" -a \
         'ownerwrite|ownerread|authread|no_da'`, `tpm2_nvwrite {index:#x} -C o -i ek.der`"
    )
}

/// The identity of a machine with this provider ID and these keys.
pub(crate) fn identity(id: ProviderId, keys: &Keys) -> Identity {
    let stored = stored(keys);
    let place = if stored.is_some() {
        "in the TPM"
    } else {
        "none"
    };
    let kind = kind_of(&keys.endorsement.0).unwrap_or_default();
    let mut identity = Identity::new(id)
        .with("endorsementKey", "Endorsement key", kind)
        .with("certificate", "Certificate", place);
    if let Some(facts) = stored.and_then(|der| certificate::facts(der, &keys.spki.0, now())) {
        identity = identity
            .with("certificateIssuer", "Issuer", facts.issuer)
            .with("certificateExpiry", "Expires on", facts.expiry);
    }
    Identity {
        endorsement_key: Some(digest(keys)),
        ..identity
    }
}

/// Whether the content is PEM, or the response from Intel's service.
fn is_text(content: &[u8]) -> bool {
    let text = content.trim_ascii_start();
    text.starts_with(b"-----BEGIN") || text.starts_with(b"{")
}

/// The certificate in the TPM, without padding.
fn stored(keys: &Keys) -> Option<&[u8]> {
    let stored = keys.certificate.as_ref()?;
    certificate::in_index(&stored.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Bytes;

    fn keys(certificate: Option<Vec<u8>>) -> Keys {
        Keys {
            endorsement: Bytes(vec![]),
            spki: Bytes(vec![1]),
            certificate: certificate.map(Bytes),
            chain: Bytes(vec![]),
            attestation: Bytes(vec![]),
        }
    }

    fn warning(what: &str, remedy: &str) -> Finding {
        Finding::warn(&Failure::new(Code::EvidenceUnavailable, what, remedy))
    }

    #[test]
    fn the_remedy_for_a_missing_certificate_lifts_the_requirement() {
        let of = |certificate, has_index| {
            certificate_of(&keys(certificate), 0x01c0_000a, has_index, now())
        };
        let none = "the TPM has no certificate for its endorsement key";
        let withheld = "the TPM does not allow every user to read its endorsement key certificate";
        let unreadable = [&[0x30, 0x82, 1, 0][..], &[0; 256]].concat();
        assert!(
            LIST.ends_with("), and do not require a certificate"),
            "{LIST}"
        );
        let store = "store it: `tpm2_nvdefine 0x1c0000a -C o -s \"$(stat -c %s ek.der)\" -a \
                     'ownerwrite|ownerread|authread|no_da'`, `tpm2_nvwrite 0x1c0000a -C o -i ek.der`";

        let fetched = format!(
            "{LIST}; or fetch the certificate (`tpm2_getekcertificate`, which writes text for an Intel TPM), convert \
             it to DER in ek.der and {store}"
        );
        assert_eq!(of(None, Some(false)), warning(none, &fetched));
        let undefine = "undefine the index (`tpm2_nvundefine 0x1c0000a -C o`)";
        let read = "or read the certificate (`tpm2_nvread 0x1c0000a -C o -o ek.der`)";
        let redefined = format!("{LIST}; {read}, {undefine} and {store}");
        assert_eq!(of(None, Some(true)), warning(withheld, &redefined));
        // The helper does not report whether the index is defined, so the commands in the other two hints could fail,
        // or replace a certificate.
        let unknown = "the TPM has no readable certificate for its endorsement key";
        assert_eq!(of(None, None), warning(unknown, LIST));
        let blank = warning(
            "the TPM's index for the certificate contains other data",
            LIST,
        );
        assert_eq!(of(Some(vec![0xff; 300]), Some(true)), blank);
        let text = "the TPM's index for the certificate contains text instead of DER";
        let converted =
            format!("{LIST}; or {undefine}, convert the certificate to DER in ek.der and {store}");
        // The misspelled PEM comes from tpm2-tools 5.4.
        for content in [
            "-----BEGIN CERTIFICATE-----\nMIIC",
            "\n-----BEGIN CERTRTIFICATE-----\nMIIC",
            "{\"pubhash\":\"x\",\"certificate\":\"MIIC\"}",
        ] {
            let found = of(Some(content.into()), Some(true));
            assert_eq!(found, warning(text, &converted), "{content}");
        }
        let expected = warning("cannot parse the certificate in the TPM", LIST);
        assert_eq!(of(Some(unreadable), Some(true)), expected);
    }

    #[test]
    fn unmeasured_registers_are_a_warning_with_their_bank() {
        let zero = |bank: Bank| {
            let digests = (0..=7).map(|number| (number, vec![0; bank.digest_len()]));
            measured(&Registers::of_bank(bank, digests.collect()).unwrap())
        };
        let said = |finding: &Finding| format!("{finding:?}");

        let all = "into PCRs 0, 1, 2, 3, 4, 5, 6, 7 ";
        for (bank, name) in [(Bank::Sha256, "(SHA-256)"), (Bank::Sha384, "(SHA-384)")] {
            let finding = said(&zero(bank));
            assert!(finding.contains(&format!("{all}{name}")), "{finding}");
        }
        let digests = (0..=7).map(|number| (number, [7; 32])).collect();
        let pass = Finding::pass("the firmware measures the boot (SHA-256)");
        assert_eq!(measured(&Registers::new(digests).unwrap()), pass);
    }
}
