//! Platform configuration registers, and what is in them.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize, Serializer};

use crate::members::Members;

/// The last register that a PC has ("PC Client Platform TPM Profile", 24 registers).
pub const MAX_REGISTER: u8 = 23;

/// Registers of the bank of SHA-256, and the digest in each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Members<String>")]
pub struct Registers(BTreeMap<u8, [u8; 32]>);

impl Registers {
    /// These registers; `None` where one has a number that no PC has.
    pub fn new(registers: BTreeMap<u8, [u8; 32]>) -> Option<Self> {
        let last = registers.last_key_value();
        last.is_none_or(|(number, _)| *number <= MAX_REGISTER)
            .then_some(Self(registers))
    }

    /// Each with its digest, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8; 32])> {
        self.0.iter().map(|(number, digest)| (*number, digest))
    }

    /// The digest in a register.
    pub fn get(&self, number: u8) -> Option<&[u8; 32]> {
        self.0.get(&number)
    }
}

impl Serialize for Registers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = self.iter();
        serializer.collect_map(named.map(|(number, digest)| (number, HEXLOWER.encode(digest))))
    }
}

impl TryFrom<Members<String>> for Registers {
    type Error = &'static str;

    fn try_from(Members(named): Members<String>) -> Result<Self, &'static str> {
        let register = |(number, digest): (String, String)| {
            let number = number_of(&number).ok_or("no such register")?;
            let digest = HEXLOWER.decode(digest.as_bytes()).ok();
            let digest = digest.and_then(|digest| digest.try_into().ok());
            let digest = digest.ok_or("a register is not 64 lower-case hexadecimal digits")?;
            Ok((number, digest))
        };
        named
            .into_iter()
            .map(register)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// One number has one form.
fn number_of(text: &str) -> Option<u8> {
    let number = text.parse().ok()?;
    (number <= MAX_REGISTER && text == format!("{number}")).then_some(number)
}
