//! Certificates in PEM, with their key.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use kubelet_attestation::csr::extension::provider_id_text;
use kubelet_attestation::csr::oid;
use kubelet_attestation::errors::error_chain;
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{
    BasicConstraints, ExtendedKeyUsage, FromDer as _, KeyUsage, SubjectAlternativeName,
    X509Certificate,
};
use zeroize::Zeroizing;

use super::{at, sha256};
use crate::clock;
use crate::credential::{Leaf, has_key, parse};
use crate::failure::Invalid;
use crate::key::PrivateKey;
use crate::rotation::Validity;
use crate::secret::Secret;
use crate::sheet::Sheet;

const BEGIN: &str = "-----BEGIN ";

/// Returns the certificates of a string, leaf first, and its key.
pub(super) fn sheet(text: &str, now: SystemTime) -> Result<Sheet, Invalid> {
    let chain = chain(text)?;
    let [leaf, issuers @ ..] = chain.as_slice() else {
        return Err(Invalid::new("it has no CERTIFICATE block"));
    };
    let leaf = parse(leaf)?;
    let mut sheet = Sheet::default();
    facts(&leaf, now, &mut sheet)?;
    let (state, words) = match key(text) {
        None => ("none", "none in the file".to_owned()),
        Some(Ok(key)) if has_key(&leaf, &key) => match key.checked() {
            Ok(_) => ("fits", "matches the certificate (not shown)".to_owned()),
            Err(error) => ("damaged", format!("damaged: {error}")),
        },
        Some(Ok(_)) => ("another", "does not match the certificate".to_owned()),
        Some(Err(error)) => ("unreadable", error.to_string()),
    };
    sheet.value("privateKey", "Private key", state, words);
    let issuers: Result<Vec<_>, Invalid> = issuers
        .iter()
        .map(|der| {
            let mut sheet = Sheet::default();
            let certificate = parse(der)?;
            sheet.text("subject", "Subject", name(certificate.subject()));
            validity(&certificate, now, &mut sheet)?;
            Ok(sheet)
        })
        .collect();
    sheet.parts("chain", "Chain", issuers?);
    Ok(sheet)
}

/// Returns the DER of each certificate.
fn chain(text: &str) -> Result<Vec<Vec<u8>>, Invalid> {
    let mut chain = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text.as_bytes()) {
        // The bytes of keys are zeroized.
        let (kind, der) =
            section.map_err(|_| Invalid::new("it contains a block that is not PEM"))?;
        let der = Zeroizing::new(der);
        if kind == SectionKind::Certificate {
            chain.push(der.to_vec());
        }
    }
    Ok(chain)
}

/// Returns the private key in the text, if it contains one.
fn key(text: &str) -> Option<Result<PrivateKey, Invalid>> {
    let is_key = |block: &&str| {
        let label = block.split("-----").next();
        label.is_some_and(|label| label.ends_with("PRIVATE KEY"))
    };
    let block = text.split(BEGIN).skip(1).find(is_key)?;
    let pem = Secret::new([BEGIN, block].concat());
    Some(PrivateKey::from_pem(pem))
}

/// Returns the facts about one certificate.
pub(super) fn facts(
    certificate: &X509Certificate<'_>,
    now: SystemTime,
    sheet: &mut Sheet,
) -> Result<(), Invalid> {
    sheet.text("subject", "Subject", name(certificate.subject()));
    let leaf = Leaf::of(certificate)?;
    let node = leaf.node_name.as_ref().map(ToString::to_string);
    sheet.text_or("nodeName", "Node", node, "not a node certificate");
    sheet.text_or(
        "providerID",
        "Provider ID",
        provider_id(certificate),
        "none",
    );
    sheet.text("issuer", "Issuer", name(certificate.issuer()));
    sheet.text("serial", "Serial number", HEXLOWER.encode(&leaf.serial));
    validity(certificate, now, sheet)?;
    sheet.list("usages", "Usages", &usages(certificate));
    let names = alternative_names(certificate);
    if !names.is_empty() {
        sheet.list("alternativeNames", "Other names", &names);
    }
    let algorithm = &certificate.public_key().algorithm.algorithm;
    sheet.text(
        "keyAlgorithm",
        "Key",
        algorithm_name(&algorithm.to_id_string()),
    );
    let digest = sha256(certificate.public_key().raw);
    sheet.text("publicKeySHA256", "Key's SHA-256", digest);
    Ok(())
}

