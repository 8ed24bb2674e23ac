//! The strict parser of PKCS#10 certification requests (RFC 2986).

use std::collections::BTreeSet;

use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::Extension;
use x509_cert::name::Name;
use x509_cert::request::CertReq;

use crate::csr::extension::{provider_id_text, provider_id_value};
use crate::csr::oid;
use crate::names::ProviderId;

/// DER that this module does not accept as a certification request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The bytes are not a PKCS#10 request in DER: a different structure, a length that is not minimal or not definite,
    /// or bytes after its end.
    #[error("the request is not a PKCS#10 structure in DER")]
    Der(#[source] x509_cert::der::Error),
    /// The request can be decoded, but it is not in canonical DER encoding.
    #[error("the request is not in canonical DER encoding")]
    NotCanonical,
    /// The request contains an attribute other than the requested extensions.
    #[error("the request contains an unsupported attribute")]
    UnknownAttribute,
    /// There are two lists of requested extensions.
    #[error("the request contains two extension lists")]
    DuplicateAttribute,
    /// The same extension occurs twice.
    #[error("the request contains a duplicate extension")]
    DuplicateExtension,
}

/// A certification request, without any verification of its claims.
#[derive(Debug, Clone)]
pub struct CertificationRequest {
    request: CertReq,
    extensions: Vec<Extension>,
    signed: Vec<u8>,
    spki: Vec<u8>,
}

impl CertificationRequest {
    /// Parses DER.
    ///
    /// # Guarantees
    ///
    /// Each request has only one accepted encoding. To verify the encoding, this function encodes the result again, and
    /// compares it with the input.
    pub fn from_der(der: &[u8]) -> Result<Self, InvalidRequest> {
        let request = CertReq::from_der(der).map_err(InvalidRequest::Der)?;
        if request.to_der().map_err(InvalidRequest::Der)? != der {
            return Err(InvalidRequest::NotCanonical);
        }
        let extensions = requested_extensions(&request)?;
        let signed = request.info.to_der().map_err(InvalidRequest::Der)?;
        let spki = request.info.public_key.to_der();
        let spki = spki.map_err(InvalidRequest::Der)?;
        Ok(Self {
            request,
            extensions,
            signed,
            spki,
        })
    }

    /// The requested subject.
    pub fn subject(&self) -> &Name {
        &self.request.info.subject
    }

    /// DER of the `SubjectPublicKeyInfo`.
    pub fn spki_der(&self) -> &[u8] {
        &self.spki
    }

    /// The algorithm of the key, and its parameters if they are an OID (the named curve).
    pub fn key_algorithm(&self) -> (ObjectIdentifier, Option<ObjectIdentifier>) {
        let algorithm = &self.request.info.public_key.algorithm;
        let parameters = algorithm.parameters.as_ref();
        let curve = parameters.and_then(|parameters| parameters.decode_as().ok());
        (algorithm.oid, curve)
    }

    /// The bits of the key: for an elliptic curve, the point. `None` if the number of bits is not a multiple of 8.
    pub fn key_bits(&self) -> Option<&[u8]> {
        self.request.info.public_key.subject_public_key.as_bytes()
    }

    /// The bytes that the request's signature covers.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.signed
    }

    /// The signature algorithm. `None` if it has parameters.
    pub fn signature_algorithm(&self) -> Option<ObjectIdentifier> {
        let algorithm = &self.request.algorithm;
        algorithm.parameters.is_none().then_some(algorithm.oid)
    }

    /// The signature. `None` if its number of bits is not a multiple of 8.
    pub fn signature(&self) -> Option<&[u8]> {
        self.request.signature.as_bytes()
    }

    /// The requested extensions, each at most once.
    pub fn extensions(&self) -> &[Extension] {
        &self.extensions
    }

    /// The extension with this OID.
    pub fn extension(&self, kind: ObjectIdentifier) -> Option<&Extension> {
        let mut extensions = self.extensions.iter();
        extensions.find(|extension| extension.extn_id == kind)
    }

    /// The provider ID that the request claims. `None` if the extension is missing, or is not one DER `UTF8String` with
    /// a provider ID.
    pub fn claimed_provider_id(&self) -> Option<ProviderId> {
        let value = self.extension(oid::PROVIDER_ID)?.extn_value.as_bytes();
        let id = ProviderId::parse(provider_id_text(value)?).ok();
        id.filter(|id| provider_id_value(id).is_ok_and(|der| der == value))
    }
}

fn requested_extensions(request: &CertReq) -> Result<Vec<Extension>, InvalidRequest> {
    let attributes = &request.info.attributes;
    let mut kinds = attributes.iter().map(|attribute| attribute.oid);
    if kinds.any(|kind| kind != oid::EXTENSION_REQUEST) {
        return Err(InvalidRequest::UnknownAttribute);
    }
    let values = attributes
        .iter()
        .flat_map(|attribute| attribute.values.iter());
    let values: Vec<&Any> = values.collect();
    let extensions: Vec<Extension> = match (attributes.len(), values.as_slice()) {
        (0, _) => Vec::new(),
        (1, [value]) => {
            let extensions: Vec<Extension> = value.decode_as().map_err(InvalidRequest::Der)?;
            // The comparison in `from_der` treats attribute values as opaque, so it does not cover their encoding.
            if extensions.to_der().map_err(InvalidRequest::Der)?
                != value.to_der().map_err(InvalidRequest::Der)?
            {
                return Err(InvalidRequest::NotCanonical);
            }
            extensions
        }
        _ => return Err(InvalidRequest::DuplicateAttribute),
    };
    let kinds = extensions.iter().map(|extension| extension.extn_id);
    if kinds.collect::<BTreeSet<_>>().len() != extensions.len() {
        return Err(InvalidRequest::DuplicateExtension);
    }
    Ok(extensions)
}

#[cfg(test)]
mod tests;
