//! Denials for invalid encodings.

use kubelet_attestation::csr::envelope::InvalidEnvelope;
use kubelet_attestation::csr::parse::InvalidRequest;

use crate::refusal::Denial;

/// Returns the denial for a `spec.request` of `len` bytes that is not an envelope.
pub(crate) fn envelope(error: InvalidEnvelope, len: usize) -> Denial {
    match error {
        InvalidEnvelope::TooLarge => Denial::RequestTooLarge(len),
        InvalidEnvelope::NoPem => Denial::NoPemBlock,
        InvalidEnvelope::NotFirst => Denial::NotARequestFirst,
        InvalidEnvelope::SecondRequest => Denial::SecondRequest,
        InvalidEnvelope::DuplicateBlock => Denial::DuplicateBlock,
        InvalidEnvelope::UnknownBlock => Denial::UnknownBlock,
        InvalidEnvelope::EvidenceWithoutProvider => Denial::EvidenceWithoutProvider,
        InvalidEnvelope::TextOutside => Denial::TextOutsideBlocks,
        InvalidEnvelope::Provider => Denial::ProviderMalformed,
        InvalidEnvelope::EvidenceTooLarge => Denial::EvidenceTooLarge,
        // A new variant of the error also means an invalid encoding.
        InvalidEnvelope::NotStrict | _ => Denial::NotStrictPem,
    }
}

/// Returns the denial for DER that is not a certification request.
pub(crate) fn request(error: InvalidRequest) -> Denial {
    match error {
        InvalidRequest::Der(source) => Denial::NotStrictDer(source.to_string()),
        InvalidRequest::UnknownAttribute => Denial::UnknownAttribute,
        InvalidRequest::DuplicateAttribute => Denial::DuplicateAttribute,
        InvalidRequest::DuplicateExtension => Denial::DuplicateExtension,
        // A new variant of the error also means an invalid encoding.
        other @ (InvalidRequest::NotCanonical | _) => Denial::NotStrictDer(other.to_string()),
    }
}
