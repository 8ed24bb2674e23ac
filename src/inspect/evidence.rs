//! The evidence of a request.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::evidence::aws::{AwsEvidence, cms};
use kubelet_attestation::evidence::tpm::{Bank, PublicAreas, TpmEvidence};
use kubelet_attestation::evidence::{Header, version_of};
use kubelet_attestation::names::Provider;
use serde_json::{Value, json};

use super::certificate::brief;
use super::{Document, sha256};
use crate::attester::LEFT_OUT;
use crate::failure::Failure;
use crate::sheet::Sheet;

/// The fields of an instance's identity document (the EC2 user guide, "Instance identity documents"), each with its
/// display name.
const DOCUMENT: [(&str, &str); 11] = [
    ("instanceId", "Instance"),
    ("accountId", "Account"),
    ("region", "Region"),
    ("availabilityZone", "Zone"),
    ("instanceType", "Type"),
    ("imageId", "Image"),
    ("architecture", "Architecture"),
    ("privateIp", "Private address"),
    ("pendingTime", "Launched"),
    ("kernelId", "Kernel"),
    ("version", "Document version"),
];

/// Decodes the JSON of evidence, or the evidence of a request in PEM.
pub(crate) fn evidence(document: &Document) -> Result<Sheet, Failure> {
    let text = document.text.trim_start();
    let remedy = "use the JSON of an evidence block, or a request in PEM";
    if text.starts_with("-----BEGIN ") {
        let envelope = Envelope::parse(text.as_bytes());
        let envelope =
            envelope.map_err(|error| document.is_not("request", &error_chain(&error), remedy))?;
        let Some(evidence) = envelope.evidence else {
            return Err(document.is_not("evidence", "the request has no evidence block", remedy));
        };
        return Ok(sheet(envelope.provider.as_ref(), &evidence));
    }
    if let Err(error) = version_of(document.text.as_bytes()) {
        return Err(document.is_not("evidence", &error_chain(&error), remedy));
    }
    Ok(sheet(None, document.text.as_bytes()))
}

/// The facts in evidence. Without `provider`, the members of the JSON object identify the provider.
pub(super) fn sheet(provider: Option<&Provider>, evidence: &[u8]) -> Sheet {
    let raw: Value = serde_json::from_slice(evidence).unwrap_or_default();
    let has = |member| raw.get(member).is_some();
    let is = |known: &Provider, member| match provider {
        Some(provider) => provider == known,
        None => has(member),
    };
    let facts = if is(&Provider::AWS, "sts") {
        aws(evidence, &raw)
    } else if is(&Provider::TPM, "phase") {
        tpm(evidence)
    } else {
        Header::parse(evidence)
            .map_err(|error| error_chain(&error))
            .map(|header| of_header(&header))
    };
    facts.unwrap_or_else(|why| {
        let mut sheet = Sheet::default();
        let version = version_of(evidence).ok().map(|version| version.to_string());
        sheet.text_or("version", "Version", version, "unknown");
        sheet.text("invalid", "Not decoded", why);
        sheet
    })
}

fn of_header(header: &Header) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.text("version", "Version", header.version.to_string());
    sheet.text("audience", "Audience", header.audience.to_string());
    sheet
}

fn aws(evidence: &[u8], raw: &Value) -> Result<Sheet, String> {
    let (whole, is_whole) = restored(evidence, raw);
    let evidence = AwsEvidence::parse(&whole).map_err(|error| error_chain(&error))?;
    let mut sheet = of_header(&evidence.header);
    sheet.part("document", "Identity document", document(&evidence.rsa2048));
    let mut call = Sheet::default();
    call.text("region", "Region", &evidence.sts.region);
    call.text("time", "Signed at", &evidence.sts.amz_date);
    let (state, words) = if is_whole {
        ("present", "present (not shown)")
    } else {
        ("left out", "omitted by `csr --dry-run`")
    };
    call.value("signature", "Signature", state, words);
    sheet.part("sts", "STS call", call);
    Ok(sheet)
}

