//! Instance identity documents in the format of the AWS instance metadata service (`dynamic/instance-identity/document`
//! and `rsa2048`), signed by a test signer.
//!
//! The messages have the same structure as messages published in 2021, byte for byte except for the signed content. A
//! test can change a part of a message ([`message`]).

pub mod message;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyPair,
    SerialNumber, date_time_ymd,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::Value;

pub use message::Message;

use crate::tlv;

/// The issuer name in the certificates with which AWS signs documents, starting with the country.
const ISSUER: [(DnType, &[u64], &str); 4] = [
    (DnType::CountryName, &[2, 5, 4, 6], "US"),
    (
        DnType::StateOrProvinceName,
        &[2, 5, 4, 8],
        "Washington State",
    ),
    (DnType::LocalityName, &[2, 5, 4, 7], "Seattle"),
    (
        DnType::OrganizationName,
        &[2, 5, 4, 10],
        "Amazon Web Services LLC",
    ),
];

/// The contents of a document.
///
/// A field that is `None` becomes `null`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The account ID, which has 12 digits.
    pub account: String,
    /// The region that contains the zone.
    pub region: String,
    /// The availability zone.
    pub zone: String,
    /// The instance's ID.
    pub instance: String,
    /// The ID of the instance's image.
    pub image: String,
    /// The instance's type.
    pub instance_type: String,
    /// The instance's IPv4 address. `None` in networks without IPv4.
    pub private_ip: Option<String>,
    /// The start time of the instance (RFC 3339).
    pub pending_time: String,
    /// The product codes for billing.
    pub billing_products: Vec<String>,
    /// The version of the format.
    pub version: String,
}

impl Document {
    /// Creates the document for an instance in this zone (such as `eu-west-1a`) of a region.
    pub fn new(account: &str, region: &str, zone: &str, instance: &str) -> Self {
        Self {
            account: account.into(),
            region: region.into(),
            zone: zone.into(),
            instance: instance.into(),
            image: "ami-0fa9e1f64142cde17".into(),
            instance_type: "t3.medium".into(),
            private_ip: Some("10.0.0.209".into()),
            pending_time: "2026-01-01T00:00:00Z".into(),
            billing_products: Vec::new(),
            version: "2017-09-30".into(),
        }
    }

    /// The document's bytes in AWS's format: two spaces, a space around the colon, no final newline.
    pub fn to_json(&self) -> String {
        let products = match self.billing_products.as_slice() {
            [] => "null".into(),
            products => format!("[ \"{}\" ]", products.join("\", \"")),
        };
        let fields = [
            ("accountId", quoted(&self.account)),
            ("architecture", quoted("x86_64")),
            ("availabilityZone", quoted(&self.zone)),
            ("billingProducts", products),
            ("devpayProductCodes", "null".into()),
            ("marketplaceProductCodes", "null".into()),
            ("imageId", quoted(&self.image)),
            ("instanceId", quoted(&self.instance)),
            ("instanceType", quoted(&self.instance_type)),
            ("kernelId", "null".into()),
            ("pendingTime", quoted(&self.pending_time)),
            (
                "privateIp",
                self.private_ip.as_deref().map_or("null".into(), quoted),
            ),
            ("ramdiskId", "null".into()),
            ("region", quoted(&self.region)),
            ("version", quoted(&self.version)),
        ];
        let lines = fields.map(|(name, value)| format!("  \"{name}\" : {value}"));
        format!("{{\n{}\n}}", lines.join(",\n"))
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A document signer whose certificate resembles the certificates that AWS publishes for each region.
pub struct TestSigner {
    key: RsaKeyPair,
    serial: Vec<u8>,
    certificate_pem: String,
}

impl std::fmt::Debug for TestSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestSigner")
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

impl TestSigner {
    /// Creates a signer with a new 2048-bit RSA key, and a certificate with this serial number.
    ///
    /// AWS's serial numbers consist of eight random bytes, and their first bit is usually set.
    pub fn new(serial: [u8; 8]) -> Self {
        Self::with_size(KeySize::Rsa2048, serial)
    }

    /// Creates a signer with a key of another size.
    pub fn with_size(size: KeySize, serial: [u8; 8]) -> Self {
        let key = RsaKeyPair::generate(size).unwrap();
        let pkcs8: Pkcs8V1Der<'_> = key.as_der().unwrap();
        let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8.as_ref());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &rcgen::PKCS_RSA_SHA256).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, _, value) in ISSUER {
            let value = DnValue::PrintableString(value.try_into().unwrap());
            params.distinguished_name.push(kind, value);
        }
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = date_time_ymd(2024, 5, 9);
        params.not_after = date_time_ymd(2204, 5, 9);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Self {
            certificate_pem: params.self_signed(&pair).unwrap().pem(),
            serial: serial.to_vec(),
            key,
        }
    }

    /// The certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The file with additional signers that makes a controller accept this signer for `regions`.
    pub fn signers_file(&self, regions: &[&str]) -> String {
        let entry = |region: &&str| format!("Region: {region}\n{}\n", self.certificate_pem);
        regions.iter().map(entry).collect()
    }

    /// The value of `rsa2048` for a document: base64 in lines of 76 characters.
    pub fn sign(&self, document: &Document) -> String {
        self.message(document.to_json().as_bytes()).to_base64()
    }

    /// Creates a valid message about these bytes, in parts.
    pub fn message(&self, document: &[u8]) -> Message {
        let mut message = Message::unsigned(document, issuer(), &self.serial);
        message.sign(self);
        message
    }

    /// The signature over `bytes`: RSA PKCS #1 v1.5 with SHA-256.
    pub fn signature(&self, bytes: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                bytes,
                &mut signature,
            )
            .unwrap();
        signature
    }
}

/// The name [`ISSUER`], as encoded in a message.
fn issuer() -> Vec<u8> {
    let attribute = |(_, oid, value): &(DnType, &[u64], &str)| {
        let value = tlv::tlv(tlv::PRINTABLE_STRING, value.as_bytes());
        let pair = tlv::sequence(&[tlv::oid(oid), value]);
        tlv::tlv(tlv::SET, &pair)
    };
    tlv::sequence(&ISSUER.iter().map(attribute).collect::<Vec<_>>())
}
