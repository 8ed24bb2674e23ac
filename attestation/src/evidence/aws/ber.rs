//! The encoding of an identity document's CMS message: base64 in lines, and BER whose inner layers are DER.
//!
//! The AWS encoder writes a stream: it uses indefinite lengths (X.690 section 8.1.3.6), and splits the content into
//! segments (section 8.7.3.2). This module rewrites only these two forms. It copies elements with a definite length
//! unchanged. If such an element is not DER, the DER reader rejects it later. This module is only for identity
//! documents, because certificates and requests are DER.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::ensure;

/// The maximum size of a message in BER. A document is about 0.5 KiB long, and the message around it adds another 0.5
/// KiB.
const MAX_SIZE: usize = 16 * 1024;
/// The maximum length of a message in base64, including line ends.
const MAX_TEXT_SIZE: usize = 24 * 1024;
/// The maximum nesting. AWS nests elements with indefinite length six levels deep.
const MAX_DEPTH: usize = 8;

const CONSTRUCTED: u8 = 0x20;
const OCTET_STRING: u8 = 0x04;
/// The low bits of a tag whose tag number is in the following bytes.
const LONG_TAG: u8 = 0x1f;
const END_OF_CONTENTS: [u8; 2] = [0, 0];

/// The rule that an encoding violates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBer(pub &'static str);

/// Decodes the base64 in `text`, and converts the message to DER.
pub fn decode(text: &str) -> Result<Vec<u8>, InvalidBer> {
    ensure!(text.len() <= MAX_TEXT_SIZE, InvalidBer("it is too large"));
    let one_line: Vec<u8> = text
        .bytes()
        .filter(|byte| !matches!(byte, b'\r' | b'\n'))
        .collect();
    ensure!(!one_line.is_empty(), InvalidBer("it is empty"));
    let ber = STANDARD
        .decode(one_line)
        .map_err(|_| InvalidBer("it is not base64"))?;
    to_der(&ber)
}

/// Converts the outer layers of the element in `ber` to DER. Elements that are already DER remain unchanged.
///
/// Each byte is read once, and copied at most once for each level.
///
/// # Errors
///
/// Returns an error if `ber` contains more than one element, is larger than `MAX_SIZE` bytes, or is nested more than
/// `MAX_DEPTH` levels deep. Also rejects encodings of lengths and tags that AWS does not send.
pub fn to_der(ber: &[u8]) -> Result<Vec<u8>, InvalidBer> {
    ensure!(ber.len() <= MAX_SIZE, InvalidBer("it is too large"));
    let mut input = Input(ber);
    let mut der = Vec::with_capacity(ber.len());
    input.element(MAX_DEPTH, &mut der)?;
    if input.0.is_empty() {
        Ok(der)
    } else {
        Err(InvalidBer("it has trailing bytes"))
    }
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Known(usize),
    Indefinite,
}

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads one element, and appends it to `der`.
    fn element(&mut self, levels: usize, der: &mut Vec<u8>) -> Result<(), InvalidBer> {
        let Some(levels) = levels.checked_sub(1) else {
            return Err(InvalidBer("it is nested too deeply"));
        };
        let (tag, length) = self.header()?;
        if tag == OCTET_STRING | CONSTRUCTED {
            return append(der, OCTET_STRING, &self.pieces(length)?);
        }
        match length {
            Length::Known(length) => append(der, tag, self.take(length)?),
            Length::Indefinite => {
                let mut content = Vec::new();
                while !self.ended() {
                    self.element(levels, &mut content)?;
                }
                append(der, tag, &content)
            }
        }
    }

    /// Reads the segments of an octet string up to its end, and joins them.
    fn pieces(&mut self, length: Length) -> Result<Vec<u8>, InvalidBer> {
        let mut joined = Vec::new();
        match length {
            Length::Known(length) => {
                let mut within = Input(self.take(length)?);
                while !within.0.is_empty() {
                    joined.extend(within.piece()?);
                }
            }
            Length::Indefinite => {
                while !self.ended() {
                    joined.extend(self.piece()?);
                }
            }
        }
        Ok(joined)
    }

    fn piece(&mut self) -> Result<&'a [u8], InvalidBer> {
        match self.header()? {
            (OCTET_STRING, Length::Known(length)) => self.take(length),
            _ => Err(InvalidBer(
                "a part of an octet string is not a primitive octet string",
            )),
        }
    }

    /// Reads a tag and a length. The length must be indefinite, or have the shortest encoding.
    fn header(&mut self) -> Result<(u8, Length), InvalidBer> {
        let tag = self.byte()?;
        ensure!(
            tag != 0,
            InvalidBer("an end-of-contents marker is out of place")
        );
        if tag & LONG_TAG == LONG_TAG {
            return Err(InvalidBer("a tag number is too large"));
        }
        let length = match self.byte()? {
            short @ 0..0x80 => Length::Known(short.into()),
            0x80 if tag & CONSTRUCTED == 0 => {
                return Err(InvalidBer("a primitive element has no length"));
            }
            0x80 => Length::Indefinite,
            0x81 => Length::Known(at_least(0x80, self.byte()?.into())?),
            0x82 => {
                let bytes = [self.byte()?, self.byte()?];
                Length::Known(at_least(0x100, u16::from_be_bytes(bytes).into())?)
            }
            _ => return Err(InvalidBer("a length is too large")),
        };
        Ok((tag, length))
    }

    /// Whether the element ends here. If so, this function consumes the element's end-of-contents bytes.
    fn ended(&mut self) -> bool {
        let rest = self.0.strip_prefix(&END_OF_CONTENTS);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn byte(&mut self) -> Result<u8, InvalidBer> {
        let (byte, rest) = self.0.split_first().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], InvalidBer> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(taken)
    }
}

const TRUNCATED: InvalidBer = InvalidBer("it is truncated");

fn at_least(least: usize, length: usize) -> Result<usize, InvalidBer> {
    if length < least {
        return Err(InvalidBer("a length is not in its shortest form"));
    }
    Ok(length)
}

/// Appends an element. The length fits into 2 bytes, because the input is at most [`MAX_SIZE`] bytes long.
fn append(der: &mut Vec<u8>, tag: u8, content: &[u8]) -> Result<(), InvalidBer> {
    let length = u16::try_from(content.len()).map_err(|_| InvalidBer("it is too large"))?;
    let [high, low] = length.to_be_bytes();
    der.push(tag);
    match length {
        0..0x80 => der.push(low),
        0x80..0x100 => der.extend([0x81, low]),
        _ => der.extend([0x82, high, low]),
    }
    der.extend(content);
    Ok(())
}

#[cfg(test)]
mod tests;