/// Returns the evidence from `csr --dry-run`, with valid placeholders for the omitted values, and whether the evidence
/// was complete.
fn restored<'a>(evidence: &'a [u8], raw: &Value) -> (Cow<'a, [u8]>, bool) {
    let left_out = |member: &str| {
        let value = raw.get("sts").and_then(|sts| sts.get(member));
        value.and_then(Value::as_str) == Some(LEFT_OUT)
    };
    if !left_out("signature") {
        return (evidence.into(), true);
    }
    let mut raw = raw.clone();
    if let Some(Value::Object(sts)) = raw.get_mut("sts") {
        sts.insert("accessKeyId".to_owned(), json!("ASIA0000000000000000"));
        sts.insert("sessionToken".to_owned(), json!("0"));
        sts.insert("signature".to_owned(), json!("0".repeat(64)));
    }
    (raw.to_string().into_bytes().into(), false)
}

/// The fields of the signed document. The signature is not verified here.
fn document(rsa2048: &str) -> Sheet {
    let mut sheet = Sheet::default();
    let parsed = cms::content(rsa2048)
        .map_err(str::to_owned)
        .and_then(|bytes| {
            serde_json::from_slice::<Value>(&bytes).map_err(|error| error.to_string())
        });
    match parsed {
        Ok(document) => {
            for (key, name) in DOCUMENT {
                if let Some(text) = document.get(key).and_then(Value::as_str) {
                    sheet.text(key, name, text);
                }
            }
        }
        Err(why) => sheet.text("invalid", "Not decoded", why),
    }
    sheet
}

fn tpm(evidence: &[u8]) -> Result<Sheet, String> {
    let evidence = TpmEvidence::parse(evidence).map_err(|error| error_chain(&error))?;
    match evidence {
        TpmEvidence::Enrol(enrolment) => {
            let mut sheet = of_header(&enrolment.header);
            sheet.value("phase", "Phase", "enrol", "requests a challenge");
            keys(&enrolment.keys, &mut sheet);
            match enrolment.certificate.as_deref().map(brief) {
                None => sheet.value("certificate", "EK certificate", Value::Null, "none"),
                Some(Ok(part)) => sheet.part("certificate", "EK certificate", part),
                Some(Err(why)) => sheet.text("certificate", "EK certificate", why),
            }
            let count = enrolment.intermediates.len();
            sheet.value("intermediates", "Intermediates", count, count.to_string());
            Ok(sheet)
        }
        TpmEvidence::Respond(response) => {
            let mut sheet = of_header(&response.header);
            sheet.value("phase", "Phase", "respond", "answers a challenge");
            keys(&response.keys, &mut sheet);
            sheet.text("challenge", "Challenge", response.id.to_base64());
            sheet.text("challengeExpiry", "  ends at", response.expiry.as_str());
            let quote = sha256(&response.quote.attest);
            sheet.text("quoteSHA256", "Quote's SHA-256", quote);
            let bank = match response.quote.registers.bank() {
                Bank::Sha256 => "sha256",
                Bank::Sha384 => "sha384",
            };
            let registers = response.quote.registers.iter();
            let registers = registers.map(|(number, digest)| {
                let mut register = Sheet::default();
                let digest = HEXLOWER.encode(digest);
                register.value("pcr", "Register", number, number.to_string());
                register.text(bank, "Digest", digest);
                register
            });
            sheet.parts("pcrs", "PCR", registers.collect());
            Ok(sheet)
        }
    }
}

fn keys(keys: &PublicAreas, sheet: &mut Sheet) {
    let endorsement = sha256(&keys.endorsement);
    sheet.text("endorsementKeySHA256", "EK's SHA-256", endorsement);
    let attestation = sha256(&keys.attestation);
    sheet.text("attestationKeySHA256", "AK's SHA-256", attestation);
}