/// A distinguished name, in the string format of `x509-parser`.
fn name(name: &x509_parser::x509::X509Name<'_>) -> String {
    name.to_string()
}

fn validity(
    certificate: &X509Certificate<'_>,
    now: SystemTime,
    sheet: &mut Sheet,
) -> Result<(), Invalid> {
    let Validity {
        not_before,
        not_after,
    } = Leaf::of(certificate)?.validity;
    let left = clock::until(not_after, now).as_secs();
    let state = match left {
        _ if now < not_before => "not valid yet".to_owned(),
        0 => "expired".to_owned(),
        1..=7199 => format!("{} minutes left", left / 60),
        7200..=172_799 => format!("{} hours left", left / 3600),
        _ => format!("{} days left", left / 86400),
    };
    sheet.text("notBefore", "Valid from", at(not_before));
    let until = at(not_after);
    sheet.value(
        "notAfter",
        "Valid until",
        until.clone(),
        format!("{until} ({state})"),
    );
    Ok(())
}

fn extension<'a>(certificate: &'a X509Certificate<'_>, kind: &[u8]) -> Option<&'a [u8]> {
    let mut extensions = certificate.extensions().iter();
    let found = extensions.find(|extension| extension.oid.as_bytes() == kind);
    found.map(|extension| extension.value)
}

fn provider_id(certificate: &X509Certificate<'_>) -> Option<String> {
    let value = extension(certificate, oid::PROVIDER_ID.as_bytes())?;
    provider_id_text(value).map(str::to_owned)
}

/// The usages of the certificate, with their Kubernetes names if they have one.
fn usages(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut usages = Vec::new();
    let value = extension(certificate, oid::KEY_USAGE.as_bytes());
    if let Some((_, usage)) = value.and_then(|value| KeyUsage::from_der(value).ok()) {
        usages.push(usage.to_string().to_lowercase());
    }
    let value = extension(certificate, oid::EXTENDED_KEY_USAGE.as_bytes());
    if let Some((_, usage)) = value.and_then(|value| ExtendedKeyUsage::from_der(value).ok()) {
        let known = [
            (usage.client_auth, "client auth"),
            (usage.server_auth, "server auth"),
            (usage.any, "any"),
        ];
        let known = known.into_iter().filter(|(has, _)| *has);
        usages.extend(known.map(|(_, name)| name.to_owned()));
        usages.extend(usage.other.iter().map(ToString::to_string));
    }
    let value = extension(certificate, oid::BASIC_CONSTRAINTS.as_bytes());
    if let Some((_, basic)) = value.and_then(|value| BasicConstraints::from_der(value).ok())
        && basic.ca
    {
        usages.push("certificate authority".to_owned());
    }
    usages
}

fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let value = extension(certificate, oid::SUBJECT_ALT_NAME.as_bytes());
    let parsed = value.and_then(|value| SubjectAlternativeName::from_der(value).ok());
    let names = parsed.map(|(_, parsed)| parsed.general_names);
    let names = names.unwrap_or_default();
    names.iter().map(GeneralName::to_string).collect()
}

/// The name of a key's algorithm.
pub(super) fn algorithm_name(id: &str) -> String {
    match id {
        "1.2.840.10045.2.1" => "ECDSA".to_owned(),
        "1.2.840.113549.1.1.1" => "RSA".to_owned(),
        "1.3.101.112" => "Ed25519".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the subject, the issuer and the key's digest of a certificate in DER.
pub(super) fn brief(der: &[u8]) -> Result<Sheet, String> {
    let certificate = parse(der).map_err(|error| error_chain(&error))?;
    let mut sheet = Sheet::default();
    sheet.text("subject", "Subject", name(certificate.subject()));
    sheet.text("issuer", "Issuer", name(certificate.issuer()));
    let digest = sha256(certificate.public_key().raw);
    sheet.text("publicKeySHA256", "Key's SHA-256", digest);
    Ok(sheet)
}
