//! Hexadecimal text.

/// The bytes as hexadecimal text, two lower-case digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
