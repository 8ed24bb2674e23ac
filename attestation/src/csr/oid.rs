//! Object identifiers, each with its source.

use x509_cert::der::asn1::ObjectIdentifier;

/// Extension: the machine's provider ID as a DER `UTF8String`.
///
/// `KubernetesNodeProviderIdentifierOID`, the proof-of-concept arc of the Cluster API kubelet authentication proposal.
pub const PROVIDER_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.11129.2.1.21");

/// Subject attribute: the UID of the user. The API server copies it into the user info
/// (`AllowParsingUserUIDFromCertAuth`, Kubernetes 1.33).
pub const KUBERNETES_USER_UID: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");

/// Attribute: requested extensions (PKCS #9, RFC 2985 section 5.4.2).
pub const EXTENSION_REQUEST: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.14");

/// Organization name (X.520).
pub const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");

/// Common name (X.520).
pub const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Subject alternative name (RFC 5280 section 4.2.1.6).
pub const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// Basic constraints (RFC 5280 section 4.2.1.9).
pub const BASIC_CONSTRAINTS: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.19");

/// Key usage (RFC 5280 section 4.2.1.3).
pub const KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.15");

/// Extended key usage (RFC 5280 section 4.2.1.12).
pub const EXTENDED_KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37");

/// Elliptic curve public key (RFC 5480 section 2.1.1).
pub const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// The curve P-256 (RFC 5480 section 2.1.1.1).
pub const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");

/// ECDSA with SHA-256 (RFC 5758 section 3.2).
pub const ECDSA_WITH_SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
