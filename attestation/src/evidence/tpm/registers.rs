//! Platform configuration registers, and what is in them.

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::HEXLOWER;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The last register that a PC has ("PC Client Platform TPM Profile", 24 registers).
pub const MAX_REGISTER: u8 = 23;

/// Registers of the bank of SHA-256, and the digest in each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

impl<'de> Deserialize<'de> for Registers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EachOnce)
    }
}

struct EachOnce;

impl<'de> Visitor<'de> for EachOnce {
    type Value = Registers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registers 0 to {MAX_REGISTER} with their digests")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Registers, A::Error> {
        let mut registers = BTreeMap::new();
        while let Some((number, digest)) = map.next_entry::<String, String>()? {
            let number = number_of(&number).ok_or_else(|| A::Error::custom("no such register"))?;
            let digest = HEXLOWER.decode(digest.as_bytes()).ok();
            let digest: Option<[u8; 32]> = digest.and_then(|digest| digest.try_into().ok());
            let digest = digest.ok_or_else(|| {
                A::Error::custom("a register is not 64 lower-case hexadecimal digits")
            })?;
            if registers.insert(number, digest).is_some() {
                return Err(A::Error::custom("a register is named twice"));
            }
        }
        Ok(Registers(registers))
    }
}

/// One number has one form.
fn number_of(text: &str) -> Option<u8> {
    let number = text.parse().ok()?;
    (number <= MAX_REGISTER && text == format!("{number}")).then_some(number)
}
