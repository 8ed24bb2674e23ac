//! The reader of BER, without a message around it.

/// The DER of one element of BER; `None` where it is refused.
pub fn der_of(ber: &[u8]) -> Option<Vec<u8>> {
    super::ber::to_der(ber).ok()
}
